"""Draws the closed loop of a server as SVG, with the parts lit that a chapter is about. Knows no package code.

`python tools/draw_loop.py` writes book/_static/loop.svg and one loop-chNN.svg a chapter; `--check` only compares.
"""

import sys
from pathlib import Path

STATIC = Path(__file__).resolve().parent.parent / "book" / "_static"

# name -> (x, y, width, height, first line, second line)
BOXES = {
    "waiting": (96, 74, 132, 58, "waiting", "has no KV blocks"),
    "budgets": (284, 68, 156, 70, "two budgets", "tokens · KV blocks"),
    "running": (496, 74, 132, 58, "running", "owns KV blocks"),
    "plan": (692, 74, 148, 58, "plan", "SchedulerOutput"),
    "worker": (692, 212, 148, 58, "worker", "forward, sample"),
    "update": (470, 212, 184, 58, "update", "append, stop, free"),
}
# path, label, label position
ARROWS = [
    ("M 18 103 H 90", "arrive", (50, 94)),
    ("M 228 103 H 278", "peek", (253, 94)),
    ("M 440 103 H 490", "admit", (465, 94)),
    ("M 628 103 H 686", "", (0, 0)),
    ("M 766 132 V 206", "", (0, 0)),
    ("M 692 241 H 660", "", (0, 0)),
    ("M 562 212 V 138", "not done: stays", (618, 182)),
    ("M 470 241 H 300", "done: text out, blocks free", (385, 232)),
    ("M 562 74 V 30 H 162 V 68", "preempted: KV ran short", (362, 22)),
]
LIT = {
    "loop": set(BOXES),
    "loop-ch01": {"waiting", "running", "update"},
    "loop-ch02": {"worker"},
    "loop-ch03": {"waiting", "budgets", "running"},
    "loop-ch04": {"waiting", "running", "update"},
    "loop-ch05": {"waiting", "budgets"},
    "loop-ch06": {"budgets", "running", "update"},
    "loop-ch07": {"waiting", "budgets", "running"},
    "loop-ch13": {"worker"},
}


def draw(lit: set[str]) -> str:
    """The SVG text; boxes in `lit` are filled, the others are outlines."""
    parts = [
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 860 292" role="img" '
        'font-family="DejaVu Sans, Verdana, Helvetica, sans-serif">',
        "<title>The closed loop of a server: arrive, waiting, two budgets, running, plan, worker, update</title>",
        '<defs><marker id="tip" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7" markerHeight="7" '
        'orient="auto"><path d="M0 0 L10 5 L0 10 z" fill="#444"/></marker></defs>',
        # A ground of its own: the picture stays readable on a dark page.
        '<rect x="1" y="1" width="858" height="290" rx="10" fill="#ffffff" stroke="#d0d0d0"/>',
    ]
    for path, label, (x, y) in ARROWS:
        parts.append(f'<path d="{path}" fill="none" stroke="#444" stroke-width="1.8" marker-end="url(#tip)"/>')
        if label:
            parts.append(f'<text x="{x}" y="{y}" font-size="12" text-anchor="middle" fill="#444">{label}</text>')
    for name, (x, y, width, height, first, second) in BOXES.items():
        fill, ink, weight = ("#0b5c94", "#ffffff", 2) if name in lit else ("#ffffff", "#444444", 1.4)
        middle = x + width / 2
        parts += [
            f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="7" fill="{fill}" '
            f'stroke="#0b5c94" stroke-width="{weight}"/>',
            f'<text x="{middle:g}" y="{y + height / 2 - 3:g}" font-size="15" font-weight="bold" '
            f'text-anchor="middle" fill="{ink}">{first}</text>',
            f'<text x="{middle:g}" y="{y + height / 2 + 15:g}" font-size="11.5" text-anchor="middle" '
            f'fill="{ink}">{second}</text>',
        ]
    return "\n".join([*parts, "</svg>", ""])


def main() -> int:
    drifted = []
    for name, lit in LIT.items():
        path, text = STATIC / f"{name}.svg", draw(lit)
        if "--check" not in sys.argv:
            path.write_text(text, encoding="utf-8")
        elif not path.exists() or path.read_text(encoding="utf-8") != text:
            drifted.append(path.name)
    if drifted:
        print(f"{', '.join(drifted)} differ from what tools/draw_loop.py draws: run python tools/draw_loop.py")
    return bool(drifted)


if __name__ == "__main__":
    sys.exit(main())
