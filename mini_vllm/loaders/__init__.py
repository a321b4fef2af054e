"""Model files: fetch, read, dequantise, map. Chapter 14."""
