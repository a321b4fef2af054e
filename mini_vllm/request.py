"""One request and its state. Knows its tokens; knows nothing of queues, budgets or blocks. Chapter 4."""

import enum
import operator
from array import array
from dataclasses import dataclass, field
from typing import Any

from mini_vllm.errors import EmptyPromptError, IllegalTransitionError, InvalidRequestError
from mini_vllm.sampling_params import SamplingParams

MOST_TOKEN_ID = 2**64 - 1  # prefix caching writes eight bytes for each (chapter 7)


class RequestStatus(enum.IntEnum):
    """States in vLLM's order: everything above PREEMPTED is finished."""

    WAITING = 0
    RUNNING = 1
    PREEMPTED = 2
    FINISHED_STOPPED = 3
    FINISHED_LENGTH_CAPPED = 4
    FINISHED_ABORTED = 5

    @property
    def is_finished(self) -> bool:
        return self > RequestStatus.PREEMPTED


WAITING, RUNNING, PREEMPTED, FINISHED_STOPPED, FINISHED_LENGTH_CAPPED, FINISHED_ABORTED = RequestStatus

# A preempted request can stop or reach its length while it waits: its last token was in flight when it was evicted.
TRANSITIONS = {
    WAITING: {RUNNING, FINISHED_ABORTED},
    RUNNING: {PREEMPTED, FINISHED_STOPPED, FINISHED_LENGTH_CAPPED, FINISHED_ABORTED},
    PREEMPTED: {RUNNING, FINISHED_STOPPED, FINISHED_LENGTH_CAPPED, FINISHED_ABORTED},
    FINISHED_STOPPED: set(),
    FINISHED_LENGTH_CAPPED: set(),
    FINISHED_ABORTED: set(),
}
FINISH_REASON = {FINISHED_STOPPED: "stop", FINISHED_LENGTH_CAPPED: "length", FINISHED_ABORTED: "abort"}


