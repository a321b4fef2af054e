"""Static batching: fill a batch, shut the door, run until the last one is done. Chapter 1."""

from mini_vllm.batching.batcher import Batcher
from mini_vllm.config import SchedulerConfig


class StaticBatcher(Batcher):
    """Starts when the batch is full, or when nobody has run for `max_wait_steps` steps while somebody waited."""

    max_wait_steps = 4

    def __init__(self, config: SchedulerConfig):
        super().__init__(config)
        self.steps_waited = 0

    def num_may_join(self) -> int:
        if self.running or not self.waiting:
            self.steps_waited = 0
            return 0
        batch_is_full = len(self.waiting) >= self.config.max_num_seqs
        if not batch_is_full and self.steps_waited < self.max_wait_steps:
            self.steps_waited += 1
            return 0
        self.steps_waited = 0
        return self.config.max_num_seqs
