"""How long prompts and outputs are: distributions with their mean and their spread. Knows no arrival. Chapter 12.

A lesson about variance needs the mean held fixed, so both are parameters here: `Lognormal(500, cv=0)` and
`Lognormal(500, cv=2)` bring the same load.
"""

import itertools
import math
import random
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from mini_vllm.errors import ConfigError
from mini_vllm.roofline.arguments import require_between, require_method, require_whole

MOST_TOKENS = 10**7  # no model reads a longer prompt; a longer one is a slip, and would fill the memory
MOST_SPREAD = 100  # a cv beyond it is one, too: no run is long enough to come near the mean


class Length(Protocol):
    """One number of tokens, at least 1, drawn from `rng`."""

    def draw(self, rng: random.Random) -> int: ...


@dataclass(frozen=True)
class Fixed:
    """Always `tokens`."""

    tokens: int

    def __post_init__(self) -> None:
        require_whole(self.tokens, "tokens", least=1)

    def draw(self, rng: random.Random) -> int:
        return self.tokens


@dataclass(frozen=True)
class Uniform:
    """Every number from `low` to `high` is as likely, both included."""

    low: int
    high: int

    def __post_init__(self) -> None:
        require_whole(self.low, "low", least=1)
        require_whole(self.high, "high", least=self.low)

    @classmethod
    def around(cls, mean: int, ratio: float) -> "Uniform":
        """From mean · (1 - ratio) to mean · (1 + ratio), as vLLM's random data set with --random-range-ratio."""
        require_between(mean, "mean", 1, MOST_TOKENS)
        if not isinstance(ratio, int | float) or not 0 <= ratio < 1:
            raise ConfigError(f"ratio={ratio!r} must be at least 0 and below 1: it is the half width over the mean")
        return cls(max(1, math.floor(mean * (1 - ratio))), math.ceil(mean * (1 + ratio)))

    def draw(self, rng: random.Random) -> int:
        return rng.randint(self.low, self.high)


@dataclass(frozen=True)
class Lognormal:
    """Many short ones and a long tail, as in real traffic, around a given mean.

    mean: tokens. cv: standard deviation over mean; 0 is fixed. Draws are rounded up or down at random so that the mean
    is kept; only a share that would fall below 1 token is lifted to 1, which matters for means of a few tokens.
    """

    mean: float
    cv: float

    def __post_init__(self) -> None:
        require_between(self.mean, "mean", 1, MOST_TOKENS)
        require_between(self.cv, "cv", 0, MOST_SPREAD)

    def draw(self, rng: random.Random) -> int:
        sigma = math.sqrt(math.log1p(self.cv**2))
        value = self.mean * math.exp(rng.gauss(0, sigma) - sigma**2 / 2)
        return max(1, math.floor(value + rng.random()))


def exact_sample(mean: float, cv: float, count: int, seed: int = 0) -> list[int]:
    """`count` lognormal lengths whose own mean and spread are those asked for, not only in the long run.

    Of 100 draws from `Lognormal(1000, cv=2)` the mean is easily 200 off, and a comparison of two spreads compares two
    loads. Here the mean is exact and the spread is but for rounding, unless some must be lifted to 1 token.
    """
    wanted = Lognormal(mean, cv)
    require_whole(count, "count", least=2)
    require_whole(seed, "seed")
    if wanted.cv >= math.sqrt(count - 1):
        raise ConfigError(f"cv={cv} is more than {count} numbers can have, {math.sqrt(count - 1):.3g}; ask for more")
    rng = random.Random(seed)
    logs = [rng.gauss(0, 1) for _ in range(count)]
    low, high = 0.0, 1.0
    while _cv([math.exp(high * x) for x in logs]) < wanted.cv:
        high *= 2
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if _cv([math.exp(middle * x) for x in logs]) < wanted.cv else (low, middle)
    sizes = [math.exp(high * x) for x in logs]
    # Rounded so that the sum stays: the borders of the pieces are rounded, not the pieces.
    scale = mean * count / math.fsum(sizes)
    borders = [round(scale * border) for border in itertools.accumulate(sizes, initial=0.0)]
    return [max(1, after - before) for before, after in itertools.pairwise(borders)]


def _cv(values: list[float]) -> float:
    return statistics.stdev(values) / statistics.fmean(values)


class Lengths(Protocol):
    """Endless pairs (prompt tokens, output tokens), drawn from `rng` one by one as they are asked for."""

    def pairs(self, rng: random.Random) -> Iterator[tuple[int, int]]: ...


@dataclass(frozen=True)
class Independent:
    """Prompt and output drawn independently of each other, the prompt first."""

    prompt: Length
    output: Length

    def __post_init__(self) -> None:
        require_method(self.prompt, "prompt", "draw", "Fixed(100)")
        require_method(self.output, "output", "draw", "Fixed(100)")

    def pairs(self, rng: random.Random) -> Iterator[tuple[int, int]]:
        while True:
            yield self.prompt.draw(rng), self.output.draw(rng)


@dataclass(frozen=True)
class Recorded:
    """Pairs of a trace, in its order; after the last the first again."""

    rows: Sequence[tuple[int, int]]

    def __post_init__(self) -> None:
        if not self.rows:
            raise ConfigError("rows is empty: there is no length to draw from")
        for place, row in enumerate(self.rows):
            if not isinstance(row, tuple | list) or len(row) != 2:
                raise ConfigError(f"rows[{place}] is {row!r}; give pairs (prompt tokens, output tokens)")
            require_whole(row[0], f"prompt tokens of rows[{place}]", least=1)
            require_whole(row[1], f"output tokens of rows[{place}]", least=1)

    def pairs(self, rng: random.Random) -> Iterator[tuple[int, int]]:
        while True:
            yield from self.rows


@dataclass(frozen=True)
class Fitted:
    """Pairs of `lengths`; those beyond `most_tokens` together are shortened, prompt and output in proportion.

    As in Vidur: so a trace of a model with 8k tokens can be played to one with 4k, and no request is dropped.
    """

    lengths: Lengths
    most_tokens: int

    def __post_init__(self) -> None:
        require_method(self.lengths, "lengths", "pairs", "Independent(Fixed(500), Fixed(100))")
        require_whole(self.most_tokens, "most_tokens", least=2)

    def pairs(self, rng: random.Random) -> Iterator[tuple[int, int]]:
        for prompt, output in self.lengths.pairs(rng):
            yield fit(prompt, output, self.most_tokens)


def fit(prompt: int, output: int, most_tokens: int) -> tuple[int, int]:
    """Both lengths in their proportion, at least 1 each, together at most `most_tokens`."""
    if prompt + output <= most_tokens:
        return prompt, output
    fitted = max(1, min(most_tokens - 1, prompt * most_tokens // (prompt + output)))
    return fitted, most_tokens - fitted
