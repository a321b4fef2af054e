"""Curves over any axis: lines and distributions. Knows numbers and their labels; knows no run. From chapter 1 on."""

from collections.abc import Mapping, Sequence
from math import ceil

from matplotlib.lines import Line2D

from mini_vllm.errors import ConfigError
from mini_vllm.viz.style import (
    INK,
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

HEIGHT_IN = 3.3


def lines(
    series: Mapping[str, tuple[Sequence[float], Sequence[float]]],
    *,
    x_label: str,
    y_label: str,
    alt: str,
    percent: bool = False,
    log2_x: bool = False,
    log_y: bool = False,
    points: Mapping[str, tuple[Sequence[float], Sequence[float]]] | None = None,
    points_label: str = "points: measured",
) -> Picture:
    """One line a series, `name -> (x, y)`.

    percent: y is a share, shown as per cent. log2_x, log_y: logarithmic axes; x is marked at its own values.
    points: measured or drawn values that belong to the line of the same name; they carry the markers then.
    Raises ConfigError for unequal lengths, values that are no numbers, and points without a line.
    """
    looks = series_styles(list(series))
    above_0 = {"positive_x": log2_x, "positive_y": log_y}
    drawn = {name: number_pairs(name, pair, **above_0) for name, pair in series.items()}
    spots = {name: number_pairs(f"{name} (points)", pair, **above_0) for name, pair in (points or {}).items()}
    if stray := [name for name in spots if name not in series]:
        raise ConfigError(f"points {stray[0]!r} belong to no line; the lines are {', '.join(series)}")
    scale = 100 if percent else 1
    with house_style():
        figure, (ax,) = panels(1, HEIGHT_IN)
        handles = []
        for name, (x, y) in drawn.items():
            look = {**looks[name]._asdict(), "markersize": 4.5}
            handles.append(Line2D([], [], label=name, **look))
            ax.plot(x, [scale * v for v in y], **({**look, "marker": None} if spots else look))
        for name, (x, y) in spots.items():
            ax.plot(x, [scale * v for v in y], looks[name].marker, color=looks[name].color, markersize=5.5)
        if spots:
            handles.append(Line2D([], [], marker="o", linestyle="none", color=INK, label=points_label))
        if log2_x:
            ax.set_xscale("log", base=2)
            ticks = sorted({v for x, _ in drawn.values() for v in x})
            ticks = ticks[:: ceil(len(ticks) / 12)]
            ax.set_xticks(ticks, [f"{v:g}" for v in ticks])
            ax.minorticks_off()
        if log_y:
            ax.set_yscale("log")
            ax.yaxis.set_major_formatter(lambda value, _: short(value))
        else:
            ax.set_ylim(bottom=min(0, *(scale * v for _, y in drawn.values() for v in y)))
        ax.set_xlabel(axis_label("x", x_label))
        ax.set_ylabel(f"{axis_label('y', y_label)} (%)" if percent else axis_label("y", y_label))
        ax.grid(axis="y")
        legend_above(figure, handles)
        return Picture(figure, alt)


def cdf(
    samples: Mapping[str, Sequence[float]],
    *,
    x_label: str,
    alt: str,
    y_label: str = "requests",
    percentiles: Sequence[float] = (50, 99),
    log_x: bool = False,
) -> Picture:
    """Share of the samples at or below each value, one curve a series; the curve counts, nothing is smoothed.

    percentiles: marked on each curve and named in the legend. Each is a sample: the smallest that at least so many
    per cent of the samples do not exceed.
    log_x: a logarithmic axis, for values above 0 that differ by powers of ten.
    """
    looks = series_styles(list(samples))
    drawn = {name: sorted(numbers(name, values, positive=log_x)) for name, values in samples.items()}
    with house_style():
        figure, (ax,) = panels(1, HEIGHT_IN + 0.15 * len(drawn))
        handles = []
        for name, values in drawn.items():
            look = looks[name]
            line = {"color": look.color, "linestyle": look.linestyle, "linewidth": look.linewidth}
            shares = [100 * (i + 1) / len(values) for i in range(len(values))]
            ax.plot([values[0], *values], [0, *shares], drawstyle="steps-post", **line)
            marks = {p: percentile(values, p) for p in percentiles}
            ax.plot(list(marks.values()), list(marks), look.marker, color=look.color, markeredgecolor=INK, markersize=6)
            said = "".join(f", p{p:g} {short(value)}" for p, value in marks.items())
            label = f"{name}: {len(values)} samples{said}"
            handles.append(Line2D([], [], marker=look.marker, markeredgecolor=INK, label=label, **line))
        if log_x:
            ax.set_xscale("log")
            ax.xaxis.set_major_formatter(lambda value, _: short(value))
        else:
            ax.set_xlim(left=min(0, *(values[0] for values in drawn.values())))
        ax.set_ylim(0, 103)
        ax.set_yticks(range(0, 101, 25))
        ax.set_xlabel(axis_label("x", x_label))
        ax.set_ylabel(f"{axis_label('y', y_label)} (%)")
        ax.grid()
        legend_above(figure, handles)
        return Picture(figure, alt)


def percentile(ascending: Sequence[float], percent: float) -> float:
    """The smallest of the values, given in ascending order, that at least `percent` per cent of them do not exceed."""
    if not 0 < percent <= 100:
        raise ConfigError(f"percentile {percent!r} must be above 0 and at most 100")
    return ascending[ceil(len(ascending) * percent / 100) - 1]
