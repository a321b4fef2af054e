"""Who did what in each step: slots × time and requests × time. Knows runs; needs matplotlib. From chapter 1 on."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any, NamedTuple

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Patch, Rectangle

from mini_vllm.batching import timeline as batch
from mini_vllm.errors import ConfigError
from mini_vllm.viz import timeline as lanes
from mini_vllm.viz.run_axis import STEP, draw_time_axis, named_runs, spans, tick_distance
from mini_vllm.viz.style import (
    BLUE,
    INK,
    ORANGE,
    SAND,
    SKY,
    SMALL,
    SOFT,
    WIDTH_IN,
    Picture,
    house_style,
    in_font,
    legend_above,
    panels,
)

PREFILL, DECODE, RECOMPUTE, PADDING, IDLE, WAITING = "prefill", "decode", "recompute", "padding", "idle", "waiting"
PREEMPTED, SWAPPED, ABORTED, FINISHED = "preempted", "swapped out", "aborted", "finished"
BOXES: dict[str, dict[str, Any]] = {
    PREFILL: {"facecolor": BLUE, "edgecolor": "white", "hatch": "////"},
    RECOMPUTE: {"facecolor": SAND, "edgecolor": ORANGE, "hatch": "\\\\\\\\"},
    DECODE: {"facecolor": SKY, "edgecolor": "white"},
    PADDING: {"facecolor": SAND, "edgecolor": ORANGE, "hatch": "xxxx"},
    IDLE: {"facecolor": "none", "edgecolor": "#999999", "linestyle": ":"},
    SWAPPED: {"facecolor": "white", "edgecolor": SOFT, "hatch": "...."},
}
MARKS: dict[str, dict[str, Any]] = {
    WAITING: {"color": SOFT, "linestyle": (0, (1, 2)), "linewidth": 1.6},
    PREEMPTED: {"color": ORANGE, "marker": "X", "markersize": 7, "markeredgecolor": INK, "linestyle": "none"},
    ABORTED: {"color": "white", "marker": "d", "markersize": 7, "markeredgecolor": INK, "linestyle": "none"},
    FINISHED: {"color": INK, "marker": "|", "markersize": 10, "markeredgewidth": 2.4, "linestyle": "none"},
}
SLOT_WORDS = {
    PREFILL: "prefill and first token",
    RECOMPUTE: "computed again",
    DECODE: "one more token",
    PADDING: "computed, then thrown away",
    IDLE: "slot stands idle",
}
LANE_WORDS = {
    PREFILL: "prefill",
    RECOMPUTE: "recompute",
    DECODE: "decode",
    IDLE: "runs, gets no token",
    WAITING: "waiting",
    SWAPPED: "waiting, KV in CPU memory",
    PREEMPTED: "preempted",
    ABORTED: "aborted",
    FINISHED: "finished",
}
KINDS = {
    lanes.PREFILL: PREFILL,
    lanes.RECOMPUTE: RECOMPUTE,
    lanes.DECODE: DECODE,
    lanes.IDLE: IDLE,
    lanes.WAITING: WAITING,
    lanes.PREEMPTED: PREEMPTED,
    lanes.SWAPPED: SWAPPED,
    lanes.ABORTED: ABORTED,
}
SEPARATE_STEPS_MAX = 48  # in longer runs a stretch of one kind is one box
ROW_IN, ROWS_IN_MAX, LABEL_IN = 0.26, 7.0, 0.15


class Box(NamedTuple):
    """A stretch of steps of one kind, from `start` to `end` on the time axis."""

    kind: str
    text: str
    start: float
    end: float


def slot_time(timelines: Any, *, alt: str) -> Picture:
    """Slot × time grids, one under the other on one axis of steps; the key of each is its title.

    timelines: title -> `batching.Timeline`, or title -> trace; a request takes the lowest free slot when it enters.
    Raises ConfigError for a bad alt text, TraceFormatError for a run without steps.
    """
    grids = _slot_grids(timelines)
    num_steps = max(len(grid[0]) for grid in grids.values())
    rows = {title: _merged(grid, num_steps <= SEPARATE_STEPS_MAX) for title, grid in grids.items()}
    with house_style():
        heights = [len(grid) for grid in grids.values()]
        row_in = min(ROW_IN, ROWS_IN_MAX / sum(heights))
        figure, axes = panels(len(grids), row_in * sum(heights) + 0.3 * len(grids) + 0.8, heights)
        for ax, (title, boxes) in zip(axes, rows.items(), strict=True):
            _draw_rows(ax, boxes, WIDTH_IN * 0.85 * 72 / num_steps)
            _label_rows(ax, [f"slot {slot}" for slot in range(len(boxes))], row_in)
            ax.set_title(title)
        every = tick_distance(num_steps)
        axes[-1].set_xlim(0, num_steps)
        axes[-1].set_xticks([step + 0.5 for step in range(0, num_steps, every)], range(0, num_steps, every))
        axes[-1].set_xlabel("step")
        shown = {box.kind for boxes in rows.values() for row in boxes for box in row}
        legend_above(figure, _legend(shown, SLOT_WORDS))
        return Picture(figure, alt)


def gantt(runs: Any, *, unit: str = STEP, alt: str) -> Picture:
    """One row a request, in order of arrival: when it waited, was prefilled, decoded, preempted, finished.

    runs: a trace, or title -> trace, one panel each.
    unit: "step", or "s" for the recorded times of an engine's run.
    Raises TraceFormatError for a run without steps, or without times where seconds are asked for.
    """
    lines = named_runs(runs)
    if not (total := sum(len(line.lanes) for line in lines.values())):
        raise ConfigError("no request ever arrived in this run: there is no lane to draw")
    times = {title: spans(line, unit) for title, line in lines.items()}
    separate = max(map(len, times.values())) <= SEPARATE_STEPS_MAX
    with house_style():
        heights = [max(1, len(line.lanes)) for line in lines.values()]
        row_in = min(ROW_IN, ROWS_IN_MAX / total)
        figure, axes = panels(len(lines), row_in * sum(heights) + 0.3 * len(lines) + 0.8, heights)
        shown: set[str] = set()
        for ax, (title, line) in zip(axes, lines.items(), strict=True):
            rows = [list(_lane_boxes(lane, times[title], separate)) for lane in line.lanes]
            _draw_rows(ax, rows, 0.0)
            shown |= {box.kind for row in rows for box in row} | _draw_marks(ax, line, times[title], row_in)
            _label_rows(ax, [_row_name(lane, n) for n, lane in enumerate(line.lanes, start=1)], row_in)
            ax.set_title(title)
        draw_time_axis(axes[-1], lines, unit)
        legend_above(figure, _legend(shown, LANE_WORDS))
        return Picture(figure, alt)


# ---- rows of boxes


def _slot_grids(timelines: Any) -> dict[str, list[list[tuple[str, str]]]]:
    """title -> slots × steps of (kind, request), "" for nobody."""
    named = {"": timelines} if not isinstance(timelines, Mapping) or "steps" in timelines else timelines
    if not named:
        raise ConfigError("there is no run to draw: give a mapping from titles to timelines or traces")
    grids = {}
    for title, run in named.items():
        if isinstance(run, batch.Timeline):
            grids[title] = [[(cell.kind, cell.request_id or "") for cell in row] for row in run.grid]
            if not run.num_steps:
                raise ConfigError(f"{title or 'the run'} has 0 steps: run it before drawing it")
        else:
            grids[title] = _slots_of(next(iter(named_runs(run).values())))
    return grids


def _slots_of(line: lanes.Timeline) -> list[list[tuple[str, str]]]:
    """Give every running request the lowest free slot for as long as it stays."""
    held: dict[str, int] = {}
    columns: list[dict[int, tuple[str, str]]] = []
    for i, record in enumerate(line.records):
        held = {rid: slot for rid, slot in held.items() if rid in line.running[i]}
        for rid in line.running[i]:
            held.setdefault(rid, min(set(range(len(held) + 1)) - set(held.values())))
        cells = {rid: line.lane(rid).cells[i] for rid in held}
        columns.append({held[rid]: (KINDS[cell.kind], line.lane(rid).label) for rid, cell in cells.items() if cell})
        held = {rid: slot for rid, slot in held.items() if rid not in record["finished"]}
    num_slots = max([line.limit("max_num_seqs") or 1, *(slot + 1 for column in columns for slot in column)])
    return [[column.get(slot, (IDLE, "")) for column in columns] for slot in range(num_slots)]


def _merged(grid: Sequence[Sequence[tuple[str, str]]], separate: bool) -> list[list[Box]]:
    """Each row as boxes: one a step in a short run, one a stretch in a long one."""
    rows = []
    for row in grid:
        boxes, step = [], 0
        for (kind, rid), cells in groupby(row):
            steps = len(list(cells))
            width = 1 if separate else steps
            boxes += [Box(kind, rid, step + n, step + n + width) for n in range(0, steps, width)]
            step += steps
        rows.append(boxes)
    return rows


def _lane_boxes(lane: lanes.Lane, times: Sequence[tuple[float, float]], separate: bool) -> Iterator[Box]:
    """A request's row; the waiting times are boxes too and become dotted lines."""
    kinds = [KINDS[cell.kind] if cell else "" for cell in lane.cells]
    edges = [i for i, kind in enumerate(kinds) if i == 0 or kind != kinds[i - 1] or (separate and kind != WAITING)]
    for start, end in zip(edges, [*edges[1:], len(kinds)], strict=True):
        if kinds[start] not in ("", PREEMPTED, ABORTED):
            yield Box(kinds[start], "", times[start][0], times[end - 1][1])


