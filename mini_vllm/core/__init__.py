"""The finished scheduler and its KV bookkeeping. Standard library only. Chapters 4 to 11."""
