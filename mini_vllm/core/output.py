"""The plan of one step and what comes back: plain data between scheduler and worker. Chapter 11.

Names as in vLLM 0.33.0. One difference, on purpose: `sampled_token_ids` is keyed by request id, so that nobody has to
join two orders by position.
"""

from dataclasses import dataclass, field
from itertools import islice

from mini_vllm.request import Request
from mini_vllm.sampling_params import SamplingParams


@dataclass(slots=True)
class NewRequestData:
    """A request that the worker sees for the first time: everything about it.

    The first `num_computed_tokens` tokens hit the prefix cache: their blocks may be shared, the others are its own.
    """

    req_id: str
    prompt_token_ids: list[int]
    sampling_params: SamplingParams
    block_ids: list[int]
    num_computed_tokens: int


@dataclass(slots=True)
class CachedRequestData:
    """All requests of a plan that the worker knows already: only what changed, in lists side by side as in vLLM.

    num_computed_tokens: of each in `req_ids`, before this step.
    new_block_ids: request id -> blocks to append to its table; only of those who got some.
    resumed_req_ids: come back from preemption, so their `new_block_ids` are their whole block table.
    """

    req_ids: list[str] = field(default_factory=list)
    num_computed_tokens: list[int] = field(default_factory=list)
    new_block_ids: dict[str, list[int]] = field(default_factory=dict)
    resumed_req_ids: list[str] = field(default_factory=list)

    def add(self, req_id: str, num_computed_tokens: int, new_block_ids: list[int], resumed: bool = False) -> None:
        """One request more; what core.Scheduler does in bulk, for schedulers that go one by one."""
        self.req_ids.append(req_id)
        self.num_computed_tokens.append(num_computed_tokens)
        if new_block_ids:
            self.new_block_ids[req_id] = new_block_ids
        if resumed:
            self.resumed_req_ids.append(req_id)


@dataclass(slots=True)
class SchedulerOutput:
    """The plan of one step; built once by `schedule()`, changed by nobody after (a test compares)."""

    scheduled_new_reqs: list[NewRequestData] = field(default_factory=list)  # worker: registers the request
    scheduled_cached_reqs: CachedRequestData = field(default_factory=CachedRequestData)  # worker: extends block tables
    num_scheduled_tokens: dict[str, int] = field(default_factory=dict)  # worker: rows of the batch, in this order
    scheduled_spec_decode_tokens: dict[str, list[int]] = field(default_factory=dict)  # worker: drafts to verify
    preempted_req_ids: list[str] = field(default_factory=list)  # trace; the worker just does not see them
    finished_req_ids: list[str] = field(default_factory=list)  # worker: forgets them (finished since the last plan)
    blocked_reason: str | None = None  # trace and player: why the head of the queue did not enter
    # worker: copies of whole blocks before the step computes anything, first all out, then all in (chapter 8; not in
    # vLLM's V1). Each is (block of the pool, block of the host's pool).
    swapped_out: list[tuple[int, int]] = field(default_factory=list)
    swapped_in: list[tuple[int, int]] = field(default_factory=list)

    @property
    def total_num_scheduled_tokens(self) -> int:
        return sum(self.num_scheduled_tokens.values())


@dataclass(slots=True)
class ModelRunnerOutput:
    """What a step computed.

    sampled_token_ids: request id -> sampled tokens: none while a prompt is not yet through, one, or with drafts the
        accepted ones and one more.
    draft_token_ids: request id -> drafts for the next step.
    logprobs: request id -> one entry a sampled token, of those that asked for them; not read by the scheduler.
    errors: request id -> why no token could be sampled (its logits are no numbers); the engine ends these.
    """

    sampled_token_ids: dict[str, list[int]] = field(default_factory=dict)
    draft_token_ids: dict[str, list[int]] = field(default_factory=dict)
    logprobs: dict[str, list] = field(default_factory=dict)
    errors: dict[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class RequestOutput:
    """News about one request after a step; `finish_reason` is "stop", "length", "abort" or None (goes on)."""

    request_id: str
    new_token_ids: list[int]
    finish_reason: str | None = None

    @property
    def finished(self) -> bool:
        return self.finish_reason is not None


def describe(
    planned: list[Request],
    num_cached: int,
    scheduled: dict[str, int],
    new_blocks: dict[str, list[int]],
    known_to_worker: set[str],
) -> tuple[list[NewRequestData], CachedRequestData]:
    """What the worker is told of the planned requests, before their counters advance.

    The first `num_cached` run already; the others enter, and those whom the worker does not know become known.
    scheduled: their tokens, in the same order.
    """
    cached = planned[:num_cached]
    new, resumed = [], []
    for r in planned[num_cached:]:
        if r.request_id in known_to_worker:
            resumed.append(r.request_id)
            cached.append(r)
        else:
            known_to_worker.add(r.request_id)
            blocks = new_blocks.pop(r.request_id)
            new.append(
                NewRequestData(r.request_id, r.prompt_token_ids, r.sampling_params, blocks, r.num_computed_tokens)
            )
    req_ids = [*islice(scheduled, num_cached), *resumed]
    return new, CachedRequestData(req_ids, [r.num_computed_tokens for r in cached], new_blocks, resumed)
