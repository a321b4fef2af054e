"""The whole run as a still picture, in text or SVG. Knows the timeline; nothing moves. From chapter 1 on."""

from __future__ import annotations

from html import escape
from itertools import pairwise

from mini_vllm.viz.timeline import (
    DECODE,
    IDLE,
    PREEMPTED,
    PREFILL,
    RECOMPUTE,
    SWAPPED,
    WAITING,
    Cell,
    Lane,
    Timeline,
)

TEXT_COLUMNS, TEXT_LANES, TEXT_EVENTS = 100, 24, 8
OWNER_COLOURS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#8a7f6a", "#d6c400")
INK, SOFT, ALARM = "#1c2229", "#5a6572", "#c44601"
LANE_HEIGHT = 22
_LETTERS = {"w": ".", "s": "s", "p": "P", "c": "C", "d": "d", "i": "-", "x": "X", "a": "A"}
_RARE_FIRST = "XARFPCd-s. "  # when several steps share a character, the rarest kind is shown
_KEY = "key: . waiting  P prefill  d decode  - not scheduled  X evicted (preempted)  R resumed  C recompute  F finished"
_SVG_KEY = (
    "dotted waiting · striped prefill or recompute · solid decode · outline not scheduled"
    " · × evicted (preempted) · dark end finished"
)


def text(line: Timeline, title: str, events: list[str]) -> str:
    """Rows are requests, columns are steps; below, the steps that threw somebody out, or the first ones."""
    steps = len(line.records)
    per = -(-steps // TEXT_COLUMNS)
    margin = max([6, *(len(lane.label) + 1 for lane in line.lanes)])
    out = [title.replace("\n", " "), " " * margin + _ruler(line, per)]
    for lane in line.lanes[:TEXT_LANES]:
        letters = [_letter(cell) for cell in lane.cells]
        out.append(
            lane.label.ljust(margin)
            + "".join(min(letters[i : i + per], key=_RARE_FIRST.index) for i in range(0, steps, per)).rstrip()
        )
    if len(line.lanes) > TEXT_LANES:
        out.append(f"… and {len(line.lanes) - TEXT_LANES} more requests")
    out.append(_KEY + (f"  (1 column = {per} steps)" if per > 1 else ""))
    rare = [i for i, record in enumerate(line.records) if record["preempted"] or record["aborted"]]
    told = sorted([*rare, *(i for i in range(steps) if i not in set(rare))][:TEXT_EVENTS])
    return "\n".join(out + [events[i].replace("\n", " ")[:160] for i in told])


def _letter(cell: Cell | None) -> str:
    if cell is None:
        return " "
    return "F" if "f" in cell.marks else "R" if "r" in cell.marks else _LETTERS[cell.kind]


def _ruler(line: Timeline, per: int) -> str:
    marks = ""
    for i in range(0, len(line.records), 10 * per):
        marks = marks.ljust(i // per) + str(line.numbers[i])
    return marks


def svg(line: Timeline, title: str) -> str:
    """Lanes × steps on white, readable in greyscale: shapes carry the kind, colour only the request."""
    return svg_of([(line, "")], title)


def svg_of(runs: list[tuple[Timeline, str]], title: str) -> str:
    """Several runs one below the other, each under its name, steps in line."""
    steps, left, top = max(len(line.records) for line, _ in runs), 64, 26.0
    width = max(5.0, min(24.0, 900 / steps))
    body = []
    for line, name in runs:
        body += _svg_run(line, name, left, top, width)
        top += 18 + LANE_HEIGHT * len(line.lanes) + (20 if name else 0)
    # A run of a few steps is narrower than the words above and below it.
    words = max(6 * len(_SVG_KEY), *(8 * len(text) for text in (title, *(name for _, name in runs))))
    w, h = max(left + steps * width + 12, 8 + words), top + 30
    return "".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {w:g} {h:g}" width="{w:g}" role="img" '
            f'font-family="system-ui, sans-serif" font-size="11"><title>{escape(title)}</title>',
            f'<rect width="{w:g}" height="{h:g}" fill="#fff"/>',
            f'<text x="8" y="17" font-size="13" font-weight="600" fill="{INK}">{escape(title)}</text>',
            *body,
            f'<text x="8" y="{h - 9:g}" fill="{SOFT}">{_SVG_KEY}</text></svg>',
        ]
    )


