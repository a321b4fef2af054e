"""Latency, throughput, waste: every metric, by definition, from timestamps. Knows no scheduler. Chapter 12.

The symbols and the definitions are on the page "Metrics" (book/metrics.md), in the same order.

Nobody who is still unserved when a run is cut is left out: what has not come counts as infinitely late, so a percentile
that falls on it is infinite, and no average of the lucky ones is shown in its place.
"""

import bisect
import itertools
import math
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

from mini_vllm.errors import ConfigError
from mini_vllm.roofline.arguments import require_instance, require_positive
from mini_vllm.sim.request_log import RequestRow
from mini_vllm.sim.result import SimResult

INF, NAN = math.inf, math.nan


def percentile(ascending: Sequence[float], percent: float) -> float:
    """The smallest of the values, given in ascending order, that at least `percent` per cent of them do not exceed."""
    if not 0 < percent <= 100:
        raise ConfigError(f"percentile {percent!r} must be above 0 and at most 100")
    return ascending[rank(len(ascending), percent) - 1] if ascending else NAN


def rank(count: int, percent: float) -> int:
    """Place of a percentile among `count` values in ascending order, the first being 1."""
    return max(1, math.ceil(round(count * percent / 100, 9)))  # 4.4 % of 750 is 33, in floats a hair more


@dataclass(frozen=True)
class Distribution:
    """A metric over all its samples. Each percentile is one of them; NaN if there is none, inf if it never came."""

    count: int
    mean: float
    p50: float
    p90: float
    p95: float
    p99: float
    max: float

    @classmethod
    def of(cls, values: Iterable[float]) -> "Distribution":
        """Of samples that each count once."""
        ascending = sorted(values)
        if not ascending:
            return NO_SAMPLES
        p50, p90, p95, p99 = (percentile(ascending, p) for p in (50, 90, 95, 99))
        return cls(len(ascending), math.fsum(ascending) / len(ascending), p50, p90, p95, p99, ascending[-1])

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> "Distribution":
        """What `Metrics.to_dict` made of it: None is infinite where there are samples, else unknown."""
        unknown = INF if stored["count"] else NAN
        known: dict[str, Any] = {name: unknown if value is None else value for name, value in stored.items()}
        return cls(**known)

    @classmethod
    def of_counts(cls, counts: Mapping[int, int], scale: float) -> "Distribution":
        """Of samples given as value -> how often; `scale` turns a value into the unit of the metric."""
        total, ascending = sum(counts.values()), sorted(counts)
        if not total:
            return NO_SAMPLES
        last_rank = list(itertools.accumulate(counts[value] for value in ascending))
        p50, p90, p95, p99 = (
            ascending[bisect.bisect_left(last_rank, rank(total, p))] * scale for p in (50, 90, 95, 99)
        )
        mean = sum(value * count for value, count in counts.items()) / total * scale
        return cls(total, mean, p50, p90, p95, p99, ascending[-1] * scale)


NO_SAMPLES = Distribution(0, NAN, NAN, NAN, NAN, NAN, NAN)


@dataclass(frozen=True)
class SLO:
    """What a request must meet to count as good: upper bounds in milliseconds, None where there is none.

    gap_ms: of the longest time between two of its tokens.
    """

    ttft_ms: float | None = None
    tpot_ms: float | None = None
    e2e_ms: float | None = None
    gap_ms: float | None = None

    def __post_init__(self) -> None:
        given = {name: value for name, value in asdict(self).items() if value is not None}
        if not given:
            raise ConfigError("an SLO bounds at least one of ttft_ms, tpot_ms, e2e_ms, gap_ms")
        for name, value in given.items():
            require_positive(value, name)

    def is_met(self, row: RequestRow) -> bool:
        """Whether a request finished and kept every bound."""
        checks = (
            (ttft_ms(row), self.ttft_ms),
            (tpot_ms(row) if row.output_tokens > 1 else 0.0, self.tpot_ms),
            (e2e_ms(row), self.e2e_ms),
            (1e3 * row.longest_gap_s, self.gap_ms),
        )
        return bool(row.finished) and all(bound is None or value <= bound for value, bound in checks)


def _never_if_nan(value: float) -> float:
    return INF if math.isnan(value) else value


def queue_ms(row: RequestRow) -> float:
    """Queueing time: from arrival to the start of the first step that computes one of its tokens."""
    return _never_if_nan(1e3 * (row.scheduled_s - row.arrived_s))


def ttft_ms(row: RequestRow) -> float:
    """Time to first token."""
    return _never_if_nan(1e3 * (row.first_token_s - row.arrived_s))


def tpot_ms(row: RequestRow) -> float:
    """Time per output token after the first; NaN for a request that emits a single one."""
    if not row.finished:
        return INF
    return 1e3 * (row.last_token_s - row.first_token_s) / (row.output_tokens - 1) if row.output_tokens > 1 else NAN


def e2e_ms(row: RequestRow) -> float:
    """End-to-end latency: from arrival to the last token."""
    return 1e3 * (row.last_token_s - row.arrived_s) if row.finished else INF


def normalized_ms(row: RequestRow) -> float:
    """Normalised latency: end-to-end latency over output tokens."""
    return e2e_ms(row) / row.output_tokens if row.finished else INF


