"""Logits to token ids. Knows no request. Greedy in this version. Chapter 14."""

import torch


class Sampler:
    def sample(self, logits: torch.Tensor) -> list[int]:
        """logits: [N, vocab_size]. Returns N token ids: the most likely one, the lowest id among equals."""
        return logits.argmax(dim=-1).tolist()
