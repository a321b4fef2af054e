"""How the tokens of one request are chosen and when it stops. Knows no request and no model. Chapters 4 and 14."""

from dataclasses import dataclass, field

from mini_vllm.errors import InvalidSamplingParamsError


@dataclass(frozen=True)
class SamplingParams:
    """Per-request sampling parameters; names as in vLLM. Sampling is greedy in this version.

    max_tokens: new tokens at most, >= 1.
    ignore_eos: go on after the end-of-sequence token (benchmarks, schedules with known lengths).
    stop_token_ids: token ids that end the request; the stop token itself is kept in the output.
    """

    max_tokens: int = 16
    ignore_eos: bool = False
    stop_token_ids: tuple[int, ...] = field(default=())

    def __post_init__(self) -> None:
        # bool is an int in Python; max_tokens=True is a slip, not a length.
        if not isinstance(self.max_tokens, int) or isinstance(self.max_tokens, bool):
            raise InvalidSamplingParamsError(
                f"max_tokens={self.max_tokens!r} is not a whole number; give an int of at least 1"
            )
        if self.max_tokens < 1:
            raise InvalidSamplingParamsError(
                f"max_tokens={self.max_tokens} is below the least possible, 1: a request that may emit nothing "
                "needs no engine; count the prompt with llm.tokenizer.encode(...) if that is what you are after"
            )
        if isinstance(self.stop_token_ids, int | str):
            raise InvalidSamplingParamsError(
                f"stop_token_ids={self.stop_token_ids!r} is no list of token ids; give e.g. [2]"
            )
        object.__setattr__(self, "stop_token_ids", tuple(self.stop_token_ids))
