"""Lines, distributions, Pareto fronts and rooflines: the numbers drawn are the numbers given. Knows no run."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mini_vllm.errors import ConfigError
from mini_vllm.viz import plots
from mini_vllm.viz.curve_plots import percentile
from tests.viz.plot_gallery import ALT, ROOFS

XY = {"x_label": "x (s)", "y_label": "y (s)", "alt": ALT}


def legend(figure) -> list[str]:
    return [text.get_text() for text in figure.legends[0].get_texts()]


def test_lines_draw_the_values_and_shares_as_per_cent():
    figure = plots.lines({"a": ([1, 2], [0.25, 0.5])}, points={"a": ([2], [0.4])}, percent=True, **XY).figure
    (ax,) = figure.axes
    assert [list(line.get_ydata()) for line in ax.lines] == [[25, 50], [40]]
    assert ax.get_ylabel() == "y (s) (%)" and legend(figure) == ["a", "points: measured"]
    figure = plots.lines({"a": ([1, 2, 4], [-1.0, 2, 3])}, log2_x=True, **XY).figure
    assert [t.get_text() for t in figure.axes[0].get_xticklabels()] == ["1", "2", "4"]
    assert figure.axes[0].get_ylim()[0] <= -1, "a value below zero is not cut off"
    (ax,) = plots.lines({"a": ([1, 2], [3, 3000])}, log_y=True, **XY).figure.axes
    assert ax.get_yscale() == "log" and "1,000" in [t.get_text() for t in ax.get_yticklabels()]


# ---- distributions


@pytest.mark.parametrize(
    ("values", "percent", "expected"),
    [
        ([7], 50, 7),
        ([1, 2], 50, 1),
        ([1, 2, 3], 50, 2),
        (range(1, 101), 99, 99),
        (range(1, 101), 100, 100),
        ([1, 9], 99, 9),
    ],
)
def test_percentiles_by_hand(values, percent, expected):
    assert percentile(list(values), percent) == expected


@given(st.lists(st.integers(-50, 50), min_size=1), st.sampled_from([0.1, 1, 25, 50, 75, 90, 99, 99.9, 100]))
def test_percentiles_are_samples_and_agree_with_numpy(values, percent):
    found = percentile(sorted(values), percent)
    assert found == np.percentile(values, percent, method="inverted_cdf")
    below = sum(value < found for value in values)
    assert 100 * below < percent * len(values) <= 100 * sum(value <= found for value in values) + 1e-6


def test_cdf_counts_and_marks_percentiles_on_the_curve():
    figure = plots.cdf({"a": [3, 1, 1, 2], "b": [5]}, x_label="TTFT (ms)", percentiles=(50, 99), alt=ALT).figure
    (ax,) = figure.axes
    curve, marked = ax.lines[0], ax.lines[1]
    assert list(zip(*curve.get_data(), strict=True)) == [(1, 0), (1, 25), (1, 50), (2, 75), (3, 100)]
    assert list(zip(*marked.get_data(), strict=True)) == [(1, 50), (3, 99)]
    assert legend(figure) == ["a: 4 samples, p50 1, p99 3", "b: 1 samples, p50 5, p99 5"]
    assert ax.get_ylabel() == "requests (%)"


def test_percentiles_out_of_range_are_refused():
    for percent in (0, 101, -5):
        with pytest.raises(ConfigError, match="above 0 and at most 100"):
            plots.cdf({"a": [1]}, x_label="x", percentiles=(percent,), alt=ALT)


# ---- Pareto


def test_front_by_hand():
    points = {"slow": (9, 5), "best": (1, 5), "twin": (1, 5), "costly": (2, 9), "beaten": (3, 9), "worse": (1, 4)}
    assert plots.pareto_front(points) == ["best", "twin", "costly"]
    assert plots.pareto_front(points, y_best="low") == ["worse"]
    assert plots.pareto_front(points, x_best="high") == ["beaten", "slow"]
    assert plots.pareto_front({}) == []


SMALL_NUMBER = st.integers(0, 6)


@given(
    st.lists(st.tuples(SMALL_NUMBER, SMALL_NUMBER), max_size=25),
    st.sampled_from(["low", "high"]),
    st.sampled_from(["low", "high"]),
)
def test_front_is_everybody_whom_nobody_beats(pairs, x_best, y_best):
    points = {str(i): pair for i, pair in enumerate(pairs)}
    sx, sy = (1 if best == "low" else -1 for best in (x_best, y_best))

    def beats(a, b):
        return sx * a[0] <= sx * b[0] and sy * a[1] <= sy * b[1] and a != b

    expected = {name for name, p in points.items() if not any(beats(q, p) for q in points.values())}
    found = plots.pareto_front(points, x_best=x_best, y_best=y_best)
    assert set(found) == expected and len(found) == len(expected)
    assert [points[name] for name in found] == sorted(points[name] for name in found)


def test_pareto_draws_the_front_bold_and_the_rest_faint():
    points = {"a": (1, 1), "b": (2, 3), "c": (3, 2)}
    figure = plots.pareto(points, x_label="TPOT (ms)", y_label="tokens/s", alt=ALT).figure
    (ax,) = figure.axes
    faint, front = ax.lines
    assert list(zip(*faint.get_data(), strict=True)) == [(3, 2)] and faint.get_linestyle() == "None"
    assert list(zip(*front.get_data(), strict=True)) == [(1, 1), (2, 3)] and front.get_drawstyle() == "steps-post"
    assert [text.get_text() for text in ax.texts] == ["a", "b"]
    assert ax.get_xlabel() == "TPOT (ms), ← better" and ax.get_ylabel() == "tokens/s, better →"
    assert legend(figure) == ["the front: none is better on both axes", "not on the front"]


def test_pareto_has_a_front_for_each_series_and_no_names_on_top_of_each_other():
    points = {f"config {i}": (1 + 0.01 * i, i) for i in range(30)}
    kinds = {name: "odd" if int(name[7:]) % 2 else "even" for name in points}
    figure = plots.pareto(points, series=kinds, x_label="ms", y_label="tokens/s", alt=ALT).figure
    assert legend(figure) == ["front, even", "front, odd"]
    shown = [t for t in figure.axes[0].texts if t.get_visible()]
    figure.draw_without_rendering()
    extents = [t.get_window_extent(figure.canvas.get_renderer()) for t in shown]
    assert 5 <= len(shown) < 30
    assert not any(a.overlaps(b) for i, a in enumerate(extents) for b in extents[:i])
    left = figure.axes[0].get_window_extent().x0
    assert min(box.x0 for box in extents) >= left - 1


# ---- roofline


def test_roofline_is_the_lower_of_bandwidth_and_peak():
    figure = plots.roofline(ROOFS, measured={"decode": ([2], [5e11])}, stored={"decode": ([2], [4e12])}, alt=ALT).figure
    (ax,) = figure.axes
    for line, (peak, bandwidth) in zip(ax.lines[0:4:2], ROOFS.values(), strict=True):
        x, y = (np.asarray(values) for values in line.get_data())
        assert np.allclose(y * 1e12, np.minimum(peak, bandwidth * x)) and x[1] == peak / bandwidth
    assert legend(figure)[:2] == ["T4: ridge 203 FLOP/byte", "A100: ridge 153 FLOP/byte"]
    assert legend(figure)[2:] == ["decode, measured", "decode, stored"]
    alone = plots.roofline(ROOFS, stored={"computed": ([2], [4e12])}, alt=ALT).figure
    assert legend(alone)[2:] == ["computed"]
    assert (ax.get_xscale(), ax.get_yscale()) == ("log", "log")
    assert "FLOP per byte" in ax.get_xlabel() and ax.get_ylabel() == "speed (TFLOP/s)"
    measured, stored = ax.lines[4:6]
    assert measured.get_marker() == stored.get_marker()
    assert measured.get_markerfacecolor() != stored.get_markerfacecolor() == "white"


@pytest.mark.parametrize(("peak", "unit"), [(2e15, "PFLOP/s"), (5e10, "GFLOP/s"), (5e7, "MFLOP/s"), (3.0, "FLOP/s")])
def test_the_unit_of_speed_suits_the_card(peak, unit):
    assert plots.roofline({"it": (peak, peak / 10)}, alt=ALT).figure.axes[0].get_ylabel() == f"speed ({unit})"


# ---- bad input


NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("draw", "words"),
    [
        (lambda: plots.lines({}, **XY), "nothing to draw"),
        (lambda: plots.lines({"a": ([1, 2], [1])}, **XY), "a has 2 x values but 1 y"),
        (lambda: plots.lines({"a": ([1, 2], [1, NAN])}, **XY), "a, y: value 1 is nan"),
        (lambda: plots.lines({"a": ([INF], [1])}, **XY), "a, x: value 0 is inf"),
        (lambda: plots.lines({"a": ([1], ["fast"])}, **XY), "a, y: value 0 is 'fast', not a number"),
        (lambda: plots.lines({"a": ([], [])}, **XY), "a, x has no values"),
        (lambda: plots.lines({"a": [1, 2, 3]}, **XY), "a must be a pair"),
        (lambda: plots.lines({"a": ([0, 1], [1, 2])}, log2_x=True, **XY), "logarithmic axis"),
        (lambda: plots.lines({"a": ([1], [0])}, log_y=True, **XY), "logarithmic axis"),
        (lambda: plots.lines({"a": ([1], [1])}, points={"b": ([1], [1])}, **XY), "'b' belong to no line"),
        (lambda: plots.lines({"a": ([1], [1])}, x_label=" ", y_label="y", alt=ALT), "x axis has no label"),
        (lambda: plots.lines({str(i): ([1], [1]) for i in range(11)}, **XY), "11 series .* 10 at most"),
        (lambda: plots.cdf({}, x_label="x", alt=ALT), "nothing to draw"),
        (lambda: plots.cdf({"a": []}, x_label="x", alt=ALT), "a has no values"),
        (lambda: plots.cdf({"a": [1, NAN]}, x_label="x", alt=ALT), "a: value 1 is nan"),
        (lambda: plots.cdf({"a": [0, 1]}, x_label="x", log_x=True, alt=ALT), "a: value 0 is 0; a logarithmic"),
        (lambda: plots.cdf({"a": [1]}, x_label="", alt=ALT), "x axis has no label"),
        (lambda: plots.pareto({}, **XY), "nothing to draw"),
        (lambda: plots.pareto({"p": (1, NAN)}, **XY), "point p: value 1 is nan"),
        (lambda: plots.pareto({"p": (1, 2, 3)}, **XY), "point p has 3 values"),
        (lambda: plots.pareto({"p": (1, 2)}, x_best="big", **XY), "x_best='big'"),
        (lambda: plots.pareto({"p": (1, 2)}, series={"q": "s"}, **XY), "'q', which is no point"),
        (lambda: plots.pareto({"p": (1, 2), "q": (2, 3)}, series={"q": "s"}, **XY), "'p' belongs to no series"),
        (lambda: plots.roofline({}, alt=ALT), "nothing to draw"),
        (lambda: plots.roofline({"T4": (65e12,)}, alt=ALT), "roof T4 needs two numbers"),
        (lambda: plots.roofline({"T4": (65e12, 0)}, alt=ALT), "roof T4: value 1 is 0"),
        (lambda: plots.roofline(ROOFS, measured={"d": ([1], [0])}, alt=ALT), "above 0"),
        (lambda: plots.roofline(ROOFS, stored={"d": ([1, 2], [1e9])}, alt=ALT), "2 x values but 1 y"),
    ],
)
def test_bad_numbers_are_named(draw, words):
    with pytest.raises(ConfigError, match=words):
        draw()


def test_numpy_values_are_numbers():
    x = np.arange(1, 4)
    assert plots.lines({"a": (x, x * np.float32(0.5))}, **XY).png
