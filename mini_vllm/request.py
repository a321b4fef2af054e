"""One request and its state. Knows its tokens; knows nothing of queues, budgets or blocks. Chapter 4."""

import enum
from dataclasses import dataclass, field

from mini_vllm.errors import EmptyPromptError
from mini_vllm.sampling_params import SamplingParams


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


FINISHED_ABORTED = RequestStatus.FINISHED_ABORTED

FINISH_REASON = {
    RequestStatus.FINISHED_STOPPED: "stop",
    RequestStatus.FINISHED_LENGTH_CAPPED: "length",
    RequestStatus.FINISHED_ABORTED: "abort",
}


@dataclass(eq=False)
class Request:
    """A prompt, the tokens that came out of it so far, and how many of both have their KV computed.

        prompt_token_ids          output_token_ids
        |=========================|---------->
        |<- num_computed_tokens ->|      num_tokens

    A request only ever catches up: each step computes some of `num_tokens - num_computed_tokens`. The step that
    reaches the end of the known tokens samples one more.
    """

    request_id: str
    prompt_token_ids: list[int]
    sampling_params: SamplingParams = field(default_factory=SamplingParams)
    arrival_time: float = 0.0
    eos_token_id: int | None = None

    status: RequestStatus = RequestStatus.WAITING
    output_token_ids: list[int] = field(default_factory=list)
    num_computed_tokens: int = 0
    num_preemptions: int = 0

    def __post_init__(self) -> None:
        if not self.prompt_token_ids:
            raise EmptyPromptError(
                f"request {self.request_id!r} has an empty prompt (0 tokens, at least 1 needed): there is nothing "
                "to predict from; send some text, or the model's start token"
            )
        self.prompt_token_ids = list(self.prompt_token_ids)

    @property
    def num_prompt_tokens(self) -> int:
        return len(self.prompt_token_ids)

    @property
    def num_tokens(self) -> int:
        """Known tokens: the prompt and what was sampled so far."""
        return len(self.prompt_token_ids) + len(self.output_token_ids)

    @property
    def all_token_ids(self) -> list[int]:
        return self.prompt_token_ids + self.output_token_ids

    @property
    def num_new_tokens(self) -> int:
        """Known tokens whose KV is still to be computed."""
        return self.num_tokens - self.num_computed_tokens

    @property
    def finish_reason(self) -> str | None:
        return FINISH_REASON.get(self.status)

    def append_output(self, token_id: int, max_model_len: int) -> bool:
        """Take one sampled token; return True if it was the last. The order of the tests is vLLM's."""
        self.output_token_ids.append(token_id)
        params = self.sampling_params
        is_eos = token_id == self.eos_token_id and not params.ignore_eos
        if is_eos or token_id in params.stop_token_ids:
            self.status = RequestStatus.FINISHED_STOPPED
        elif self.num_tokens >= max_model_len or len(self.output_token_ids) >= params.max_tokens:
            self.status = RequestStatus.FINISHED_LENGTH_CAPPED
        return self.status.is_finished
