"""Curves of one run over time: KV occupancy, queue lengths, inter-token latency. Knows runs; needs matplotlib.

From chapter 4 on. All are taken after schedule(), as the step player shows them.
"""

from collections import Counter
from itertools import pairwise
from typing import Any, NamedTuple

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from mini_vllm.errors import ConfigError, TraceFormatError
from mini_vllm.viz.run_axis import SECONDS, STEP, draw_time_axis, named_runs, spans
from mini_vllm.viz.style import BLUE, INK, ORANGE, SAND, SKY, Picture, house_style, legend_above, numbers, panels, short
from mini_vllm.viz.timeline import PREEMPTED, PREFILL, RECOMPUTE, Timeline

PANEL_IN = 1.9
HELD = {"facecolor": SKY, "edgecolor": INK, "linewidth": 0.8, "label": "held by one request"}
SHARED = {"facecolor": BLUE, "edgecolor": "white", "hatch": "////", "linewidth": 0.8, "label": "shared by several"}
CACHED = {"facecolor": SAND, "edgecolor": ORANGE, "hatch": "....", "linewidth": 0.8, "label": "free, still cached"}
LIMIT = {"color": INK, "linestyle": "--", "linewidth": 1.2}
EVICTION = {"color": ORANGE, "marker": "v", "markersize": 7, "markeredgecolor": INK, "linestyle": "none"}
WAITING_LINE = {"color": ORANGE, "linestyle": (0, (4, 1.5)), "linewidth": 1.8, "label": "waiting"}
RUNNING_AREA = {"facecolor": SKY, "edgecolor": BLUE, "linewidth": 1.4, "label": "running"}
# Why a token came late: in the order in which the reasons are looked for.
GAPS = {
    "preempted": {"marker": "X", "color": ORANGE, "markeredgecolor": INK, "label": "its request was preempted between"},
    "prefill": {"marker": "^", "color": "white", "markeredgecolor": ORANGE, "label": "a prompt was computed between"},
    "decode": {"marker": ".", "color": BLUE, "markeredgecolor": BLUE, "label": "only decodes between"},
}


def kv_occupancy(runs: Any, *, unit: str = STEP, alt: str) -> Picture:
    """KV blocks in use over time, the shared ones apart, below the size of the pool; preemptions are marked.

    runs: a trace, or title -> trace, one panel each. unit: "step", or "s" for recorded times.
    Raises TraceFormatError where neither block tables nor free counts were recorded.
    """
    lines = named_runs(runs)
    levels = {title: _levels(title, line) for title, line in lines.items()}
    with house_style():
        figure, axes = panels(len(lines), PANEL_IN * len(lines) + 0.9)
        top = max(1, *(max(level.pool or 0, *level.held, *level.cached) for level in levels.values()))
        handles: dict[str, Artist] = {}
        for ax, (title, line) in zip(axes, lines.items(), strict=True):
            edges, level = _edges(line, unit), levels[title]
            ax.stairs(level.held, edges, baseline=0, fill=True, **HELD)
            handles.setdefault("held", Patch(**HELD))
            if any(level.shared):
                ax.stairs(level.shared, edges, baseline=0, fill=True, **SHARED)
                handles.setdefault("shared", Patch(**SHARED))
            if level.cached != level.held:
                ax.stairs(level.cached, edges, baseline=level.held, fill=True, **CACHED)
                handles.setdefault("cached", Patch(**CACHED))
            if level.pool is not None:
                ax.axhline(level.pool, **LIMIT)
                handles.setdefault("pool", Line2D([], [], label="size of the pool", **LIMIT))
            _mark_preemptions(ax, line, edges, 1.1 * top, handles)
            ax.set_ylim(0, 1.2 * top)
            ax.set_ylabel("KV blocks")
            ax.set_title(title)
        draw_time_axis(axes[-1], lines, unit)
        legend_above(figure, list(handles.values()))
        return Picture(figure, alt)


def queue_lengths(runs: Any, *, unit: str = STEP, alt: str) -> Picture:
    """How many requests run and how many wait over time, below the limit of seats.

    runs: a trace, or title -> trace, one panel each. unit: "step", or "s" for recorded times.
    """
    lines = named_runs(runs)
    with house_style():
        figure, axes = panels(len(lines), PANEL_IN * len(lines) + 0.9)
        handles: dict[str, Artist] = {
            "running": Patch(**RUNNING_AREA),
            "waiting": Line2D([], [], **WAITING_LINE),
        }
        top = 1
        for ax, (title, line) in zip(axes, lines.items(), strict=True):
            edges = _edges(line, unit)
            running, waiting = [len(ids) for ids in line.running], [len(ids) for ids in line.waiting]
            ax.stairs(running, edges, fill=True, **RUNNING_AREA)
            ax.stairs(waiting, edges, baseline=None, **{**WAITING_LINE, "edgecolor": WAITING_LINE["color"]})
            seats = line.limit("max_num_seqs")
            if seats is not None:
                ax.axhline(seats, **LIMIT)
                handles.setdefault("seats", Line2D([], [], label="seats (max_num_seqs)", **LIMIT))
            top = max(top, seats or 0, *running, *waiting)
            ax.set_ylabel("requests")
            ax.yaxis.get_major_locator().set_params(integer=True)
            ax.set_title(title)
        for ax in axes:
            ax.set_ylim(0, 1.1 * top)
        draw_time_axis(axes[-1], lines, unit)
        legend_above(figure, list(handles.values()))
        return Picture(figure, alt)


