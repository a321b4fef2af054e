"""The time axis that all pictures of a run share, in steps or in seconds. Knows step records; draws no lane."""

from collections.abc import Mapping
from itertools import count, pairwise
from typing import Any

from matplotlib.axes import Axes

from mini_vllm.errors import ConfigError, TraceFormatError
from mini_vllm.viz.records import read_trace
from mini_vllm.viz.timeline import Timeline, build_timeline

STEP, SECONDS = "step", "s"
TICKS_MAX = 12


def named_runs(runs: Any) -> dict[str, Timeline]:
    """Panel title -> run. `runs` is one trace (no title), or a mapping from titles to traces.

    A trace is whatever the step player takes. Raises TraceFormatError for a run without steps.
    """
    is_one = not isinstance(runs, Mapping) or "steps" in runs
    named = {"": runs} if is_one else dict(runs)
    if not named:
        raise ConfigError("there is no run to draw: give a trace, or a mapping from titles to traces")
    return {title: build_timeline(*read_trace(run)) for title, run in named.items()}


def spans(line: Timeline, unit: str) -> list[tuple[float, float]]:
    """Start and end of each step on the time axis: step k lasts from k to k + 1, in seconds as recorded."""
    if unit == STEP:
        return [(record["step"], record["step"] + 1) for record in line.records]
    if unit != SECONDS:
        raise ConfigError(f"unit={unit!r} is unknown: choose {STEP!r} or {SECONDS!r}")
    missing = [record["step"] for record in line.records if not {"t_start", "t_end"} <= record.keys()]
    if missing:
        raise TraceFormatError(f"step {missing[0]} has no t_start and t_end: draw this run with unit={STEP!r}")
    times = [(float(record["t_start"]), float(record["t_end"])) for record in line.records]
    if times == spans(line, STEP):
        raise ConfigError(f"this run has a step clock and no seconds: draw it with unit={STEP!r}")
    ends = [end for span in times for end in span]
    if any(later < earlier for earlier, later in pairwise(ends)):
        raise TraceFormatError("the times of the steps run backwards: each must start at or after the end of the last")
    return times


def draw_time_axis(ax: Axes, runs: Mapping[str, Timeline], unit: str) -> None:
    """Ticks and label below the lowest panel; a step's tick stands under the middle of the step."""
    ends = [spans(line, unit) for line in runs.values()]
    left, right = min(s[0][0] for s in ends), max(s[-1][1] for s in ends)
    ax.set_xlim(left, right)
    if unit == STEP:
        every = tick_distance(right - left)
        ticks = range(-(-int(left) // every) * every, int(right), every)
        ax.set_xticks([step + 0.5 for step in ticks], ticks)
    ax.set_xlabel("step" if unit == STEP else "time (s)")


def tick_distance(steps: float, ticks_max: int = TICKS_MAX) -> int:
    """The smallest of 1, 2, 5, 10, 20, … that needs no more ticks than fit."""
    nice = (digit * 10**power for power in count() for digit in (1, 2, 5))
    return next(every for every in nice if steps / every <= ticks_max)
