"""The house style: one width, one font, inks that survive a photocopier, alt text. Knows matplotlib; knows no run.

Every picture is as wide as a book column and is scaled down on a phone, so no text in it is smaller than SMALL points.
"""

import base64
import html
import io
import os
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from matplotlib import style
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties, findfont, get_font
from PIL import Image

from mini_vllm.errors import ConfigError

WIDTH_IN, DPI, COLOURS = 4.8, 250, 96
SHOWN_PX = 600  # on a page, of the 1,200 that are stored; a phone shows about 340
INK, SOFT, GRID = "#222222", "#555555", "#DDDDDD"
BLUE, SKY, ORANGE, SAND, GREEN = "#0072B2", "#8CC5E8", "#D55E00", "#F2C9B0", "#009E73"
FONT, SIZE, SMALL = "DejaVu Sans", 9.5, 8.5  # points; matplotlib carries this font along

SETTINGS = {
    "font.family": FONT,
    "font.size": SIZE,
    "xtick.labelsize": SMALL,
    "ytick.labelsize": SMALL,
    "legend.fontsize": SMALL,
    "text.color": INK,
    "text.parse_math": False,  # "$" in a request's id is a dollar
    "axes.labelcolor": INK,
    "axes.edgecolor": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titleweight": "bold",
    "axes.titlesize": SIZE,
    "axes.titlelocation": "left",
    "axes.axisbelow": True,
    "grid.color": GRID,
    "hatch.linewidth": 0.6,
    "legend.frameon": False,
    "legend.handlelength": 2.6,
    "legend.columnspacing": 1.2,
    "svg.hashsalt": "every-step",
    "svg.fonttype": "path",
}


class SeriesStyle(NamedTuple):
    """How one series is drawn. No two share dash and marker, and each keeps its look in a greyscale print."""

    color: str
    linestyle: Any
    marker: str
    linewidth: float


SERIES = (
    SeriesStyle(BLUE, "-", "o", 1.7),
    SeriesStyle(ORANGE, "--", "s", 1.7),
    SeriesStyle(GREEN, "-.", "^", 1.7),
    SeriesStyle("#AA3377", ":", "D", 2.2),
    SeriesStyle("#B87A00", (0, (8, 2)), "v", 1.7),
    SeriesStyle("#4A9CCB", (0, (3, 1, 1, 1, 1, 1)), "P", 1.7),
    SeriesStyle(INK, (0, (1, 3)), "X", 1.7),
    SeriesStyle("#7A7A7A", "-", "*", 3.2),
    SeriesStyle("#661100", (0, (5, 5)), "p", 1.2),
    SeriesStyle("#44AA99", (0, (10, 2, 2, 2)), "<", 1.7),
)


@contextmanager
def house_style() -> Iterator[None]:
    """matplotlib settings of all our pictures, whatever the reader's own settings are."""
    with style.context(["default", SETTINGS]):
        yield


class Picture:
    """A finished figure: PNG for the page, `alt` for those who do not see it. As the last value of a cell it shows.

    Raises ConfigError for an alt text of fewer than five words, and for characters that the font does not have.
    """

    def __init__(self, figure: Figure, alt: str) -> None:
        self.alt = " ".join(str(alt or "").split())
        if (words := len(self.alt.split())) < 5:
            raise ConfigError(f"alt text {alt!r} has {words} words; say in at least 5 what the picture shows")
        self.figure = figure
        self.png = _with_few_colours(self._rendered("png", metadata={"Software": None}))

    def _rendered(self, kind: str, metadata: dict[str, Any]) -> bytes:
        buffer = io.BytesIO()
        with house_style(), warnings.catch_warnings():
            warnings.filterwarnings("error", message="Glyph")
            try:
                self.figure.savefig(buffer, format=kind, dpi=DPI, metadata=metadata)
            except UserWarning as missing:
                raise ConfigError(f"{missing}: the pictures' font is {FONT}; use other characters") from None
        return buffer.getvalue()

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the picture to `path`, which ends in .png, .svg or .pdf, and return where."""
        target = Path(path)
        dates = {".svg": {"Date": None}, ".pdf": {"CreationDate": None, "Producer": None, "Creator": None}}
        kind = target.suffix.lower()
        if kind not in (".png", *dates):
            raise ConfigError(f"cannot write a picture as {target.name!r}: choose .png, .svg or .pdf")
        target.write_bytes(self.png if kind == ".png" else self._rendered(kind[1:], dates[kind]))
        return target

    def html(self) -> str:
        """The picture as an <img> that needs no file."""
        source = base64.b64encode(self.png).decode("ascii")
        shown = f"width:{SHOWN_PX}px;max-width:100%;height:auto;background:#fff"
        return f'<img src="data:image/png;base64,{source}" alt="{html.escape(self.alt)}" style="{shown}">'

    def __repr__(self) -> str:
        return f"[picture] {self.alt}"

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> tuple[dict[str, Any], dict[str, Any]]:
        """PNG with its alt text and the width to show it at, where IPython keeps them too.

        The book's output_alt extension takes both. JupyterLab 4.6 takes the width only, from whomever the picture is.
        """
        shown = {"alt": self.alt, "width": SHOWN_PX}
        return {"image/png": self.png, "text/plain": repr(self)}, {"image/png": shown}


def _with_few_colours(png: bytes) -> bytes:
    """The same picture in a third of the bytes: a palette loses nothing that an eye would see in flat inks."""
    buffer = io.BytesIO()
    with Image.open(io.BytesIO(png)) as image:
        flat = image.convert("RGB").quantize(COLOURS, method=Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
        flat.save(buffer, "png", optimize=True)
    return buffer.getvalue()


def panels(num: int, height_in: float, height_ratios: Sequence[float] | None = None) -> tuple[Figure, list[Axes]]:
    """A figure of the house's width with `num` panels, one under the other on one x axis. Call within house_style()."""
    figure = Figure(figsize=(WIDTH_IN, height_in), layout="constrained", facecolor="white")
    FigureCanvasAgg(figure)
    grid = figure.subplots(num, 1, sharex=True, squeeze=False, height_ratios=height_ratios)
    return figure, list(grid[:, 0])


