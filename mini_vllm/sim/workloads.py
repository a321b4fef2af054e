"""What users send: requests with arrival time, lengths and content. Knows no server and no scheduler. Chapter 12.

A workload is a recipe; `start()` begins one run of it. The open workloads of this file bring requests at their times,
however the server fares; closed ones, where the next request waits for an answer, are in `closed_workloads`.
"""

import itertools
import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from mini_vllm.errors import ConfigError, InvalidRequestError
from mini_vllm.roofline.arguments import require_method, require_positive, require_whole
from mini_vllm.sim.arrivals import ArrivalProcess
from mini_vllm.sim.lengths import MOST_TOKENS, Fixed, Length, Lengths

# Simulated models say this token and nothing else, so a prompt that quotes an answer can be written down in advance.
OUTPUT_TOKEN = 0
# Content is a token id as well, so it is 0 or more; from here on nobody's content lies but a prompt's own.
OWN_CONTENT = 2**63
LAST_ARRIVAL_S = 1e9  # 30 years; later, seconds as a float do not tell microseconds apart

Segments = tuple[tuple[int, int], ...]


class Arrival(NamedTuple):
    """One request: when it comes, how long its prompt is, and how many tokens it will emit.

    segments: what the prompt consists of, for prefix caching: (content, tokens) one after the other. Prompts that begin
        with the same segments begin with the same tokens. Content is a number from 1 to 2**63 - 1, or OUTPUT_TOKEN for
        an earlier answer; no segments: content that nobody else has.
    session: which conversation or user it belongs to, for closed workloads.
    """

    arrived_s: float
    prompt_tokens: int
    output_tokens: int
    priority: int = 0
    segments: Segments = ()
    session: int = 0


def require_sound(arrival: Any, row: int, earliest_s: float) -> None:
    """Raise InvalidRequestError, with the row and the reason, unless a server could be sent this."""
    reason = None
    if not isinstance(arrival, Arrival):
        given = f"the class {arrival.__name__}" if isinstance(arrival, type) else repr(arrival)
        reason = f"{given} is no Arrival; give Arrival(arrived_s, prompt_tokens, output_tokens)"
    elif not isinstance(arrival.arrived_s, float | int) or not 0 <= arrival.arrived_s <= LAST_ARRIVAL_S:
        reason = f"arrived_s={arrival.arrived_s!r} must be a number of seconds from 0 to {LAST_ARRIVAL_S:g}"
    elif arrival.arrived_s < earliest_s:
        reason = f"arrived_s={arrival.arrived_s!r} lies before {earliest_s!r}, the row above; sort by arrival time"
    else:
        for name in ("prompt_tokens", "output_tokens"):
            value = getattr(arrival, name)
            if type(value) is not int or not 1 <= value <= MOST_TOKENS:
                reason = f"{name}={value!r} must be a whole number from 1 to {MOST_TOKENS:,}"
        if arrival.segments and not reason:
            reason = _why_unsound(arrival.segments, arrival.prompt_tokens)
    if reason:
        raise InvalidRequestError(f"request {row} of the workload: {reason}")


def _why_unsound(segments: Any, prompt_tokens: int) -> str | None:
    """What is wrong with the segments of a prompt, if anything is."""
    if not isinstance(segments, tuple | list):
        return f"segments={segments!r} must be pairs (content, tokens)"
    for pair in segments:
        if not isinstance(pair, tuple | list) or len(pair) != 2 or any(type(number) is not int for number in pair):
            return f"the segment {pair!r} must be a pair of whole numbers, (content, tokens)"
        if not (0 <= pair[0] < OWN_CONTENT and pair[1] >= 1):
            return f"the segment {pair!r} must have content from 0 to {OWN_CONTENT - 1} and at least 1 token"
    held = sum(tokens for _, tokens in segments)
    return None if held == prompt_tokens else f"its segments hold {held} of {prompt_tokens} prompt tokens"


