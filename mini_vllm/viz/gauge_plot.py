"""Twin gauges: how full each step made the token budget and the KV pool, and which of them kept the queue waiting.

Knows runs; decides nothing; needs matplotlib. Chapter 5.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from mini_vllm.errors import TraceFormatError
from mini_vllm.viz.run_axis import STEP, draw_time_axis, named_runs
from mini_vllm.viz.style import INK, ORANGE, SAND, SKY, Picture, house_style, legend_above, panels
from mini_vllm.viz.timeline import Timeline

GAUGE_IN = 0.85
COLUMNS_MAX = 128  # of a longer run several steps share a column
TOKENS, KV, SEATS = "token budget", "KV blocks", "seats"
FREE = {"facecolor": SKY, "edgecolor": INK, "linewidth": 0.4, "label": "used"}
BINDS = {"facecolor": SAND, "edgecolor": ORANGE, "hatch": "////", "linewidth": 0.4, "label": "it binds"}
FULL = {"color": INK, "linestyle": "--", "linewidth": 1.0}
BAND_BOTTOM, BAND_HEIGHT = 1.08, 0.12  # over a gauge, so that a limit that binds with nothing used is seen
NO_SEAT = {"color": INK, "marker": "v", "markersize": 4, "linestyle": "none", "label": "no seat is free"}


class Gauge(NamedTuple):
    """One limit over a run, an entry a step: the share of it that is used, and whether it kept the head out."""

    used: list[float]
    binds: list[bool]


def binding(record: dict[str, Any]) -> str | None:
    """Which limit kept the head of the queue out of this step: TOKENS, KV, SEATS, or None."""
    reason = record.get("blocked_reason") or ""
    if not record["waiting"]:
        return None
    if reason.startswith("kv"):
        return KV
    return {"token_budget": TOKENS, "max_num_seqs": SEATS}.get(reason)


def twin_gauges(runs: Any, *, alt: str) -> Picture:
    """Two gauges for each run, one over the other, from empty to full, over the steps.

    A limit binds in a step if it is the one that kept the head of the queue out; then its bar is hatched, and so is a
    band over it. A mark on top says that it was the seats. In a run of over COLUMNS_MAX steps a column is the mean of
    several steps, and shows in which share of them the limit binds.

    runs: a trace, or title -> trace. Raises TraceFormatError where the size of the budget or of the pool, or how much
    is free, is not recorded.
    """
    lines = named_runs(runs)
    gauges = {title: _gauges(title, line) for title, line in lines.items()}
    with house_style():
        figure, axes = panels(2 * len(lines), GAUGE_IN * 2 * len(lines) + 0.9)
        handles: dict[str, Artist] = {}
        for i, (title, line) in enumerate(lines.items()):
            for ax, (name, gauge) in zip(axes[2 * i : 2 * i + 2], gauges[title].items(), strict=True):
                _draw(ax, gauge, line.records[0]["step"], handles)
                ax.set_ylabel(name.replace(" ", "\n"), rotation=0, ha="right", va="center")
            _mark_seats(axes[2 * i], line, handles)
            axes[2 * i].set_title(title)
        draw_time_axis(axes[-1], lines, STEP)
        legend_above(figure, list(handles.values()))
        return Picture(figure, alt)


def _gauges(title: str, line: Timeline) -> dict[str, Gauge]:
    budget, pool, where = line.token_budget, line.limit("num_gpu_blocks"), title or "the run"
    if not budget or not pool:
        raise TraceFormatError(f"{where}: its header lacks max_num_batched_tokens or num_gpu_blocks: nobody knows full")
    used = []
    for i, free in enumerate(line.free):
        if free is None:
            raise TraceFormatError(f"{where}, step {line.records[i]['step']}: 'free' is not recorded")
        used.append((pool - free) / pool)
    bound = [binding(record) for record in line.records]
    tokens = [n / budget for n in line.budget_used]
    return {TOKENS: Gauge(tokens, [b == TOKENS for b in bound]), KV: Gauge(used, [b == KV for b in bound])}


def columns(gauge: Gauge) -> tuple[int, list[float], list[float]]:
    """Steps of a column, and for each column its height and in which share of its steps the limit binds."""
    width = -(-len(gauge.used) // COLUMNS_MAX)
    heights, shares = [], []
    for start in range(0, len(gauge.used), width):
        used, binds = gauge.used[start : start + width], gauge.binds[start : start + width]
        heights.append(sum(used) / len(used))
        shares.append(sum(binds) / len(binds))
    return width, heights, shares


def _draw(ax: Axes, gauge: Gauge, first: int, handles: dict[str, Artist]) -> None:
    width, heights, shares = columns(gauge)
    _bars(ax, first, width, heights, FREE)
    handles.setdefault("used", Patch(**FREE))
    if any(shares):
        _bars(ax, first, width, [height * share for height, share in zip(heights, shares, strict=True)], BINDS)
        _bars(ax, first, width, [BAND_HEIGHT * share for share in shares], BINDS, BAND_BOTTOM)
        handles.setdefault("binds", Patch(**BINDS))
    ax.axhline(1, **FULL)
    handles.setdefault("full", Line2D([], [], label="full", **FULL))
    ax.set_ylim(0, 1.3)
    ax.set_yticks([0, 1], ["0", "100 %"])


def _bars(ax: Axes, first: int, width: int, heights: Sequence[float], look: dict[str, Any], bottom: float = 0) -> None:
    there = [i for i, height in enumerate(heights) if height]
    ax.bar([first + i * width for i in there], [heights[i] for i in there], width, bottom=bottom, align="edge", **look)


def _mark_seats(ax: Axes, line: Timeline, handles: dict[str, Artist]) -> None:
    where = [record["step"] + 0.5 for record in line.records if binding(record) == SEATS]
    if where:
        ax.plot(where, [1.14] * len(where), **NO_SEAT)
        handles["seats"] = Line2D([], [], **NO_SEAT)
