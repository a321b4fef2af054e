"""Users who wait for an answer before they send again: a slow server is asked less. Knows no server. Chapter 12."""

import itertools
import random
from collections.abc import Iterator
from dataclasses import dataclass, field

from mini_vllm.roofline.arguments import require_method, require_positive, require_whole
from mini_vllm.sim.arrivals import ArrivalProcess
from mini_vllm.sim.lengths import Fixed, Length, Lengths
from mini_vllm.sim.workloads import OUTPUT_TOKEN, Arrival, Segments, Source


@dataclass(frozen=True)
class ClosedLoop:
    """`users` users; each sends, waits for the answer, thinks, and sends again, until `num_requests` are sent.

    think_s: mean of the exponential pause between an answer and the next request; 0 is none, as in
    `vllm bench serve --max-concurrency`.
    """

    users: int
    lengths: Lengths
    num_requests: int
    think_s: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        require_whole(self.users, "users", least=1)
        require_method(self.lengths, "lengths", "pairs", "Independent(Fixed(500), Fixed(100))")
        require_whole(self.num_requests, "num_requests", least=1)
        require_whole(self.seed, "seed")
        if self.think_s:
            require_positive(self.think_s, "think_s")

    def start(self) -> Source:
        return _ClosedSource(self)


class _ClosedSource(Source):
    def __init__(self, loop: ClosedLoop):
        self._rng = random.Random(loop.seed)
        self._rows = itertools.islice(loop.lengths.pairs(self._rng), loop.num_requests)
        self._think_s = loop.think_s
        first = itertools.islice(self._rows, loop.users)
        super().__init__([Arrival(0.0, *pair, session=user) for user, pair in enumerate(first)])

    def after(self, done: Arrival, now_s: float) -> Arrival | None:
        pair = next(self._rows, None)
        if pair is None:
            return None
        pause = self._rng.expovariate(1 / self._think_s) if self._think_s else 0.0
        return Arrival(now_s + pause, *pair, session=done.session)


@dataclass(frozen=True)
class Conversations:
    """Talks of several turns: each prompt is the whole talk so far and one new message.

    arrivals: when talks begin. turns: messages of a talk. lengths: of one message and of its answer. think_s: mean
    pause before the next message. system_tokens: a system prompt that all talks begin with. most_tokens: a talk ends
    before prompt and answer together would exceed it.

    What is said in a talk, and how long everybody thinks, is the same whatever the server.
    """

    arrivals: ArrivalProcess
    lengths: Lengths
    num_sessions: int
    turns: Length = field(default_factory=lambda: Fixed(4))
    think_s: float = 10.0
    system_tokens: int = 0
    most_tokens: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        require_method(self.arrivals, "arrivals", "times", "Poisson(rate=2)")
        require_method(self.lengths, "lengths", "pairs", "Independent(Fixed(500), Fixed(100))")
        require_method(self.turns, "turns", "draw", "Fixed(4)")
        require_whole(self.num_sessions, "num_sessions", least=1)
        require_whole(self.system_tokens, "system_tokens")
        require_whole(self.seed, "seed")
        if self.think_s:
            require_positive(self.think_s, "think_s")
        if self.most_tokens is not None:
            require_whole(self.most_tokens, "most_tokens", least=2)

    def start(self) -> Source:
        return _ConversationSource(self)


SYSTEM_PROMPT = 1


class _ConversationSource(Source):
    def __init__(self, talks: Conversations):
        self._talks = talks
        self._to_come: dict[int, list[tuple[float, int, int, int]]] = {}  # pause, content, message, answer; next last
        super().__init__(self._begin())

    def _begin(self) -> Iterator[Arrival]:
        talks = self._talks
        rng = random.Random(talks.seed)
        times, pairs = talks.arrivals.times(rng), talks.lengths.pairs(rng)
        contents = itertools.count(SYSTEM_PROMPT + 1)
        for session in range(talks.num_sessions):
            arrived_s = next(times)
            script = []
            for turn in range(talks.turns.draw(rng)):
                pause = rng.expovariate(1 / talks.think_s) if turn and talks.think_s else 0.0
                script.append((pause, next(contents), *next(pairs)))
            self._to_come[session] = script[::-1]
            opening = ((SYSTEM_PROMPT, talks.system_tokens),) if talks.system_tokens else ()
            if message := self._next_message(session, arrived_s, opening):
                yield message

    def after(self, done: Arrival, now_s: float) -> Arrival | None:
        talk = (*done.segments, (OUTPUT_TOKEN, done.output_tokens))
        return self._next_message(done.session, now_s, talk)

    def _next_message(self, session: int, now_s: float, talk: Segments) -> Arrival | None:
        if script := self._to_come[session]:
            pause, content, own, output = script.pop()
            prompt = sum(tokens for _, tokens in talk) + own
            if self._talks.most_tokens is None or prompt + output <= self._talks.most_tokens:
                segments = (*talk, (content, own))
                return Arrival(now_s + pause, prompt, output, segments=segments, session=session)
        del self._to_come[session]
        return None
