"""How long a simulated step takes, and when the next one may start. Knows work in tokens; no scheduler. Chapter 12.

A clock has two questions to answer: `after(now, work)`, the end of a step that starts `now`; and `wake(arrival_s)`,
the start of the first step after a rest that an arrival ends. All times are seconds since the run began.
"""

import math
from typing import Any, Protocol

from mini_vllm.errors import ConfigError
from mini_vllm.roofline.arguments import require_between

INF = math.inf
# A step in which nothing can be scheduled: the server looks again after this long.
IDLE_STEP_S = 1e-3


class StepLoad:
    """What one step computes, in tokens; the fields of `roofline.StepWork`, to be filled in step by step.

    n_prefill: tokens of prompts, and of what is computed again after an eviction. n_decode: one a decoding request.
    kv_tokens: tokens whose KV is read or written. attention_pairs: query-key pairs. n_seqs: requests.
    n_sampled: requests that get a token.
    """

    __slots__ = ("attention_pairs", "kv_tokens", "n_decode", "n_prefill", "n_sampled", "n_seqs")

    def __init__(
        self,
        n_prefill: int = 0,
        n_decode: int = 0,
        kv_tokens: int = 0,
        attention_pairs: int = 0,
        n_seqs: int = 0,
        n_sampled: int = 0,
    ):
        self.n_prefill = n_prefill
        self.n_decode = n_decode
        self.kv_tokens = kv_tokens
        self.attention_pairs = attention_pairs
        self.n_seqs = n_seqs
        self.n_sampled = n_sampled

    @property
    def new_tokens(self) -> int:
        return self.n_prefill + self.n_decode


class Clock(Protocol):
    def after(self, now: float, work: StepLoad) -> float:
        """The end of a step that starts at `now` and does `work`; later than `now`."""

    def wake(self, arrival_s: float) -> float:
        """When the server, at rest, starts its next step for somebody who arrives at `arrival_s`."""


class ModelClock:
    """Steps last as long as a step-time model says; a server at rest starts at once.

    model: anything with `step_ms(work)` in milliseconds, such as `roofline.StepTimeModel`.
    """

    def __init__(self, model: Any):
        if isinstance(model, type) or not callable(getattr(model, "step_ms", None)):
            raise ConfigError(
                f"the step-time model is {model!r}; give an instance that has step_ms(work), such as "
                "StepTimeModel(costs, hardware, constants)"
            )
        self.model = model

    def after(self, now: float, work: StepLoad) -> float:
        lasts_s = self.model.step_ms(work) / 1e3
        end_s = now + (lasts_s if work.n_seqs else max(IDLE_STEP_S, lasts_s))
        if not now < end_s < INF:
            raise ConfigError(
                f"{type(self.model).__name__}.step_ms() says {1e3 * lasts_s:g} ms for the step at {now:g} s; a step "
                "takes some time, and ends"
            )
        return end_s

    def wake(self, arrival_s: float) -> float:
        return arrival_s


class FixedClock:
    """Every step lasts `step_s` seconds, whatever it does, on a grid: step k starts at k · step_s, busy or not."""

    def __init__(self, step_s: float):
        require_between(step_s, "step_s", 1e-6, 1e6)
        self.step_s = step_s

    def after(self, now: float, work: StepLoad) -> float:
        # Counted, not added up: after a million steps a sum of 0.03 is off by more than an arrival can be early.
        return (round(now / self.step_s) + 1) * self.step_s

    def wake(self, arrival_s: float) -> float:
        step = math.ceil(arrival_s / self.step_s)
        # The division is rounded, so the neighbour on either side may be the right one.
        if (step - 1) * self.step_s >= arrival_s:
            step -= 1
        return step * self.step_s if step * self.step_s >= arrival_s else (step + 1) * self.step_s
