"""Static pictures in one house style, readable in greyscale, each with alt text. Needs matplotlib. All chapters."""

import io
from collections.abc import Mapping, Sequence
from contextlib import contextmanager

import matplotlib.pyplot as plt
from matplotlib.patches import Patch, Rectangle

from mini_vllm.batching.timeline import DECODE, IDLE, PADDING, PREFILL, Timeline
from mini_vllm.errors import ConfigError

INK = "#222222"
# Okabe-Ito: told apart by people who see colours differently; every use is doubled by hatch, marker or dash.
CYCLE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
MARKERS = "osD^vP"
DASHES = ("-", "--", "-.", ":", (0, (5, 1)), (0, (3, 1, 1, 1)))

CELL_STYLE = {
    PREFILL: {"facecolor": "#0072B2", "edgecolor": "white", "hatch": "////"},
    DECODE: {"facecolor": "#8CC5E8", "edgecolor": "white"},
    PADDING: {"facecolor": "#F2C9B0", "edgecolor": "#D55E00", "hatch": "xxxx"},
    IDLE: {"facecolor": "none", "edgecolor": "#BBBBBB", "linestyle": ":"},
}
CELL_LABEL = {
    PREFILL: "prefill and first token",
    DECODE: "one more token",
    PADDING: "computed, then thrown away",
    IDLE: "slot stands idle",
}


class Picture:
    """A finished figure: PNG for the page, `alt` for those who do not see it. Last expression of a cell."""

    def __init__(self, figure: plt.Figure, alt: str):
        if len(alt.split()) < 5:
            raise ConfigError(
                f"alt text {alt!r} has {len(alt.split())} words; say in at least 5 what the picture shows"
            )
        buffer = io.BytesIO()
        figure.savefig(buffer, format="png", dpi=140, bbox_inches="tight", metadata={"Software": None})
        plt.close(figure)
        self.png = buffer.getvalue()
        self.alt = alt

    def _repr_mimebundle_(self, include=None, exclude=None):
        return {"image/png": self.png, "text/plain": f"[picture] {self.alt}"}, {"image/png": {"alt": self.alt}}


@contextmanager
def house_style():
    """matplotlib settings of all our pictures."""
    settings = {
        "font.family": "DejaVu Sans",
        "font.size": 10,
        "text.color": INK,
        "axes.labelcolor": INK,
        "axes.edgecolor": INK,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.titleweight": "bold",
        "axes.titlesize": 10.5,
        "axes.titlelocation": "left",
        "axes.grid": False,
        "figure.facecolor": "white",
        "hatch.linewidth": 0.6,
        "legend.frameon": False,
    }
    with plt.rc_context(settings):
        yield


def slot_time(timelines: Mapping[str, Timeline], *, alt: str) -> Picture:
    """Slot × time grids, one under the other on one time axis; the key of each is its title."""
    num_steps = max(t.num_steps for t in timelines.values())
    heights = [t.num_slots + 1.6 for t in timelines.values()]
    with house_style():
        figure, axes = plt.subplots(
            len(timelines),
            1,
            figsize=(min(11.0, 2.6 + 0.3 * num_steps), 0.36 * sum(heights) + 0.9),
            sharex=True,
            squeeze=False,
            gridspec_kw={"height_ratios": heights, "hspace": 0.5},
        )
        for ax, (title, timeline) in zip(axes[:, 0], timelines.items(), strict=True):
            _draw_grid(ax, timeline)
            ax.set_title(title)
        every = 1 if num_steps <= 24 else 5
        # A tick stands under the middle of its step's cell.
        axes[-1, 0].set_xticks([step + 0.5 for step in range(0, num_steps, every)], range(0, num_steps, every))
        axes[-1, 0].set_xlim(0, num_steps)
        axes[-1, 0].set_xlabel("step")
        kinds = dict.fromkeys(c.kind for t in timelines.values() for row in t.grid for c in row)
        handles = [Patch(label=CELL_LABEL[k], **CELL_STYLE[k]) for k in CELL_STYLE if k in kinds]
        figure.legend(handles=handles, loc="upper center", bbox_to_anchor=(0.5, 0.03), ncols=2)
    return Picture(figure, alt)


def _draw_grid(ax: plt.Axes, timeline: Timeline) -> None:
    label_cells = timeline.num_steps <= 48
    for slot, row in enumerate(timeline.grid):
        for step, cell in enumerate(row):
            ax.add_patch(Rectangle((step + 0.04, slot + 0.08), 0.92, 0.84, linewidth=0.6, **CELL_STYLE[cell.kind]))
            if cell.request_id and label_cells:
                colour = "white" if cell.kind == PREFILL else INK
                box = {"boxstyle": "round,pad=0.15", "linewidth": 0, "facecolor": CELL_STYLE[cell.kind]["facecolor"]}
                where = {"ha": "center", "va": "center", "fontsize": 8, "color": colour}
                ax.text(step + 0.5, slot + 0.52, cell.request_id, bbox=box, **where)
    ax.set_ylim(timeline.num_slots, 0)
    ax.set_yticks([i + 0.5 for i in range(timeline.num_slots)], [f"slot {i}" for i in range(timeline.num_slots)])
    ax.tick_params(axis="y", length=0)
    ax.spines["left"].set_visible(False)


def lines(
    series: Mapping[str, tuple[Sequence[float], Sequence[float]]],
    *,
    x_label: str,
    y_label: str,
    alt: str,
    percent: bool = False,
    log2_x: bool = False,
    points: Mapping[str, tuple[Sequence[float], Sequence[float]]] | None = None,
    points_label: str = "points: measured",
) -> Picture:
    """One line a series, `name -> (x, y)`. percent: y is a share, shown as per cent.

    points: measured or drawn values that belong to the line of the same name; they carry the markers then.
    """
    scale = 100 if percent else 1
    with house_style():
        figure, ax = plt.subplots(figsize=(7.6, 3.6))
        for i, (name, (x, y)) in enumerate(series.items()):
            marker = None if points else MARKERS[i % 6]
            style = {"color": CYCLE[i % 6], "linestyle": DASHES[i % len(DASHES)], "marker": marker}
            ax.plot(x, [scale * v for v in y], label=name, markersize=4.5, **style)
            if points and name in points:
                x, y = points[name]
                ax.plot(x, [scale * v for v in y], MARKERS[i % 6], color=CYCLE[i % 6], markersize=5)
        if points:
            ax.plot([], [], "o", color=INK, markersize=5, label=points_label)
        if log2_x:
            ax.set_xscale("log", base=2)
            ticks = sorted({v for x, _ in series.values() for v in x})
            ax.set_xticks(ticks, [f"{v:g}" for v in ticks])
            ax.minorticks_off()
        ax.set_ylim(bottom=0)
        ax.set_xlabel(x_label)
        ax.set_ylabel(f"{y_label} (%)" if percent else y_label)
        ax.grid(axis="y", color="#DDDDDD", linewidth=0.8)
        ax.legend(loc="upper left", bbox_to_anchor=(1.01, 1.0))
    return Picture(figure, alt)
