"""The plan of one step and what comes back: plain data between scheduler and worker. Chapter 11.

Names as in vLLM 0.33.0. One difference, on purpose: `sampled_token_ids` is keyed by request id, so that nobody has to
join two orders by position.
"""

from dataclasses import dataclass, field

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
    """A request that the worker knows already: only what changed.

    resumed: it comes back from preemption, so `new_block_ids` is its whole block table.
    """

    req_id: str
    new_block_ids: list[int]
    num_computed_tokens: int
    resumed: bool = False


@dataclass(slots=True)
class SchedulerOutput:
    """The plan of one step; built once by `schedule()`, changed by nobody after (a test compares)."""

    scheduled_new_reqs: list[NewRequestData] = field(default_factory=list)  # worker: registers the request
    scheduled_cached_reqs: list[CachedRequestData] = field(default_factory=list)  # worker: extends block tables
    num_scheduled_tokens: dict[str, int] = field(default_factory=dict)  # worker: rows of the batch, in this order
    scheduled_spec_decode_tokens: dict[str, list[int]] = field(default_factory=dict)  # worker: drafts to verify
    preempted_req_ids: list[str] = field(default_factory=list)  # trace; the worker just does not see them
    finished_req_ids: list[str] = field(default_factory=list)  # worker: forgets them (finished since the last plan)
    blocked_reason: str | None = None  # trace and player: why the head of the queue did not enter

    @property
    def total_num_scheduled_tokens(self) -> int:
        return sum(self.num_scheduled_tokens.values())


@dataclass(slots=True)
class ModelRunnerOutput:
    """What a step computed.

    sampled_token_ids: request id -> sampled tokens: none while a prompt is not yet through, one, or with drafts the
        accepted ones and one more.
    draft_token_ids: request id -> drafts for the next step.
    """

    sampled_token_ids: dict[str, list[int]] = field(default_factory=dict)
    draft_token_ids: dict[str, list[int]] = field(default_factory=dict)


@dataclass(slots=True)
class RequestOutput:
    """News about one request after a step; `finish_reason` is "stop", "length", "abort" or None (goes on)."""

    request_id: str
    new_token_ids: list[int]
    finish_reason: str | None = None

    @property
    def finished(self) -> bool:
        return self.finish_reason is not None
