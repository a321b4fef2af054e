"""Quantities taken apart: stacked bars, one a row. Knows numbers and their labels; knows no run. Chapter 1."""

from collections.abc import Mapping
from typing import Any

from matplotlib.patches import Patch

from mini_vllm.errors import ConfigError
from mini_vllm.viz.style import (
    BLUE,
    INK,
    ORANGE,
    SAND,
    SKY,
    SMALL,
    Picture,
    axis_label,
    house_style,
    legend_above,
    numbers,
    panels,
    short,
)

ROW_IN = 0.3
# In this order from the axis outwards; each differs from its neighbours in a greyscale print.
LOOKS: tuple[dict[str, Any], ...] = (
    {"facecolor": SKY, "edgecolor": "white"},
    {"facecolor": SAND, "edgecolor": ORANGE, "hatch": "\\\\\\\\"},
    {"facecolor": BLUE, "edgecolor": "white", "hatch": "////"},
    {"facecolor": "white", "edgecolor": INK, "hatch": "...."},
)


def stacked_bars(bars: Mapping[str, Mapping[str, float]], *, x_label: str, alt: str) -> Picture:
    """One horizontal bar a row, `row -> {part: value}`, the parts one after the other, their sum written behind.

    All rows have the same parts, in the order of the first; at most four.
    Raises ConfigError for other parts, and for values that are below zero or no numbers.
    """
    parts = _parts(bars)
    rows = {row: numbers(row, [values[part] for part in parts]) for row, values in bars.items()}
    for row, values in rows.items():
        if low := [f"{part}={value:g}" for part, value in zip(parts, values, strict=True) if value < 0]:
            raise ConfigError(f"{row}: {low[0]} is below zero; a part of a bar has a length of at least 0")
    with house_style():
        figure, (ax,) = panels(1, ROW_IN * len(rows) + 1.1)
        starts = [0.0] * len(rows)
        for part, look in zip(range(len(parts)), LOOKS, strict=False):
            widths = [values[part] for values in rows.values()]
            ax.barh(range(len(rows)), widths, 0.72, left=starts, linewidth=0.6, **look)
            starts = [start + width for start, width in zip(starts, widths, strict=True)]
        for y, total in enumerate(starts):
            ax.annotate(short(total), (total, y), (4, 0), textcoords="offset points", va="center", fontsize=SMALL)
        ax.set_yticks(range(len(rows)), list(rows))
        ax.tick_params(axis="y", length=0)
        ax.set_ylim(len(rows) - 0.4, -0.6)
        ax.set_xlim(0, 1.13 * max(starts) or 1)
        ax.set_xlabel(axis_label("x", x_label))
        ax.grid(axis="x")
        legend_above(figure, [Patch(label=part, **look) for part, look in zip(parts, LOOKS, strict=False)])
        return Picture(figure, alt)


def _parts(bars: Mapping[str, Mapping[str, float]]) -> list[str]:
    """The parts' names, which every row must have."""
    if not bars:
        raise ConfigError("there is nothing to draw: give at least one row")
    first = next(iter(bars))
    parts = list(bars[first])
    if not 1 <= len(parts) <= len(LOOKS):
        raise ConfigError(f"{first} has {len(parts)} parts; a bar has 1 to {len(LOOKS)}")
    for row, values in bars.items():
        if set(values) != set(parts):
            raise ConfigError(f"{row} has the parts {', '.join(values)}; {first} has {', '.join(parts)}: give the same")
    return parts