def itl_strip(runs: Any, *, unit: str = STEP, target: float | None = None, log_y: bool = False, alt: str) -> Picture:
    """Inter-token latency: one dot for each step in which a request emitted, at its distance from the one before.

    The dot's shape says what came between: only decodes, the prompt of another request, or the request's own
    preemption. A first token has no dot: its delay is TTFT.

    runs: a trace, or title -> trace, one panel each. unit: "step", or "s": then latencies are in milliseconds.
    target: a line to stay below, in steps or milliseconds; how many tokens are above it is written over the panel.
    log_y: a logarithmic axis, for runs in which a preemption makes everything else look flat.
    Raises ConfigError if no request emitted twice.
    """
    lines = named_runs(runs)
    if target is not None:
        target = numbers("target", [target], positive=True)[0]
    gaps = {title: _gaps(line, spans(line, unit), 1e3 if unit == SECONDS else 1.0) for title, line in lines.items()}
    if not any(gaps.values()):
        raise ConfigError("no request emitted two tokens, so there is no time between tokens to draw")
    with house_style():
        figure, axes = panels(len(lines), PANEL_IN * len(lines) + 0.9)
        top = max([target or 0.0, *(gap.wait for found in gaps.values() for gap in found)])
        for ax, (title, found) in zip(axes, gaps.items(), strict=True):
            for why, look in reversed(GAPS.items()):
                spots = [(gap.at, gap.wait) for gap in found if gap.why == why]
                ax.plot([x for x, _ in spots], [y for _, y in spots], linestyle="none", markersize=6, **look)
            if target is not None:
                above = sum(gap.wait > target for gap in found)
                ax.axhline(target, **LIMIT)
                ax.set_title(f"{above} of {len(found)} above the target", loc="right", weight="normal")
            if log_y:
                ax.set_yscale("log")
                ax.yaxis.set_major_formatter(lambda value, _: short(value))
            else:
                ax.set_ylim(0, 1.1 * top)
                ax.yaxis.get_major_locator().set_params(integer=unit == STEP)
            ax.set_ylabel("ITL (ms)" if unit == SECONDS else "ITL (steps)")
            ax.set_title(title)
            ax.grid(axis="y")
        draw_time_axis(axes[-1], lines, unit)
        reasons = {gap.why for found in gaps.values() for gap in found}
        handles = [Line2D([], [], linestyle="none", **look) for why, look in GAPS.items() if why in reasons]
        if target is not None:
            handles.append(Line2D([], [], label=f"target, {target:g} {'ms' if unit == SECONDS else 'steps'}", **LIMIT))
        legend_above(figure, handles)
        return Picture(figure, alt)


# ---- what is drawn


class Levels(NamedTuple):
    """Blocks of a run, one entry a step: `shared` of the `held` ones, and up to `cached` those free but cached."""

    held: list[int]
    shared: list[int]
    cached: list[int]
    pool: int | None


def _levels(title: str, line: Timeline) -> Levels:
    pool, held, shared, cached = line.limit("num_gpu_blocks"), [], [], []
    for i, record in enumerate(line.records):
        owners = Counter(block for table in record["blocks"].values() for block in set(table) if block)
        free = line.free[i]
        if not line.has("blocks") and (free is None or pool is None):
            raise TraceFormatError(
                f"{title or 'the run'}, step {record['step']}: neither 'blocks' nor 'free' with num_gpu_blocks is "
                "recorded, so nobody knows how full the pool was"
            )
        # A block can be held by nobody's table: one in flight, or one kept for a request that just left.
        held.append(len(owners) if free is None or pool is None else max(pool - free, len(owners)))
        shared.append(sum(n > 1 for n in owners.values()))
        idle = set(record.get("cached_blocks") or ()) & set(record.get("free_queue") or ())
        cached.append(held[-1] + len(idle - owners.keys()))
    return Levels(held, shared, cached, pool)


class Gap(NamedTuple):
    """A token and how long after the request's last one it came."""

    at: float
    wait: float
    why: str


def _gaps(line: Timeline, times: list[tuple[float, float]], scale: float) -> list[Gap]:
    """All inter-token latencies, in the unit of `times` times `scale`."""
    columns = zip(*(lane.cells for lane in line.lanes), strict=True)
    busy = [any(cell and cell.kind in (PREFILL, RECOMPUTE) for cell in column) for column in columns]
    found = []
    for lane in line.lanes:
        emitted = [i for i, record in enumerate(line.records) if record["sampled"].get(lane.id)]
        last = next((i for i, cell in enumerate(lane.cells) if cell and "f" in cell.marks), len(line.records))
        for before, i in pairwise(i for i in emitted if i <= last):
            cells = [lane.cells[k] for k in range(before + 1, i + 1)]
            evicted = any(cell and cell.kind == PREEMPTED for cell in cells)
            why = "preempted" if evicted else "prefill" if any(busy[before + 1 : i + 1]) else "decode"
            found.append(Gap(times[i][1], (times[i][1] - times[before][1]) * scale, why))
    return found


def _edges(line: Timeline, unit: str) -> list[float]:
    """Where each step begins, and the end of the last."""
    times = spans(line, unit)
    return [start for start, _ in times] + [times[-1][1]]


def _mark_preemptions(ax: Axes, line: Timeline, edges: list[float], y: float, handles: dict[str, Artist]) -> None:
    where = [i for i, record in enumerate(line.records) if record["preempted"]]
    if where:
        ax.plot([(edges[i] + edges[i + 1]) / 2 for i in where], [y] * len(where), **EVICTION)
        handles.setdefault("evicted", Line2D([], [], label="somebody is preempted", **EVICTION))