def prompt_token_ids(arrival: Arrival, row: int) -> list[int]:
    """The prompt of the `row`-th request of a run, token by token."""
    if not arrival.segments:
        return [OWN_CONTENT + row] * arrival.prompt_tokens
    token_ids: list[int] = []
    for content, tokens in arrival.segments:
        token_ids += [content] * tokens
    return token_ids


class Source:
    """One run of a workload. arrivals: what comes by itself, in order of time."""

    def __init__(self, arrivals: Iterable[Arrival]):
        self.arrivals = iter(arrivals)

    def after(self, done: Arrival, now_s: float) -> Arrival | None:
        """What the end of `done` at `now_s` brings about; not before `now_s`."""
        return None


class Startable(Protocol):
    def start(self) -> Source: ...


def start(workload: Startable | Iterable[Arrival]) -> Source:
    """Begin a run of a workload, or of any iterable of Arrivals."""
    if isinstance(workload, type):
        raise ConfigError(f"the workload is the class {workload.__name__}; give an instance of it")
    if hasattr(workload, "start"):
        return workload.start()
    if not isinstance(workload, Iterable):
        raise ConfigError(f"the workload is {workload!r}; give a Workload, a trace, or a list of Arrivals")
    return Source(workload)


@dataclass(frozen=True)
class Workload:
    """`num_requests` requests with their own arrival times: an open workload.

    Arrival, prompt and output are drawn in turn from `random.Random(seed)`. The rate only stretches the arrivals: with
    the same seed, two rates bring the same requests.
    """

    arrivals: ArrivalProcess
    lengths: Lengths
    num_requests: int
    seed: int = 0

    def __post_init__(self) -> None:
        require_method(self.arrivals, "arrivals", "times", "Poisson(rate=2)")
        require_method(self.lengths, "lengths", "pairs", "Independent(Fixed(500), Fixed(100))")
        require_whole(self.num_requests, "num_requests", least=1)
        require_whole(self.seed, "seed")

    def start(self) -> Source:
        return Source(self._draw())

    def _draw(self) -> Iterator[Arrival]:
        rng = random.Random(self.seed)
        times, pairs = self.arrivals.times(rng), self.lengths.pairs(rng)
        for _ in range(self.num_requests):
            arrived_s = next(times)
            yield Arrival(arrived_s, *next(pairs))


@dataclass(frozen=True)
class SharedPrefixes:
    """An open workload whose prompts start with one of `num_prefixes` common texts: system prompts, documents.

    skew: how unevenly they are asked for: the k-th most popular 1 / k^skew times as often as the first; 0 is evenly.
    lengths: of the rest of the prompt, which nobody shares, and of the output.
    """

    arrivals: ArrivalProcess
    lengths: Lengths
    num_requests: int
    num_prefixes: int = 10
    prefix: Length = field(default_factory=lambda: Fixed(512))
    skew: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        require_method(self.arrivals, "arrivals", "times", "Poisson(rate=2)")
        require_method(self.lengths, "lengths", "pairs", "Independent(Fixed(500), Fixed(100))")
        require_method(self.prefix, "prefix", "draw", "Fixed(512)")
        require_whole(self.num_requests, "num_requests", least=1)
        require_whole(self.num_prefixes, "num_prefixes", least=1)
        require_whole(self.seed, "seed")
        if self.skew:
            require_positive(self.skew, "skew")

    def start(self) -> Source:
        return Source(self._draw())

    def _draw(self) -> Iterator[Arrival]:
        rng = random.Random(self.seed)
        prefixes = [(k, self.prefix.draw(rng)) for k in range(1, self.num_prefixes + 1)]
        popularity = list(itertools.accumulate(k**-self.skew for k, _ in prefixes))
        times, pairs = self.arrivals.times(rng), self.lengths.pairs(rng)
        for row in range(self.num_requests):
            arrived_s = next(times)
            content, shared = rng.choices(prefixes, cum_weights=popularity)[0]
            own, output = next(pairs)
            segments = ((content, shared), (self.num_prefixes + 1 + row, own))
            yield Arrival(arrived_s, shared + own, output, segments=segments)
