"""What a simulated run leaves behind. Knows logs and sums; computes no metric. Chapter 12."""

from collections import Counter
from dataclasses import dataclass, field

from mini_vllm.config import SchedulerConfig
from mini_vllm.sim.request_log import RequestLog
from mini_vllm.sim.worker import Totals
from mini_vllm.trace.trace import Trace


@dataclass
class SimResult:
    """One run. Metrics are computed from it by `metrics.summarize`.

    gaps_us: how often each time between two tokens of a request occurred, in whole microseconds; only of requests that
    arrived after the warm-up. refused: row of the workload and reason, for those that could never fit.
    token_times: row -> times of all tokens, if asked for. trace: step records, if asked for.
    """

    config: SchedulerConfig
    log: RequestLog
    totals: Totals
    gaps_us: Counter[int]
    end_s: float = 0.0
    warmup_s: float = 0.0
    refused: list[tuple[int, str]] = field(default_factory=list)
    token_times: dict[int, list[float]] = field(default_factory=dict)
    trace: Trace | None = None
