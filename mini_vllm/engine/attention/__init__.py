"""Attention over the paged KV cache, one file a backend. Chapters 13 and 14."""
