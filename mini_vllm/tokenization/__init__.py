"""Text to token ids and back. Chapter 14."""
