"""Bucketed batching: static batches of requests whose answers are of similar length. Knows the lengths. Chapter 1."""

from collections import deque

from mini_vllm.batching.static import StaticBatcher
from mini_vllm.core.output import SchedulerOutput


class BucketedBatcher(StaticBatcher):
    """A batch is whoever has waited longest, and those of the line whose length is nearest to theirs.

    The length is `sampling_params.max_tokens`: exact where outputs have a given length, as in the simulator; a server
    that lets the model end its answers itself knows no more than a limit.
    """

    def schedule(self) -> SchedulerOutput:
        if self.waiting and not self.running:
            self._bring_company_to_the_front()
        return super().schedule()

    def _bring_company_to_the_front(self) -> None:
        """The next batch first, in order of arrival; the others keep their order, so that nobody is passed for ever."""
        wanted = self.waiting[0].sampling_params.max_tokens
        by_distance = sorted(self.waiting, key=lambda r: abs(r.sampling_params.max_tokens - wanted))
        batch = {r.request_id for r in by_distance[: self.config.max_num_seqs]}
        line = list(self.waiting)
        self.waiting = deque(sorted(line, key=lambda r: r.request_id not in batch))
