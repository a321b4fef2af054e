"""Stacked bars: the widths drawn are the values given, one part after the other. Knows no run."""

import pytest

from mini_vllm.errors import ConfigError
from mini_vllm.viz import plots
from tests.viz.plot_gallery import ALT

XY = {"x_label": "x (s)", "alt": ALT}


def test_parts_follow_each_other_and_the_sum_stands_behind():
    rows = {"static": {"company": 3, "others": 1.5}, "continuous": {"others": 0.25, "company": 0}}
    figure = plots.stacked_bars(rows, **XY).figure
    (ax,) = figure.axes
    drawn = [(round(patch.get_y() + 0.36), patch.get_x(), patch.get_width()) for patch in ax.patches]
    assert drawn == [(0, 0, 3), (1, 0, 0), (0, 3, 1.5), (1, 0, 0.25)]
    assert [text.get_text() for text in ax.texts] == ["4.5", "0.25"]
    assert [label.get_text() for label in ax.get_yticklabels()] == ["static", "continuous"]
    assert ax.get_ylim()[0] > ax.get_ylim()[1], "the first row is on top"
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["company", "others"]


def test_the_sums_have_room_inside_the_picture():
    figure = plots.stacked_bars({"a": {"x": 123_456}, "b": {"x": 1}}, **XY).figure
    figure.draw_without_rendering()
    renderer = figure.canvas.get_renderer()
    assert all(text.get_window_extent(renderer).x1 <= figure.bbox.width for text in figure.axes[0].texts)


@pytest.mark.parametrize(
    ("bars", "words"),
    [
        ({}, "nothing to draw"),
        ({"a": {}}, "a has 0 parts"),
        ({"a": {str(i): 1 for i in range(5)}}, "a has 5 parts; a bar has 1 to 4"),
        ({"a": {"x": 1}, "b": {"y": 1}}, "b has the parts y; a has x"),
        ({"a": {"x": -1.0}}, "a: x=-1 is below zero"),
        ({"a": {"x": float("nan")}}, "a: value 0 is nan"),
    ],
)
def test_bad_bars_are_named(bars, words):
    with pytest.raises(ConfigError, match=words):
        plots.stacked_bars(bars, **XY)
