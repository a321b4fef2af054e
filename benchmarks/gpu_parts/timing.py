"""How long a call takes on a GPU, without the time to launch it; on a CPU by the clock. Knows no kernel. Chapter 13."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median, quantiles

import torch

Call = Callable[[], object]
SECONDS_EACH = 0.08  # of measured time for one number
MOST_REPEATS = 20


@dataclass(frozen=True)
class Timing:
    """Milliseconds of one call: median and quartiles of `samples` measurements."""

    ms: float
    low: float
    high: float
    samples: int

    @classmethod
    def of(cls, times: Sequence[float]) -> "Timing":
        if len(times) < 2:
            return cls(times[0], times[0], times[0], 1)
        low, middle, high = quantiles(times, n=4, method="inclusive")
        return cls(middle, low, high, len(times))


class Clock:
    """The seconds that a part has. `left` below 0: it should have ended."""

    def __init__(self, seconds: float) -> None:
        self.ends = time.monotonic() + seconds

    def left(self) -> float:
        return self.ends - time.monotonic()


class CudaTimer:
    """Times by CUDA events. Several calls are run in turn, so that none finds its data in the L2 cache.

    Calls are captured into a CUDA graph once and replayed, as an engine does: else a kernel of 20 µs would be measured
    at the 50 µs that Python takes to launch it.
    """

    def ms(self, calls: Sequence[Call]) -> Timing:
        """Of one call, the calls being alike."""
        for call in calls:  # compiles, and fills what is made at first use
            call()
        torch.cuda.synchronize()
        run = self._captured(calls)
        first = self._elapsed(run)
        repeats = max(3, min(MOST_REPEATS, round(1e3 * SECONDS_EACH / max(first, 1e-3))))
        return Timing.of([self._elapsed(run) / len(calls) for _ in range(repeats)])

    def wall_ms(self, call: Call, repeats: int = 3) -> float:
        """By the clock on the wall, from a GPU at rest to a GPU at rest: the median."""
        return median(self._wall(call) for _ in range(repeats))

    def _wall(self, call: Call) -> float:
        torch.cuda.synchronize()
        start = time.perf_counter()
        call()
        torch.cuda.synchronize()
        return 1e3 * (time.perf_counter() - start)

    def _captured(self, calls: Sequence[Call]) -> Callable[[], None]:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for call in calls:
                call()
        graph.replay()
        return graph.replay

    def _elapsed(self, run: Call) -> float:
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        torch.cuda.synchronize()
        start.record()
        run()
        end.record()
        torch.cuda.synchronize()
        return start.elapsed_time(end)


class WallTimer:
    """The same calls without a GPU: each once, by the clock. For --smoke, where no time means anything."""

    def ms(self, calls: Sequence[Call]) -> Timing:
        return Timing.of([self.wall_ms(call, 1) for call in calls])

    def wall_ms(self, call: Call, repeats: int = 3) -> float:
        start = time.perf_counter()
        call()
        return max(1e-6, 1e3 * (time.perf_counter() - start))
