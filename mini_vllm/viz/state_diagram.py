"""A request's four states, and how often a run took each way between them. Knows step records. Chapter 4."""

from collections import Counter
from typing import Any, NamedTuple

from matplotlib.axes import Axes
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch

from mini_vllm.viz.records import read_trace
from mini_vllm.viz.style import BLUE, INK, ORANGE, SIZE, SMALL, SOFT, Picture, house_style, panels

WAITING, RUNNING, PREEMPTED, FINISHED = "waiting", "running", "preempted", "finished"
WIDE, HIGH = 3.7, 1.7
# state -> (left, bottom, what it owns)
BOXES = {
    WAITING: (0.1, 4.2, "a place in the line"),
    RUNNING: (6.2, 4.2, "a seat, KV blocks"),
    PREEMPTED: (6.2, 0.2, "the head of the line"),
    FINISHED: (0.1, 0.2, "nothing"),
}
# (from, to) -> (name, start, end, place of the label, its side)
WAYS = {
    (WAITING, RUNNING): ("admit", (3.8, 5.05), (6.2, 5.05), (5.0, 5.2), "center"),
    (RUNNING, PREEMPTED): ("evict", (7.2, 4.2), (7.2, 1.9), (7.05, 2.8), "right"),
    (PREEMPTED, RUNNING): ("admit", (8.3, 1.9), (8.3, 4.2), (8.45, 2.8), "left"),
    (RUNNING, FINISHED): ("retire", (6.2, 4.35), (3.8, 1.75), (4.5, 3.0), "right"),
    (WAITING, FINISHED): ("abort", (1.2, 4.2), (1.2, 1.9), (1.35, 2.9), "left"),
    (PREEMPTED, FINISHED): ("abort", (6.2, 0.85), (3.8, 0.85), (5.0, 1.0), "center"),
}


class Move(NamedTuple):
    """One request changes its state. `source` is "" where it arrives."""

    step: int
    request_id: str
    source: str
    target: str


def moves(trace: Any) -> list[Move]:
    """Every change of state in a run, in the order in which it happens: within a step arrivals and aborts come before
    the plan, evictions before those who are scheduled, and whoever is done leaves when the step has run.

    trace: anything that a step player takes.
    """
    state: dict[str, str] = {}
    found: list[Move] = []

    def move(step: int, request_ids: list[str], target: str) -> None:
        for req_id in request_ids:
            if state.get(req_id) != target:
                found.append(Move(step, req_id, state.get(req_id, ""), target))
                state[req_id] = target

    for record in read_trace(trace)[1]:
        step = record["step"]
        for name in ("arrivals", "aborted", "preempted"):
            move(step, record[name], {"arrivals": WAITING, "aborted": FINISHED, "preempted": PREEMPTED}[name])
        move(step, [req_id for req_id, _ in record["scheduled"]], RUNNING)
        move(step, record["finished"], FINISHED)
    return found


def state_diagram(trace: Any, *, alt: str) -> Picture:
    """The states as boxes, and on each arrow how often the run took it; ways that it never took are dashed."""
    taken = Counter((m.source, m.target) for m in moves(trace))
    with house_style():
        figure, [ax] = panels(1, 3.2)
        ax.set_axis_off()
        ax.set_xlim(0, 10)
        ax.set_ylim(0, 6.8)
        for state, (left, bottom, owns) in BOXES.items():
            _draw_state(ax, left, bottom, state, owns)
        for way, (name, start, end, place, side) in WAYS.items():
            _draw_way(ax, f"{name} ×{taken[way]}", start, end, place, side, bool(taken[way]))
        _draw_way(ax, f"arrive ×{taken['', WAITING]}", (1.95, 6.7), (1.95, 5.9), (2.15, 6.2), "left", True)
        return Picture(figure, alt)


def _draw_state(ax: Axes, left: float, bottom: float, state: str, owns: str) -> None:
    look = {"facecolor": "white", "edgecolor": BLUE, "linewidth": 1.8}
    ax.add_patch(FancyBboxPatch((left, bottom), WIDE, HIGH, boxstyle="round,pad=0,rounding_size=0.25", **look))
    middle = left + WIDE / 2
    ax.text(middle, bottom + 1.05, state, ha="center", va="center", weight="bold", size=SIZE + 1)
    ax.text(middle, bottom + 0.45, owns, ha="center", va="center", size=SMALL, color=SOFT)


def _draw_way(
    ax: Axes,
    label: str,
    start: tuple[float, float],
    end: tuple[float, float],
    place: tuple[float, float],
    side: str,
    taken: bool,
) -> None:
    line = "-" if taken else (0, (3, 2.5))
    color = (ORANGE if label.startswith("evict") else INK) if taken else SOFT
    look = {"color": color, "linestyle": line, "linewidth": 1.6 if taken else 1.0}
    ax.add_patch(FancyArrowPatch(start, end, arrowstyle="-|>", mutation_scale=11, shrinkA=0, shrinkB=0, **look))
    ax.text(*place, label, ha=side, va="bottom", size=SMALL, color=color, weight="bold" if taken else "normal")
