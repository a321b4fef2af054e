"""Every picture: alt text, one width, legible on a phone, in greyscale and on a dark page, the same bytes each time."""

import base64
import inspect
import io
import json
import os
import re
import subprocess
import sys
from itertools import combinations
from pathlib import Path

import matplotlib
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_hex, to_rgb
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties, findfont
from matplotlib.lines import Line2D
from matplotlib.patches import Patch, Rectangle
from matplotlib.text import Text
from PIL import Image

from mini_vllm.errors import ConfigError
from mini_vllm.viz import lane_plots, plots, run_plots
from mini_vllm.viz.style import BLUE, FONT, INK, SAND, SERIES, SKY, SMALL, WIDTH_IN, in_font, short
from tests.viz.player_traces import small_trace
from tests.viz.plot_gallery import ALT, PICTURES, picture

ROOT = Path(__file__).resolve().parents[2]
EVERY = pytest.mark.parametrize("name", PICTURES)
NOT_DRAWING = ("Picture", "house_style", "pareto_front", "pool_state", "tile_map")
DRAWING = [getattr(plots, name) for name in plots.__all__ if name not in NOT_DRAWING]
PHONE_PX = 340  # of a screen of 390


def opened(name: str) -> Image.Image:
    return Image.open(io.BytesIO(picture(name).png))


# ---- alt text


@pytest.mark.parametrize("draw", DRAWING, ids=lambda draw: draw.__name__)
def test_alt_text_is_demanded_by_the_signature(draw):
    parameter = inspect.signature(draw).parameters["alt"]
    assert parameter.kind is parameter.KEYWORD_ONLY and parameter.default is parameter.empty


@pytest.mark.parametrize("alt", ["", "   ", "\n", "four words only here", None])
def test_no_picture_without_an_alt_text_that_says_something(alt):
    with pytest.raises(ConfigError, match="at least 5"):
        plots.queue_lengths(small_trace(), alt=alt)


def test_alt_text_goes_where_jupyter_and_the_book_look_for_it():
    drawn = plots.queue_lengths(small_trace(), alt='Two\n  requests "wait" & one\truns')
    data, metadata = drawn._repr_mimebundle_()
    assert metadata["image/png"]["alt"] == 'Two requests "wait" & one runs' == drawn.alt
    assert data["text/plain"] == f"[picture] {drawn.alt}"
    assert 'alt="Two requests &quot;wait&quot; &amp; one runs"' in drawn.html()
    assert base64.b64decode(re.search(r"base64,([^\"]+)", drawn.html())[1]) == drawn.png


# ---- one look


@EVERY
def test_all_are_as_wide_as_a_column_and_small_enough_to_store(name):
    image = opened(name)
    assert image.width == 1200 and 400 <= image.height <= 2400
    assert len(picture(name).png) <= 90_000


@EVERY
def test_the_ground_is_white_so_that_a_dark_page_does_not_swallow_the_ink(name):
    image = opened(name).convert("RGBA")
    corners = [(0, 0), (image.width - 1, 0), (0, image.height - 1), (image.width - 1, image.height - 1)]
    assert {image.getpixel(corner) for corner in corners} == {(255, 255, 255, 255)}


@EVERY
def test_nothing_is_cut_off_at_the_edge(name):
    grey = opened(name).convert("L")
    edges = [(0, 0, grey.width, 3), (0, grey.height - 3, grey.width, grey.height), (0, 0, 3, grey.height)]
    assert [grey.crop(edge).getextrema()[0] for edge in edges] == [255] * 3


@EVERY
def test_letters_are_legible_on_a_phone(name):
    sizes = [text.get_fontsize() for text in picture(name).figure.findobj(Text) if text.get_text().strip()]
    assert min(sizes) >= SMALL and SMALL * PHONE_PX / (72 * WIDTH_IN) >= 8


@EVERY
def test_only_the_bundled_font_is_used(name):
    for text in picture(name).figure.findobj(Text):
        assert findfont(text.get_fontproperties()).startswith(matplotlib.get_data_path())
    assert Path(findfont(FontProperties(family=FONT, weight="bold"))).name == "DejaVuSans-Bold.ttf"


@EVERY
def test_every_axis_says_what_it_shows(name):
    axes = picture(name).figure.axes
    assert axes[-1].get_xlabel().strip()
    for ax in axes:
        rows = [label.get_text() for label in ax.get_yticklabels()]
        assert ax.get_ylabel().strip() or (rows and not any(row.isdigit() for row in rows)), "rows need names"


# ---- greyscale


def luminance(colour) -> float:
    """Relative luminance, 0 to 1 (WCAG)."""
    parts = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in to_rgb(colour)]
    return sum(w * c for w, c in zip((0.2126, 0.7152, 0.0722), parts, strict=True))


def contrast(one, other) -> float:
    dark, light = sorted([luminance(one), luminance(other)])
    return (light + 0.05) / (dark + 0.05)


def drawn_in_grey(handle) -> Image.Image:
    """What a legend shows for one series, large, without its colour."""
    figure = Figure(figsize=(1, 0.5), dpi=100, facecolor="white")
    FigureCanvasAgg(figure)
    ax = figure.add_axes((0, 0, 1, 1))
    ax.set_axis_off()
    ax.set(xlim=(0, 1), ylim=(0, 1))
    if isinstance(handle, Patch):
        copy = Rectangle((0.1, 0.1), 0.8, 0.8)
        copy.update_from(handle)
        copy.set_transform(ax.transData)
        ax.add_patch(copy)
    else:
        copy = Line2D([0.02, 0.5, 0.98], [0.5, 0.5, 0.5])
        copy.update_from(handle)
        copy.set_transform(ax.transData)
        ax.add_line(copy)
    buffer = io.BytesIO()
    figure.savefig(buffer)
    return Image.open(buffer).convert("L")


