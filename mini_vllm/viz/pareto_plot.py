"""The choices that nobody beats on both axes, and the rest. Knows numbers; knows no simulator. Chapter 12."""

from collections.abc import Iterable, Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patheffects import withStroke
from matplotlib.transforms import Bbox

from mini_vllm.errors import ConfigError
from mini_vllm.sim.pareto import HIGH, LOW, pareto_front
from mini_vllm.viz.style import (
    INK,
    SMALL,
    WIDTH_IN,
    Picture,
    axis_label,
    house_style,
    legend_above,
    numbers,
    panels,
    series_styles,
)

BETTER = {LOW: "← better", HIGH: "better →"}


def pareto(
    points: Mapping[str, tuple[float, float]],
    *,
    x_label: str,
    y_label: str,
    alt: str,
    x_best: str = LOW,
    y_best: str = HIGH,
    series: Mapping[str, str] | None = None,
) -> Picture:
    """Every choice as a point, `name -> (x, y)`; those on the front stand out and carry their names, the rest is faint.

    The front is a staircase: between two of its points nothing was tried, so nothing better than the worse is shown.
    series: name -> series; each series then has its own marker and its own front.
    """
    if stray := [name for name in series or () if name not in points]:
        raise ConfigError(f"series names {stray[0]!r}, which is no point; the points are {', '.join(points)}")
    if series and (bare := [name for name in points if name not in series]):
        raise ConfigError(f"point {bare[0]!r} belongs to no series: name one for it")
    for name, point in points.items():
        if len(numbers(f"point {name}", point)) != 2:
            raise ConfigError(f"point {name} has {len(point)} values, not an x and a y")
    names = list(dict.fromkeys((series or dict.fromkeys(points, "")).values()))
    looks = series_styles(names)
    with house_style():
        figure, (ax,) = panels(1, 3.5)
        handles: list[Line2D] = []
        named: dict[str, tuple[float, float]] = {}
        for name in names:
            own = {point: xy for point, xy in points.items() if not series or series[point] == name}
            front, look = pareto_front(own, x_best=x_best, y_best=y_best), looks[name]
            rest = [own[point] for point in own if point not in front]
            faint = {"color": "white", "markeredgecolor": "#999999", "markersize": 5}
            ax.plot([x for x, _ in rest], [y for _, y in rest], look.marker, zorder=1, **faint)
            on = [own[point] for point in front]
            stairs = "steps-post" if x_best == LOW else "steps-pre"
            bold = {"drawstyle": stairs, "markersize": 7, "markeredgecolor": INK}
            ax.plot([x for x, _ in on], [y for _, y in on], **look._asdict(), **bold)
            named |= {point: own[point] for point in front}
            label = f"front, {name}" if name else "the front: none is better on both axes"
            handles.append(Line2D([], [], **look._asdict(), markeredgecolor=INK, label=label))
        if len(points) > len(named):
            handles.append(Line2D([], [], marker="o", linestyle="none", **faint, label="not on the front"))
        _leave_room(ax, named, x_best)
        ax.set_xlabel(f"{axis_label('x', x_label)}, {BETTER[x_best]}")
        ax.set_ylabel(f"{axis_label('y', y_label)}, {BETTER[y_best]}")  # turned upright: → points up
        ax.grid()
        legend_above(figure, handles)
        _name_points(ax, named, x_best, y_best)
        return Picture(figure, alt)


def _leave_room(ax: Axes, names: Iterable[str], x_best: str) -> None:
    """Widen the axes, on the better side by the longest name."""
    left, right = ax.dataLim.intervalx
    room = (right - left or 1.0) * min(0.8, 0.06 + 0.6 * SMALL * max(map(len, names)) / (0.85 * 72 * WIDTH_IN))
    edge = 0.06 * (right - left or 1.0)
    ax.set_xlim(*((left - room, right + edge) if x_best == LOW else (left - edge, right + room)))
    ax.margins(y=0.12)


def _name_points(ax: Axes, front: Mapping[str, Sequence[float]], x_best: str, y_best: str) -> None:
    """Names on the better side of the points, where by definition nobody of the series stands.

    A name that would lie on another is left out; `pareto_front` lists them all.
    """
    right, up = x_best == HIGH, y_best == HIGH
    ax.figure.draw_without_rendering()  # settles the scales, so that places on the page are known
    taken: list[Bbox] = []
    for name, (x, y) in front.items():
        shift = (5 if right else -5, 5 if up else -5)
        place = {"ha": "left" if right else "right", "va": "bottom" if up else "top"}
        words = ax.annotate(name, (x, y), shift, textcoords="offset points", fontsize=SMALL, color=INK, **place)
        words.set_in_layout(False)
        words.set_path_effects([withStroke(linewidth=2.5, foreground="white")])
        box = words.get_window_extent(ax.figure.canvas.get_renderer())
        words.set_visible(not any(box.overlaps(other) for other in taken))
        taken += [box] if words.get_visible() else []
