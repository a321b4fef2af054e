"""Continuous batching: the door is never shut; whoever is done leaves, whoever waits takes the slot. Chapter 1."""

from mini_vllm.batching.batcher import Batcher


class ContinuousBatcher(Batcher):
    """Orca's iteration-level scheduling: the batch is chosen anew in every step."""

    def num_may_join(self) -> int:
        return self.config.max_num_seqs - len(self.running)