def _draw_rows(ax: Axes, rows: Sequence[Sequence[Box]], step_points: float) -> None:
    """Boxes row by row from the top; `step_points` is the width of a step in points, for the ids in the boxes."""
    gap = 0.04 if step_points > 5 else 0.0
    for y, row in enumerate(rows):
        for box in row:
            if box.kind == WAITING:
                ax.plot([box.start, box.end], [y + 0.5] * 2, solid_capstyle="butt", **MARKS[WAITING])
                continue
            look = BOXES[box.kind]
            ax.add_patch(
                Rectangle((box.start + gap, y + 0.1), box.end - box.start - 2 * gap, 0.8, linewidth=0.6, **look)
            )
            width = len(box.text) * 0.64 * SMALL
            if box.text and width <= (box.end - box.start) * step_points - 1 and in_font(box.text):
                back = {"boxstyle": "round,pad=0.12", "linewidth": 0, "facecolor": look["facecolor"]}
                place = {"ha": "center", "va": "center_baseline", "fontsize": SMALL, "bbox": back}
                ink = "white" if box.kind == PREFILL else INK
                ax.text((box.start + box.end) / 2, y + 0.5, box.text, color=ink, **place)
    ax.set_ylim(len(rows) or 1, 0)


def _draw_marks(ax: Axes, line: lanes.Timeline, times: Sequence[tuple[float, float]], row_in: float) -> set[str]:
    """Preemptions, aborts and ends as marks in the rows; returns which there were."""
    spots: dict[str, list[tuple[float, float]]] = {PREEMPTED: [], ABORTED: [], FINISHED: []}
    for y, lane in enumerate(line.lanes):
        for i, cell in enumerate(lane.cells):
            if cell and KINDS[cell.kind] in (PREEMPTED, ABORTED):
                spots[KINDS[cell.kind]].append(((times[i][0] + times[i][1]) / 2, y + 0.5))
            if cell and "f" in cell.marks:
                spots[FINISHED].append((times[i][1], y + 0.5))
    small = max(0.3, row_in / ROW_IN)
    there = {kind: places for kind, places in spots.items() if places}
    for kind, places in there.items():
        look = {**MARKS[kind], "markersize": small * MARKS[kind]["markersize"]}
        ax.plot([x for x, _ in places], [y for _, y in places], clip_on=False, zorder=3, **look)
    return set(there)


def _row_name(lane: lanes.Lane, number: int) -> str:
    return lane.label if in_font(lane.label) else f"#{number}"


def _label_rows(ax: Axes, names: Sequence[str], row_in: float) -> None:
    """The rows' names; only some of them where the rows are too low for all."""
    every = tick_distance(max(1.0, LABEL_IN / row_in), 1)
    ax.set_yticks([y + 0.5 for y in range(0, len(names), every)], names[::every])
    ax.tick_params(axis="y", length=0)
    ax.spines["left"].set_visible(False)


def _legend(shown: set[str], words: Mapping[str, str]) -> list[Artist]:
    """What the picture holds, in the order of `words`."""
    return [
        Patch(label=word, **BOXES[kind]) if kind in BOXES else Line2D([], [], label=word, **MARKS[kind])
        for kind, word in words.items()
        if kind in shown
    ]
