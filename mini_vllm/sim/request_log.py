"""What happened to each request of a run: timestamps and counts. Knows no scheduler; computes no metric. Chapter 12.

The symbols are those of the page on metrics; everything that is reported later derives from them:

        arrived        scheduled     first token              last token
    ------|================|==============|----|-----|----|-------|------>
              waiting           prefill        one gap a token
"""

import math
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

NAN = math.nan


class RequestRow(NamedTuple):
    """One request. Times in seconds since the run began, NaN for what did not happen. finished: 1 or 0.

    output_tokens: emitted, not asked for. recomputed_tokens: computed although they had been computed before.
    discarded_tokens: computed tokens whose KV a preemption threw away. hit_tokens: of the prompt, found in the prefix
    cache when it was first scheduled. longest_gap_s: the longest time between two of its tokens.
    """

    arrived_s: float
    scheduled_s: float
    first_token_s: float
    last_token_s: float
    finished: int
    prompt_tokens: int
    output_tokens: int
    preemptions: int
    recomputed_tokens: int
    discarded_tokens: int
    hit_tokens: int
    longest_gap_s: float


TYPECODES = dict(zip(RequestRow._fields, "ddddBiiiiiid", strict=True))


@dataclass
class Live:
    """A request in the server: its row, and how far it is."""

    __slots__ = (
        "computed",
        "discarded_tokens",
        "first_token_s",
        "furthest",
        "hit_tokens",
        "known",
        "last_token_s",
        "longest_gap_s",
        "measured",
        "preemptions",
        "prompt_tokens",
        "recomputed_tokens",
        "req_id",
        "row",
        "scheduled_s",
        "times",
    )
    req_id: str
    row: int
    prompt_tokens: int
    measured: bool  # it arrived after the warm-up

    def __post_init__(self) -> None:
        self.computed = 0  # tokens whose KV is there
        self.known = self.prompt_tokens  # prompt and emitted tokens
        self.furthest = 0  # tokens whose KV was there once, before an eviction
        self.scheduled_s = self.first_token_s = self.last_token_s = NAN
        self.preemptions = self.recomputed_tokens = self.discarded_tokens = self.hit_tokens = 0
        self.longest_gap_s = 0.0
        self.times: array | None = None  # of all its tokens, if somebody asked for them


class RequestLog:
    """One row a request, in the order of arrival. Kept in arrays: 65 bytes a request."""

    def __init__(self) -> None:
        self._columns: dict[str, array] = {name: array(code) for name, code in TYPECODES.items()}

    def __len__(self) -> int:
        return len(self._columns["arrived_s"])

    def __getitem__(self, row: int) -> RequestRow:
        return RequestRow._make(column[row] for column in self._columns.values())

    def __iter__(self) -> Iterator[RequestRow]:
        return map(RequestRow._make, zip(*self._columns.values(), strict=True))

    def __eq__(self, other: object) -> bool:
        # By bytes: NaN is not equal to itself, and here it means "did not happen" in both.
        return isinstance(other, RequestLog) and all(
            column.tobytes() == other._columns[name].tobytes() for name, column in self._columns.items()
        )

    def column(self, name: str) -> array:
        """All rows of one field of `RequestRow`."""
        return self._columns[name]

    def add(self, arrived_s: float, prompt_tokens: int) -> int:
        """A request has arrived; returns its row."""
        blank = RequestRow(arrived_s, NAN, NAN, NAN, 0, prompt_tokens, 0, 0, 0, 0, 0, 0.0)
        for column, value in zip(self._columns.values(), blank, strict=True):
            column.append(value)
        return len(self) - 1

    def write(self, live: Live, finished: bool) -> None:
        """Take over what is known of a request: at its end, or at the end of the run."""
        columns, row = self._columns, live.row
        columns["finished"][row] = finished
        columns["output_tokens"][row] = live.known - live.prompt_tokens
        for name in _COPIED:
            columns[name][row] = getattr(live, name)


_COPIED = (
    "scheduled_s",
    "first_token_s",
    "last_token_s",
    "preemptions",
    "recomputed_tokens",
    "discarded_tokens",
    "hit_tokens",
    "longest_gap_s",
)
