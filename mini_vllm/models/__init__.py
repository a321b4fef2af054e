"""The Llama family as one ragged forward pass. Chapter 14."""
