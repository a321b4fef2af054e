"""The roofline: what a card can reach at each arithmetic intensity, and what was reached. Knows numbers. Chapter 2."""

from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from mini_vllm.errors import ConfigError
from mini_vllm.viz.style import (
    INK,
    SMALL,
    Picture,
    axis_label,
    house_style,
    legend_above,
    number_pairs,
    numbers,
    panels,
    series_styles,
    short,
)

UNITS = ((1e15, "PFLOP/s"), (1e12, "TFLOP/s"), (1e9, "GFLOP/s"), (1e6, "MFLOP/s"), (1.0, "FLOP/s"))
Points = Mapping[str, tuple[Sequence[float], Sequence[float]]]


def roofline(
    roofs: Mapping[str, tuple[float, float]],
    *,
    alt: str,
    measured: Points | None = None,
    stored: Points | None = None,
    x_label: str = "arithmetic intensity (FLOP per byte)",
) -> Picture:
    """Log-log roofs of one or more cards with their ridge points, and points below them.

    roofs: card -> (peak in FLOP/s, memory bandwidth in bytes/s); the roof is min(peak, bandwidth × intensity).
    measured: name -> (intensities in FLOP per byte, speeds in FLOP/s) of this run, drawn filled.
    stored: the same for recorded or computed points, drawn hollow. A name in both has one marker, so that this
        machine can be compared with the record of another.
    """
    looks = series_styles(list(roofs))
    cards = {name: numbers(f"roof {name}", roof, positive=True) for name, roof in roofs.items()}
    if bad := [name for name, roof in cards.items() if len(roof) != 2]:
        raise ConfigError(f"roof {bad[0]} needs two numbers: the peak in FLOP/s and the bandwidth in bytes/s")
    shown = [
        (name, number_pairs(f"{name} ({word})", pair, positive_x=True, positive_y=True), word == "measured")
        for word, points in (("measured", measured), ("stored", stored))
        for name, pair in (points or {}).items()
    ]
    names = list(dict.fromkeys(name for name, _, _ in shown))
    markers = {name: look.marker for name, look in (series_styles(names) if names else {}).items()}
    scale, unit = next((u for u in UNITS if max(peak for peak, _ in cards.values()) >= u[0]), UNITS[-1])
    ridges = {name: peak / bandwidth for name, (peak, bandwidth) in cards.items()}
    every_x = [*ridges.values(), *(x for _, (xs, _), _ in shown for x in xs)]
    left, right = min(every_x) / 8, max(every_x) * 8
    with house_style():
        figure, (ax,) = panels(1, 3.6)
        for name, (peak, bandwidth) in cards.items():
            look, ridge = looks[name], ridges[name]
            corners = [left, ridge, right]
            heights = [min(peak, bandwidth * x) / scale for x in corners]
            line = {"color": look.color, "linestyle": look.linestyle, "linewidth": look.linewidth}
            label = f"{name}: ridge {short(ridge)} FLOP/byte"
            ax.plot(corners, heights, label=label, **line)
            ax.plot([ridge], [peak / scale], "|", color=look.color, markersize=9, markeredgewidth=2)
        handles = ax.get_legend_handles_labels()[0]
        for name, (x, y), is_measured in shown:
            face = INK if is_measured else "white"
            spot = {"marker": markers[name], "color": INK, "markerfacecolor": face, "markersize": 6}
            ax.plot(x, [v / scale for v in y], linestyle="none", **spot)
            word = "" if not (measured and stored) else ", measured" if is_measured else ", stored"
            handles.append(Line2D([], [], linestyle="none", label=name + word, **spot))
        ax.set_xscale("log")
        ax.set_yscale("log")
        ax.set_xlim(left, right)
        for axis in (ax.xaxis, ax.yaxis):
            axis.set_major_formatter(lambda value, _: short(value))
        ax.set_xlabel(axis_label("x", x_label))
        ax.set_ylabel(f"speed ({unit})")
        ax.grid()
        ax.set_ylim(top=5 * max(peak for peak, _ in cards.values()) / scale)
        _name_regions(ax)
        legend_above(figure, handles)
        return Picture(figure, alt)


def _name_regions(ax: Axes) -> None:
    """Which side of the ridge is bound by what."""
    say = {"transform": ax.transAxes, "fontsize": SMALL, "color": INK, "style": "italic"}
    ax.text(0.02, 0.97, "← limited by memory", ha="left", va="top", **say)
    ax.text(0.98, 0.97, "limited by arithmetic →", ha="right", va="top", **say)
