"""A step that the device may still be computing. Knows whose tokens it samples; starts nothing. Chapters 11 and 14."""

import threading
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice, zip_longest

import torch
from torch import Tensor

from mini_vllm.core.output import ModelRunnerOutput
from mini_vllm.engine.request_state import RequestState
from mini_vllm.engine.sampler import NO_TOKEN, Sampled


class TokensOnTheirWay:
    """Token ids that a GPU computes: copied to pinned memory behind its other work, waited for when they are read."""

    def __init__(self, token_ids: Tensor) -> None:
        self._done: torch.cuda.Event | None = None
        self._host = token_ids
        if token_ids.is_cuda:
            self._host = torch.empty(token_ids.shape, dtype=token_ids.dtype, pin_memory=True)
            self._host.copy_(token_ids, non_blocking=True)
            self._done = torch.cuda.Event()
            self._done.record()

    def read(self) -> list[Sampled]:
        if self._done is not None:
            self._done.synchronize()
        return [Sampled(None if token_id == NO_TOKEN else token_id) for token_id in self._host.tolist()]


@dataclass
class AtEnd:
    """A request that samples in this step. place: of its first new token in `state.token_ids`."""

    req_id: str
    state: RequestState
    drafts: list[int]
    place: int


class StepInFlight:
    """What `ModelRunner.launch` gives: the numbers are there when `result` has been called.

    read: waits for the sampled tokens, one for each request in `at_end` and each of its drafts.
    settle: hears of each request what was kept.
    """

    def __init__(
        self,
        req_ids: list[str],
        at_end: list[AtEnd],
        read: Callable[[], list[Sampled]],
        settle: Callable[[AtEnd, list[int], ModelRunnerOutput], None],
    ) -> None:
        self._output = ModelRunnerOutput({req_id: [] for req_id in req_ids})
        self._at_end, self._read, self._settle = at_end, read, settle
        self._lock = threading.Lock()  # whoever plans may ask, and whoever runs the step after it
        self._is_settled = False

    def result(self) -> ModelRunnerOutput:
        """Waits for the device; any thread may call it, and more than once."""
        with self._lock:
            if not self._is_settled:
                self._take_in(self._output)
                self._is_settled = True
        return self._output

    def _take_in(self, output: ModelRunnerOutput) -> None:
        results = iter(self._read())
        for mine in self._at_end:
            kept = _kept(mine.drafts, list(islice(results, len(mine.drafts) + 1)))
            if not kept:
                output.errors[mine.req_id] = "the model's logits are not finite numbers"
                mine.state.token_ids[mine.place] = 0  # its next row may be under way; nobody looks at it
                continue
            tokens = [sampled.token_id for sampled in kept if sampled.token_id is not None]
            output.sampled_token_ids[mine.req_id] = tokens
            mine.state.token_ids[mine.place : mine.place + 1] = tokens
            if mine.state.params.logprobs is not None:
                output.logprobs[mine.req_id] = [sampled.logprobs for sampled in kept]
            self._settle(mine, tokens, output)


def _kept(drafts: list[int], results: list[Sampled]) -> list[Sampled]:
    """The sampled tokens that count: up to the first that is not the draft in its place, or that is no token."""
    kept = []
    for draft, sampled in zip_longest(drafts, results):
        if sampled.token_id is None:
            break
        kept.append(sampled)
        if sampled.token_id != draft:
            break
    return kept
