"""How the tokens of one request are chosen and when it stops. Knows no request and no model. Chapters 4 and 14."""

import math
from dataclasses import dataclass, field
from typing import Any

from mini_vllm.errors import InvalidSamplingParamsError

MOST_STOP_STRINGS, LONGEST_STOP_STRING = 16, 1000  # of one request: each is looked for at every token
MOST_LOGPROBS = 20
MOST_SEQUENCES = 128
_LARGEST_SEED = 2**63 - 1
# field: (least, most, is the least itself allowed, what it is for)
_RANGES = {
    "temperature": (0.0, 100.0, True, "0 takes the most likely token"),
    "top_p": (0.0, 1.0, False, "1 keeps every token"),
    "min_p": (0.0, 1.0, True, "0 keeps every token"),
    "repetition_penalty": (0.0, 100.0, False, "1 changes nothing"),
    "presence_penalty": (-2.0, 2.0, True, "0 changes nothing"),
    "frequency_penalty": (-2.0, 2.0, True, "0 changes nothing"),
}
_WHOLE = {
    "max_tokens": (1, None),
    "min_tokens": (0, None),
    "top_k": (-1, None),
    "n": (1, MOST_SEQUENCES),
    "seed": (-_LARGEST_SEED - 1, _LARGEST_SEED),
    "logprobs": (0, MOST_LOGPROBS),
}


@dataclass(frozen=True)
class SamplingParams:
    """Per-request sampling parameters; names, order and meaning as in vLLM, except that greedy is the default.

    max_tokens: new tokens at most, >= 1. min_tokens: the end token and stop tokens cannot come before so many.
    ignore_eos: go on after the end-of-sequence token (benchmarks, schedules with known lengths).
    stop_token_ids: token ids that end the request; the stop token itself is kept in `token_ids`.
    stop: texts that end the request, also where one begins in one token and ends in another. Nothing of it is in the
        text, nor ever streamed, unless include_stop_str_in_output. It is not looked for in the first min_tokens.
    temperature: the logits are divided by it; 0 is greedy (vLLM's default is 1.0).
    top_k: only the k most likely (0 or -1: all). top_p: only the likeliest that together reach p.
        min_p: only those at least min_p times as likely as the likeliest. Applied as min_p, top_k, top_p.
    repetition_penalty: logits of all tokens that were there, prompt included, divided (if negative: multiplied) by it.
    presence_penalty, frequency_penalty: subtracted from the logits of tokens of the output, once, or once a time.
    seed: the random numbers of this request depend on it and on nothing else: not on who is in the batch.
    logprobs: also give log-probabilities (of the model, before penalties and temperature) of so many likeliest tokens
        and of the one that was taken; None gives none.
    n: so many answers to one prompt, each with random numbers of its own.
    """

    max_tokens: int = 16
    ignore_eos: bool = False
    stop_token_ids: tuple[int, ...] = field(default=())
    min_tokens: int = 0
    stop: tuple[str, ...] = field(default=())
    include_stop_str_in_output: bool = False
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    seed: int | None = None
    logprobs: int | None = None
    n: int = 1

    def __post_init__(self) -> None:
        for name, (least, most) in _WHOLE.items():
            self._check_whole(name, least, most)
        for name, (low, high, is_low_allowed, meaning) in _RANGES.items():
            self._check_number(name, low, high, is_low_allowed, meaning)
        if self.min_tokens > self.max_tokens:
            raise InvalidSamplingParamsError(
                f"min_tokens={self.min_tokens} is above max_tokens={self.max_tokens}; lower it, or raise max_tokens"
            )
        if isinstance(self.stop_token_ids, int | str):
            raise InvalidSamplingParamsError(
                f"stop_token_ids={self.stop_token_ids!r} is no list of token ids; give e.g. [2]"
            )
        object.__setattr__(self, "stop_token_ids", tuple(self.stop_token_ids))
        object.__setattr__(self, "stop", self._checked_stop())

    @property
    def is_greedy(self) -> bool:
        return self.temperature == 0.0

    @property
    def has_penalties(self) -> bool:
        return (self.repetition_penalty, self.presence_penalty, self.frequency_penalty) != (1.0, 0.0, 0.0)

    def _check_whole(self, name: str, least: int, most: int | None) -> None:
        value = getattr(self, name)
        if value is None and name in ("seed", "logprobs"):
            return
        # bool is an int in Python; max_tokens=True is a slip, not a length.
        if not isinstance(value, int) or isinstance(value, bool):
            raise InvalidSamplingParamsError(f"{name}={value!r} is not a whole number; give an int of at least {least}")
        if value < least and name == "max_tokens":
            raise InvalidSamplingParamsError(
                f"max_tokens={value} is below the least possible, 1: a request that may emit nothing "
                "needs no engine; count the prompt with llm.tokenizer.encode(...) if that is what you are after"
            )
        if value < least or (most is not None and value > most):
            bounds = f"at least {least}" if most is None else f"from {least} to {most}"
            raise InvalidSamplingParamsError(f"{name}={value} is out of range; give a whole number {bounds}")

    def _check_number(self, name: str, low: float, high: float, is_low_allowed: bool, meaning: str) -> None:
        value: Any = getattr(self, name)
        is_number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
        if not is_number or not low <= value <= high or (value == low and not is_low_allowed):
            bounds = f"from {low:g} to {high:g}" if is_low_allowed else f"above {low:g} and at most {high:g}"
            raise InvalidSamplingParamsError(f"{name}={value!r} is out of range; give a number {bounds} ({meaning})")

    def _checked_stop(self) -> tuple[str, ...]:
        stop = (self.stop,) if isinstance(self.stop, str) else self.stop
        try:
            stop = tuple(stop)
        except TypeError:
            raise InvalidSamplingParamsError(f"stop={self.stop!r} is no text and no list of texts") from None
        if len(stop) > MOST_STOP_STRINGS:
            raise InvalidSamplingParamsError(
                f"stop holds {len(stop)} texts; at most {MOST_STOP_STRINGS} are looked for"
            )
        for text in stop:
            if not isinstance(text, str) or not 1 <= len(text) <= LONGEST_STOP_STRING:
                shown = repr(text) if len(repr(text)) <= 40 else f"{repr(text)[:37]}…"
                raise InvalidSamplingParamsError(
                    f"stop holds {shown}; each must be a text of 1 to {LONGEST_STOP_STRING} characters"
                )
        return stop