def differ_in_grey(one, other) -> bool:
    """True if of the inked pixels one in ten differs by more than an eighth of the way from black to white."""
    pixels = list(zip(drawn_in_grey(one).tobytes(), drawn_in_grey(other).tobytes(), strict=True))
    return 10 * sum(abs(x - y) > 32 for x, y in pixels) >= sum(min(x, y) < 230 for x, y in pixels)


@EVERY
def test_no_two_entries_of_a_legend_differ_by_colour_only(name):
    handles = [handle for legend in picture(name).figure.legends for handle in legend.legend_handles]
    assert handles or name == "switch cost", "only its bars have their names beside them"
    for one, other in combinations(handles, 2):
        assert differ_in_grey(one, other), f"{one.get_label()!r} and {other.get_label()!r} look the same in grey"


def test_the_greyscale_test_notices_a_difference_of_hue_only():
    blue, orange = Patch(facecolor="#6E6EFF", edgecolor=INK), Patch(facecolor="#C46A2D", edgecolor=INK)
    assert abs(luminance("#6E6EFF") - luminance("#C46A2D")) < 0.03
    assert not differ_in_grey(blue, orange)


def test_series_differ_with_markers_and_without():
    assert len({(str(s.linestyle), s.linewidth) for s in SERIES}) == len({s.marker for s in SERIES}) == len(SERIES)


@pytest.mark.parametrize("boxes", [lane_plots.BOXES, lane_plots.MARKS, run_plots.GAPS])
def test_kinds_differ_in_grey_even_where_no_picture_has_both(boxes):
    handles = [Patch(**look) if "facecolor" in look else Line2D([], [], **look) for look in boxes.values()]
    for one, other in combinations(handles, 2):
        assert differ_in_grey(one, other)


@pytest.mark.parametrize(("ink", "ground"), [(INK, "white"), (INK, SKY), (INK, SAND), ("white", BLUE)])
def test_text_stands_out_from_its_ground(ink, ground):
    assert contrast(ink, ground) >= 4.5


@pytest.mark.parametrize("style", SERIES, ids=lambda style: to_hex(style.color))
def test_lines_stand_out_from_the_page(style):
    assert contrast(style.color, "white") >= 2.5  # WCAG asks for 3 where colour alone carries the meaning


# ---- the same bytes


PROGRAM = """
import hashlib, sys
sys.path.insert(0, sys.argv[1])
from tests.viz.plot_gallery import PICTURES
for name in ("slot_time", "gantt", "pareto"):
    drawn = PICTURES[name]()
    print(name, hashlib.sha256(drawn.png).hexdigest())
    print(name, hashlib.sha256(drawn.save(sys.argv[2] + "/a.svg").read_bytes()).hexdigest())
"""


def test_bytes_do_not_depend_on_the_process_the_hash_seed_or_the_readers_settings(tmp_path):
    dark = tmp_path / "matplotlibrc"
    dark.write_text("figure.facecolor: black\ntext.color: white\nfont.size: 20\nlines.linewidth: 9\naxes.grid: True\n")
    printed = []
    for seed, settings in (("0", ""), ("1", str(dark))):
        env = {**os.environ, "PYTHONHASHSEED": seed} | ({"MATPLOTLIBRC": settings} if settings else {})
        command = [sys.executable, "-c", PROGRAM, str(ROOT), str(tmp_path)]
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=240)
        assert done.returncode == 0, done.stderr
        printed.append(done.stdout)
    assert printed[0] and len(set(printed)) == 1


def test_drawing_leaves_the_readers_settings_and_figures_alone():
    import matplotlib.pyplot as plt

    with plt.rc_context({"font.size": 23.0}):
        plots.queue_lengths(small_trace(), alt=ALT)
        assert plt.rcParams["font.size"] == 23.0 and plt.get_fignums() == []


# ---- what is refused, what is kept


def test_save_writes_what_the_name_says(tmp_path):
    drawn = plots.queue_lengths(small_trace(), alt=ALT)
    assert drawn.save(tmp_path / "a.png").read_bytes() == drawn.png
    assert drawn.save(tmp_path / "a.SVG").read_text().startswith("<?xml")
    assert drawn.save(tmp_path / "a.pdf").read_bytes().startswith(b"%PDF")
    with pytest.raises(ConfigError, match=r"a\.jpeg.*\.png, \.svg or \.pdf"):
        drawn.save(tmp_path / "a.jpeg")


def renamed(old: str, new: str) -> dict:
    """The small run with one request under another id."""
    return json.loads(json.dumps(small_trace()).replace(json.dumps(old), json.dumps(new)))


def test_characters_that_the_font_lacks_are_refused_in_labels_and_passed_over_in_ids():
    with pytest.raises(ConfigError, match="DejaVu Sans"):
        plots.lines({"批": ([1], [1])}, x_label="x", y_label="y", alt=ALT)
    drawn = plots.gantt(renamed("A", "请求"), alt=ALT)
    assert [label.get_text() for label in drawn.figure.axes[0].get_yticklabels()] == ["#1", "B", "C"]
    assert in_font("R1 × →") and not in_font("请求")


def test_a_dollar_is_a_dollar():
    assert plots.gantt(renamed("A", "$x^$"), alt=ALT).png != plots.gantt(small_trace(), alt=ALT).png


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (0.0123, "0.0123"),
        (4.5, "4.5"),
        (999.6, "1,000"),
        (12345, "12,300"),
        (1e-9, "1.0e-09"),
        (-2.5, "-2.5"),
    ],
)
def test_numbers_are_short(value, text):
    assert short(value) == text