@dataclass(eq=False, slots=True)
class Request:
    """A prompt, the tokens that came out of it so far, and how many of both have their KV computed.

        token_ids:  prompt                    output
                    |=========================|---------->
                    |<- num_computed_tokens ->|      num_tokens

    A request only ever catches up: each step computes some of `num_tokens - num_computed_tokens`. The step that
    reaches the end of the known tokens samples one more.

    priority: smaller is served first (priority policy only). arrival_time: seconds or steps, on any one clock.
    cache_salt, adapter: KV is shared only between requests that agree in both (chapter 7).
    """

    request_id: str
    prompt_token_ids: list[int]
    sampling_params: SamplingParams = field(default_factory=SamplingParams)
    arrival_time: float = 0.0
    eos_token_id: int | None = None
    priority: int = 0
    cache_salt: str | None = None
    adapter: str | None = None

    status: RequestStatus = field(default=WAITING, init=False)
    token_ids: list[int] = field(default_factory=list, init=False, repr=False)
    num_prompt_tokens: int = field(default=0, init=False)
    num_computed_tokens: int = field(default=0, init=False)
    num_preemptions: int = field(default=0, init=False)
    block_hashes: list[bytes] = field(default_factory=list, init=False, repr=False)  # chapter 7
    # Chapter 11: what is planned, but not yet known.
    spec_token_ids: list[int] = field(default_factory=list, init=False)  # drafts to be verified in the next step
    num_output_placeholders: int = field(default=0, init=False)  # tokens that a step in flight will sample
    num_in_flight_tokens: int = field(default=0, init=False)  # planned tokens whose step is not done
    num_plans_in_flight: int = field(default=0, init=False)
    num_stale_plans: int = field(default=0, init=False)  # of these, planned before the latest preemption
    is_prefill_chunk: bool = field(default=False, init=False)  # its latest piece ended before its known tokens
    # Kept at hand, because they are asked for every token.
    stop_token_ids: frozenset[int] = field(default=frozenset(), init=False, repr=False)
    longest: int = field(default=0, init=False, repr=False)  # prompt and max_tokens together
    quiet_until: int = field(default=0, init=False, repr=False)  # see KVCacheManager.quiet_until

    def __post_init__(self) -> None:
        if not self.prompt_token_ids:
            raise EmptyPromptError(
                f"request {self.request_id!r} has an empty prompt (0 tokens, at least 1 needed): there is nothing "
                "to predict from; send some text, or the model's start token"
            )
        if not isinstance(self.priority, int):
            raise InvalidRequestError(
                f"request {self.request_id!r} has priority={self.priority!r}; give a whole number, smaller is sooner"
            )
        for name in ("cache_salt", "adapter"):
            if not isinstance(value := getattr(self, name), str | None):
                raise InvalidRequestError(f"request {self.request_id!r} has {name}={value!r}; give a text, or None")
        self.prompt_token_ids = list(self.prompt_token_ids)
        try:
            array("Q", self.prompt_token_ids)  # the fastest way to look at each of them
        except (TypeError, OverflowError):
            place, bad = next((i, t) for i, t in enumerate(self.prompt_token_ids) if not _is_token_id(t))
            raise InvalidRequestError(
                f"token {place} of the prompt of request {self.request_id!r} is {bad!r}; a token id is a whole number "
                f"from 0 to {MOST_TOKEN_ID}"
            ) from None
        self.token_ids = list(self.prompt_token_ids)
        self.num_prompt_tokens = len(self.prompt_token_ids)
        params = self.sampling_params
        self.longest = self.num_prompt_tokens + params.max_tokens
        eos = () if params.ignore_eos or self.eos_token_id is None else (self.eos_token_id,)
        self.stop_token_ids = frozenset((*params.stop_token_ids, *eos))

    @property
    def num_tokens(self) -> int:
        """Known tokens: the prompt and what was sampled so far."""
        return len(self.token_ids)

    @property
    def output_token_ids(self) -> list[int]:
        return self.token_ids[self.num_prompt_tokens :]

    @property
    def num_new_tokens(self) -> int:
        """Known tokens whose KV is still to be computed."""
        return len(self.token_ids) - self.num_computed_tokens

    @property
    def finish_reason(self) -> str | None:
        return FINISH_REASON.get(self.status)

    def transition_to(self, status: RequestStatus) -> None:
        """Change the state along an edge of `TRANSITIONS`; IllegalTransitionError otherwise."""
        if status not in TRANSITIONS[self.status]:
            raise IllegalTransitionError(
                f"request {self.request_id!r} cannot go from {self.status.name} to {status.name}; from there it may go "
                f"to {', '.join(s.name for s in sorted(TRANSITIONS[self.status])) or 'nowhere: it has ended'}"
            )
        self.status = status

    def preempt(self) -> None:
        """RUNNING -> PREEMPTED: it keeps its tokens and starts over with their KV."""
        self.transition_to(PREEMPTED)
        self.num_preemptions += 1
        self.num_computed_tokens = 0
        self.spec_token_ids = []
        self.num_output_placeholders = self.num_in_flight_tokens = 0
        self.num_stale_plans = self.num_plans_in_flight

    def append_output(self, token_id: int, max_model_len: int) -> bool:
        """Take one sampled token; return True if it was the last. The order of the tests is vLLM's."""
        tokens = self.token_ids
        tokens.append(token_id)
        if token_id in self.stop_token_ids:
            self.transition_to(FINISHED_STOPPED)
            return True
        num_tokens = len(tokens)
        if num_tokens >= self.longest or num_tokens >= max_model_len:
            self.transition_to(FINISHED_LENGTH_CAPPED)
            return True
        return False


def _is_token_id(value: Any) -> bool:
    try:
        return 0 <= operator.index(value) <= MOST_TOKEN_ID
    except TypeError:
        return False
