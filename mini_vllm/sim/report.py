"""Metrics as tables for people: one run, or two side by side. Knows metrics and rich; computes nothing. Chapter 12."""

import math
from collections.abc import Mapping

from rich.console import Group
from rich.table import Table

from mini_vllm.sim.metrics import Distribution, Metrics

LATENCIES = (
    ("queue_ms", "waiting in the queue"),
    ("ttft_ms", "time to first token, TTFT"),
    ("itl_ms", "between tokens, ITL"),
    ("tpot_ms", "per output token, TPOT"),
    ("e2e_ms", "end to end, E2E"),
    ("normalized_ms", "E2E per output token"),
)
PARTS = ("mean", "p50", "p90", "p99", "max")
COMPARED_PARTS = ("p50", "p99")
NOT_APPLICABLE = "–"


def number(value: float) -> str:
    """Three significant digits or all before the point; "never" for what did not come, "–" for what does not apply."""
    if math.isnan(value):
        return NOT_APPLICABLE
    if math.isinf(value):
        return "never"
    if value == 0 or abs(value) >= 99.95:
        return f"{value:,.0f}"
    return f"{value:.{max(0, 2 - math.floor(math.log10(abs(value))))}f}"


def report(runs: Mapping[str, Metrics]) -> Group:
    """Latencies and rates of all runs, by headings for their columns. With more than one run, fewer percentiles."""
    parts = PARTS if len(runs) == 1 else COMPARED_PARTS
    latencies = Table(title="milliseconds", title_justify="left")
    latencies.add_column("")
    for name in runs:
        for part in parts:
            latencies.add_column(part if len(runs) == 1 else f"{name}\n{part}", justify="right")
    for field, words in LATENCIES:
        found: list[Distribution] = [getattr(metrics, field) for metrics in runs.values()]
        latencies.add_row(words, *[number(getattr(d, part)) for d in found for part in parts])
    rates = Table(title="the run as a whole", title_justify="left")
    rates.add_column("")
    for name in runs:
        rates.add_column(name, justify="right")
    columns = [_facts(metrics) for metrics in runs.values()]
    for words in columns[0]:
        if any(column[words] != NOT_APPLICABLE for column in columns):
            rates.add_row(words, *[column[words] for column in columns])
    return Group(latencies, rates)


def _facts(m: Metrics) -> dict[str, str]:
    return {
        "requests": f"{m.num_requests:,}",
        "… of them unfinished": f"{m.num_unfinished:,}",
        "… refused: could never fit": f"{m.num_refused:,}",
        "simulated seconds": number(m.duration_s),
        "requests per second": number(m.requests_per_s),
        "output tokens per second": number(m.output_tokens_per_s),
        "computed tokens per second": number(m.total_tokens_per_s),
        "… of them useful": number(m.useful_tokens_per_s),
        "requests per second within the SLO": number(m.goodput),
        "share within the SLO": share(m.slo_attainment),
        "preemptions": f"{m.preemptions:,}",
        "tokens computed again": f"{m.recomputed_tokens:,}",
        "prefix cache hits, of prompt tokens": share(m.hit_rate),
        "KV blocks in use, mean": share(m.kv_mean),
        "KV blocks in use, peak": share(m.kv_peak),
        "requests in a step, mean": number(m.batch_mean),
        "time with a step running": share(m.busy_share),
        "steps": f"{m.steps:,}",
    }


def share(value: float) -> str:
    """Per cent."""
    return NOT_APPLICABLE if math.isnan(value) else f"{100 * value:.1f} %"