def _svg_run(line: Timeline, name: str, left: float, top: float, width: float) -> list[str]:
    """Name, numbers of the steps, one row a request."""
    every = 5 if width >= 9 else 10 if width >= 5.5 else 20
    out = []
    if name:
        out.append(f'<text x="8" y="{top + 13:g}" font-weight="600" fill="{INK}">{escape(name)}</text>')
        top += 20
    for i, number in enumerate(line.numbers):
        if number % every == 0:
            x = left + (i + 0.5) * width
            out.append(f'<text x="{x:g}" y="{top + 11:g}" text-anchor="middle" fill="{SOFT}">{number}</text>')
    for k, lane in enumerate(line.lanes):
        y = top + 18 + k * LANE_HEIGHT
        out.append(f'<text x="8" y="{y + 15:g}" font-weight="600" fill="{INK}">{escape(lane.label)}</text>')
        out += _svg_lane(lane, OWNER_COLOURS[k % len(OWNER_COLOURS)], left, y, width)
    return out


def _svg_lane(lane: Lane, colour: str, left: float, y: float, width: float) -> list[str]:
    """One drawing for each stretch of steps of the same kind, then a dark end where the request finished."""
    kinds = [cell.kind if cell else "" for cell in lane.cells]
    edges = [0, *(i for i in range(1, len(kinds)) if kinds[i] != kinds[i - 1]), len(kinds)]
    out = [_svg_stretch(kinds[a], colour, left + a * width, y, width, b - a) for a, b in pairwise(edges)]
    for i, cell in enumerate(lane.cells):
        if cell and "f" in cell.marks:
            x = left + (i + 1) * width - 2.5
            out.append(f'<rect x="{x:g}" y="{y + 1:g}" width="2.5" height="20" fill="{INK}"/>')
    return out


def _svg_stretch(kind: str, colour: str, x: float, y: float, width: float, steps: int) -> str:
    w, middle = steps * width, y + 11
    box = f'<rect x="{x + 0.5:g}" y="{y + 3:g}" width="{w - 1:g}" height="16" rx="1.5" '
    if kind in (WAITING, SWAPPED):
        dash = "1.5 3.5" if kind == WAITING else "6 3"
        dots = f'stroke="{SOFT}" stroke-width="1.5" stroke-dasharray="{dash}"'
        return f'<path d="M{x + 1:g} {middle:g}h{w - 2:g}" {dots}/>'
    if kind == PREEMPTED:
        r = min(4.5, width / 2)
        d = f"M{x + w / 2 - r:g} {middle - r:g}l{2 * r:g} {2 * r:g}m0 {-2 * r:g}l{-2 * r:g} {2 * r:g}"
        return f'<path d="{d}" stroke="{ALARM}" stroke-width="2.2"/>'
    if kind == DECODE:
        edges = "".join(f"M{x + n * width:g} {y + 3:g}v16" for n in range(1, steps))
        return f'{box}fill="{colour}"/>' + (f'<path d="{edges}" stroke="#fff"/>' if edges else "")
    if kind in (PREFILL, RECOMPUTE):
        start, rise = (y + 18.5, -15) if kind == PREFILL else (y + 3.5, 15)
        stripes = "".join(f"M{x + s:g} {start:g}l3 {rise}" for s in range(2, int(w) - 3, 4))
        frame = f'{box}fill="{colour}" fill-opacity=".15" stroke="{colour}"/>'
        return f'{frame}<path d="{stripes}" stroke="{colour}"/>'
    return f'{box}fill="none" stroke="{colour}"/>' if kind == IDLE else ""