def legend_above(figure: Figure, handles: Sequence[Artist]) -> None:
    """The legend above all panels, in as many columns as the width allows."""
    renderer = figure.canvas.get_renderer()
    for columns in range(min(len(handles), 4), 0, -1):
        legend = figure.legend(handles=handles, loc="outside upper left", ncols=columns)
        if columns == 1 or legend.get_window_extent(renderer).width <= 0.98 * figure.bbox.width:
            return
        legend.remove()


# ---- what a picture refuses


def series_styles(names: Sequence[str]) -> dict[str, SeriesStyle]:
    """One style for each name; ConfigError for none, and for more than can be told apart."""
    if not names:
        raise ConfigError("there is nothing to draw: give at least one series")
    if len(names) > len(SERIES):
        raise ConfigError(
            f"{len(names)} series cannot be told apart without colour: draw {len(SERIES)} at most, or split the picture"
        )
    return dict(zip(names, SERIES, strict=False))


def numbers(name: str, values: Sequence[float], *, positive: bool = False) -> list[float]:
    """The values of one series as floats; ConfigError names the series, the place and the value that is no number.

    positive: they go on a logarithmic axis, which has no place for zero.
    """
    found = []
    for place, value in enumerate(values):
        try:
            number = float(value)
        except (TypeError, ValueError):
            raise ConfigError(f"{name}: value {place} is {value!r}, not a number; leave it out") from None
        if number != number or number in (float("inf"), float("-inf")):
            raise ConfigError(f"{name}: value {place} is {number}; leave it out or mend what computed it")
        if positive and number <= 0:
            raise ConfigError(f"{name}: value {place} is {number:g}; a logarithmic axis needs values above 0")
        found.append(number)
    if not found:
        raise ConfigError(f"{name} has no values: give it at least one, or leave it out")
    return found


def number_pairs(
    name: str, pair: tuple[Sequence[float], Sequence[float]], *, positive_x: bool = False, positive_y: bool = False
) -> tuple[list[float], list[float]]:
    """The x and y of one series as floats, of one length."""
    try:
        x, y = pair
    except (TypeError, ValueError):
        raise ConfigError(f"{name} must be a pair (x values, y values), not {pair!r:.60}") from None
    x, y = numbers(f"{name}, x", x, positive=positive_x), numbers(f"{name}, y", y, positive=positive_y)
    if len(x) != len(y):
        raise ConfigError(f"{name} has {len(x)} x values but {len(y)} y values; give as many of one as of the other")
    return x, y


def axis_label(axis: str, text: str) -> str:
    """The label of an axis; ConfigError where it is empty, since nobody can read an axis without its unit."""
    if not str(text).strip():
        raise ConfigError(f"the {axis} axis has no label: name what it shows and its unit, as in 'TTFT (ms)'")
    return str(text)


# ---- text in pictures


@cache
def in_font(text: str) -> bool:
    """True if the bundled font has every character of `text`."""
    has = get_font(findfont(FontProperties(family=FONT))).get_charmap()
    return all(ord(char) in has for char in text)


def short(value: float) -> str:
    """Three digits: "0.0123", "4.5", "12,300", "1.0e-09"."""
    rounded = float(f"{value:.3g}")
    if abs(rounded) >= 1000:
        return f"{rounded:,.0f}"
    return f"{rounded:.3g}" if rounded == 0 or abs(rounded) >= 1e-4 else f"{rounded:.1e}"
