"""When requests come: arrival processes with a rate, and how evenly they keep to it. Knows no lengths. Chapter 12.

    regular   |  |  |  |  |  |  |  |  |        cv 0: gaps all alike
    Poisson   | ||   |    | |  | |    |        cv 1: independent of each other
    bursty    ||||||          |||||||          cv above 1: phases of many and of none

cv is the coefficient of variation of the gaps, their standard deviation over their mean. Two processes of one rate
bring as much work; they differ in how much of it comes at once.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from mini_vllm.errors import ConfigError
from mini_vllm.roofline.arguments import require_between, require_positive

LEAST_IN_A_BURST = 0.01  # fewer, and there is a hundred times more silence to draw than there are requests


class ArrivalProcess(Protocol):
    """Endless arrival times in seconds, in ascending order, drawn from `rng` one by one as they are asked for."""

    def times(self, rng: random.Random) -> Iterator[float]: ...


def _require_rate(rate: float) -> None:
    if not isinstance(rate, bool) and rate == 0:
        raise ConfigError("rate=0: nobody would ever come; give requests per second, or AtOnce() for all at 0 s")
    require_positive(rate, "rate")


@dataclass(frozen=True)
class AtOnce:
    """Everybody is there at 0 s: the offline case."""

    def times(self, rng: random.Random) -> Iterator[float]:
        while True:
            yield 0.0


@dataclass(frozen=True)
class Regular:
    """One request every 1 / rate seconds, the first at 0 s. rate: requests per second."""

    rate: float

    def __post_init__(self) -> None:
        _require_rate(self.rate)

    def times(self, rng: random.Random) -> Iterator[float]:
        count = 0
        while True:
            yield count / self.rate
            count += 1


@dataclass(frozen=True)
class Poisson:
    """Independent users: exponential gaps, cv 1. rate: requests per second."""

    rate: float

    def __post_init__(self) -> None:
        _require_rate(self.rate)

    def times(self, rng: random.Random) -> Iterator[float]:
        now = 0.0
        while True:
            now += rng.expovariate(self.rate)
            yield now


@dataclass(frozen=True)
class Gamma:
    """Gaps from a gamma distribution: below cv 1 more regular than Poisson, above it in clumps.

    rate: requests per second. cv: coefficient of variation of the gaps; 1 is Poisson.
    """

    rate: float
    cv: float

    def __post_init__(self) -> None:
        _require_rate(self.rate)
        # Beyond, a gap is now and then so long that no run reaches the rate; below, the gaps are all alike.
        require_between(self.cv, "cv", 0.001, 100)

    def times(self, rng: random.Random) -> Iterator[float]:
        shape = 1 / self.cv**2
        now = 0.0
        while True:
            now += rng.gammavariate(shape, 1 / (shape * self.rate))
            yield now


@dataclass(frozen=True)
class Bursty:
    """Phases of Poisson arrivals at `peak` times the rate, and between them phases of silence.

    rate: requests per second in the long run. peak: rate within a burst over `rate`, above 1. burst_s: mean length of a
    burst in seconds; the silences are long enough to keep the rate, on average (peak - 1) · burst_s.
    """

    rate: float
    peak: float = 5.0
    burst_s: float = 2.0

    def __post_init__(self) -> None:
        _require_rate(self.rate)
        require_positive(self.peak, "peak")
        require_positive(self.burst_s, "burst_s")
        if self.peak <= 1:
            raise ConfigError(f"peak={self.peak!r} must be above 1: a burst is denser than the average")
        if (in_a_burst := self.rate * self.peak * self.burst_s) < LEAST_IN_A_BURST:
            raise ConfigError(
                f"burst_s={self.burst_s!r}: with rate={self.rate!r} and peak={self.peak!r} a burst would bring "
                f"{in_a_burst:.2g} requests on average, and must bring at least {LEAST_IN_A_BURST}; make it longer"
            )

    def times(self, rng: random.Random) -> Iterator[float]:
        start = 0.0
        while True:
            end = start + rng.expovariate(1 / self.burst_s)
            now = start + rng.expovariate(self.rate * self.peak)
            while now < end:
                yield now
                now += rng.expovariate(self.rate * self.peak)
            start = end + rng.expovariate(1 / (self.burst_s * (self.peak - 1)))
