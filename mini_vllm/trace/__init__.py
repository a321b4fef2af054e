"""Step records: what a scheduler decided, written down. Standard library only. Chapter 4."""
