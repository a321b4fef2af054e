"""The time to first token taken apart: company, others, prefill. Knows timestamps; knows no scheduler. Chapter 1."""

import bisect
import itertools
import math
from typing import NamedTuple

from mini_vllm.errors import ConfigError
from mini_vllm.sim.result import SimResult


class TTFTParts(NamedTuple):
    """One request, in seconds; the three add up to its TTFT.

          arrived                  scheduled     first token
        ------|=======|-----------|======|============|------>
               others    company   others   prefill
               in batch  nobody    in batch

    others_s: it waited while somebody was in the batch. company_s: it waited while nobody was, for the batch to fill.
    prefill_s: from the start of its own first step to the end of the step that gave its first token.
    """

    company_s: float
    others_s: float
    prefill_s: float


def ttft_parts(result: SimResult) -> list[TTFTParts]:
    """Of every request, in order of arrival. Raises ConfigError if one never got a token, or never got its last."""
    if unfinished := [row for row, finished in enumerate(result.log.column("finished")) if not finished]:
        raise ConfigError(f"request {unfinished[0]} of the run is unfinished; play it to its end (no until_s)")
    starts, ends = _busy_spans(result)
    before = [0.0, *itertools.accumulate(end - start for start, end in zip(starts, ends, strict=True))]

    def busy_s(time: float) -> float:
        """Seconds until `time` in which somebody was in the batch."""
        span = bisect.bisect_right(starts, time)
        return before[span] - max(0.0, ends[span - 1] - time) if span else 0.0

    parts = []
    for row in result.log:
        others_s = busy_s(row.scheduled_s) - busy_s(row.arrived_s)
        company_s = max(0.0, row.scheduled_s - row.arrived_s - others_s)
        parts.append(TTFTParts(company_s, others_s, row.first_token_s - row.scheduled_s))
    return parts


def mean_parts(parts: list[TTFTParts]) -> TTFTParts:
    """The mean of each part."""
    return TTFTParts(*(math.fsum(column) / len(parts) for column in zip(*parts, strict=True)))


def _busy_spans(result: SimResult) -> tuple[list[float], list[float]]:
    """Starts and ends of the times in which somebody was in the batch, in order, none touching the next."""
    starts: list[float] = []
    ends: list[float] = []
    for start, end in sorted((row.scheduled_s, row.last_token_s) for row in result.log):
        if ends and start <= ends[-1]:
            ends[-1] = max(ends[-1], end)
        else:
            starts.append(start)
            ends.append(end)
    return starts, ends