@dataclass(frozen=True)
class Metrics:
    """All metrics of a run. Requests that arrived in the warm-up are left out, and steps that started in it.

    Rates are per second of `duration_s`, from the warm-up to the end of the run. total: all tokens that steps computed;
    useful: without those computed again after a preemption, and without padding. kv_mean and kv_peak: share of the KV
    blocks in use, averaged over time, and at most. hit_rate: share of the prompt tokens found in the prefix cache.
    goodput and slo_attainment: requests per second that met the SLO, and their share; NaN without one.
    """

    num_requests: int
    num_unfinished: int
    num_refused: int
    duration_s: float
    ttft_ms: Distribution
    tpot_ms: Distribution
    itl_ms: Distribution
    e2e_ms: Distribution
    normalized_ms: Distribution
    queue_ms: Distribution
    requests_per_s: float
    output_tokens_per_s: float
    total_tokens_per_s: float
    useful_tokens_per_s: float
    goodput: float
    slo_attainment: float
    preemptions: int
    recomputed_tokens: int
    hit_rate: float
    kv_mean: float
    kv_peak: float
    batch_mean: float
    busy_share: float
    steps: int

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON, which knows neither NaN nor infinity: both become None."""
        return {name: _plain(value) for name, value in asdict(self).items()}

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> "Metrics":
        """The inverse of `to_dict`."""
        values: dict[str, Any] = {}
        for field in fields(cls):
            value = stored[field.name]
            if isinstance(value, Mapping):
                values[field.name] = Distribution.from_dict(value)
            else:
                values[field.name] = NAN if value is None else value
        return cls(**values)


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _plain(inner) for name, inner in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value


def summarize(result: SimResult, slo: SLO | None = None) -> Metrics:
    """The metrics of a run, and with an SLO its goodput. Raises ConfigError if nobody arrived after the warm-up."""
    require_instance(result, SimResult, "result")
    if slo is not None:
        require_instance(slo, SLO, "slo")
    totals, pool = result.totals, result.config.num_gpu_blocks
    count = unfinished = good = prompt_tokens = hit_tokens = 0
    for row in _measured(result):
        count += 1
        unfinished += not row.finished
        good += slo is not None and slo.is_met(row)
        if not math.isnan(row.scheduled_s):
            prompt_tokens += row.prompt_tokens
            hit_tokens += row.hit_tokens
    if not count:
        raise ConfigError(
            f"no request to measure: {len(result.log)} arrived by {result.end_s:g} s, none after the warm-up of "
            f"{result.warmup_s:g} s; shorten the warm-up, send more, or stop the run later"
        )
    duration_s = result.end_s - result.warmup_s
    per_s = 1 / duration_s if duration_s > 0 else NAN
    waste = totals.recomputed_tokens + totals.padding_tokens
    return Metrics(
        num_requests=count,
        num_unfinished=unfinished,
        num_refused=len(result.refused),
        duration_s=duration_s,
        # One after the other, so that of a million requests only one metric is in memory at a time.
        ttft_ms=Distribution.of(map(ttft_ms, _measured(result))),
        tpot_ms=Distribution.of(x for x in map(tpot_ms, _measured(result)) if not math.isnan(x)),
        itl_ms=Distribution.of_counts(result.gaps_us, 1e-3),
        e2e_ms=Distribution.of(map(e2e_ms, _measured(result))),
        normalized_ms=Distribution.of(map(normalized_ms, _measured(result))),
        queue_ms=Distribution.of(map(queue_ms, _measured(result))),
        requests_per_s=(count - unfinished) * per_s,
        output_tokens_per_s=totals.output_tokens * per_s,
        total_tokens_per_s=totals.computed_tokens * per_s,
        useful_tokens_per_s=(totals.computed_tokens - waste) * per_s,
        goodput=good * per_s if slo else NAN,
        slo_attainment=good / count if slo else NAN,
        preemptions=totals.preemptions,
        recomputed_tokens=totals.recomputed_tokens,
        hit_rate=hit_tokens / prompt_tokens if prompt_tokens else NAN,
        kv_mean=totals.block_s * per_s / pool,
        kv_peak=totals.peak_blocks / pool,
        batch_mean=totals.seq_s * per_s,
        busy_share=totals.busy_s * per_s,
        steps=totals.steps,
    )


def _measured(result: SimResult) -> Iterator[RequestRow]:
    """Those who arrived after the warm-up."""
    return (row for row in result.log if row.arrived_s >= result.warmup_s)


# 97.5 % quantiles of Student's t for 1 … 30 degrees of freedom; beyond, the normal distribution's is within 2 %.
STUDENT_T = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131,
    2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
)  # fmt: skip


def confidence_interval(values: Sequence[float]) -> tuple[float, float]:
    """Mean over seeds and half the width of its 95 % confidence interval; of a single value the width is NaN."""
    if not values:
        raise ConfigError("no values: a confidence interval needs the results of at least one seed")
    mean = statistics.fmean(values)
    if len(values) == 1 or not math.isfinite(mean):
        return mean, NAN
    freedom = len(values) - 1
    quantile = STUDENT_T[freedom - 1] if freedom <= len(STUDENT_T) else statistics.NormalDist().inv_cdf(0.975)
    return mean, quantile * statistics.stdev(values) / math.sqrt(len(values))
