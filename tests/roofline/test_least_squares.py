"""Levenberg-Marquardt on problems whose answer is known."""

import math
import random
import statistics

import pytest

from mini_vllm.roofline.least_squares import least_squares

INF = math.inf


def unbounded(residuals, start):
    return least_squares(residuals, start, [-INF] * len(start), [INF] * len(start))


def test_a_line_through_two_points():
    x = unbounded(lambda x: [x[0] * 1 + x[1] - 3, x[0] * 2 + x[1] - 5], [0, 0])
    assert x == pytest.approx([2, 1])


def test_the_mean_is_the_least_squares_constant():
    rng = random.Random(1)
    values = [rng.gauss(5, 2) for _ in range(50)]
    assert unbounded(lambda x: [x[0] - v for v in values], [0]) == pytest.approx([statistics.fmean(values)])


def test_rosenbrocks_valley():
    x = unbounded(lambda x: [10 * (x[1] - x[0] ** 2), 1 - x[0]], [-1.2, 1.0])
    assert x == pytest.approx([1, 1], abs=1e-5)


def test_at_a_bound_the_others_still_find_their_best():
    # Without the bound (4, 0); with x0 <= 1 the best x1 is 3.
    x = least_squares(lambda x: [x[0] + x[1] - 4, 0.1 * x[1]], [0, 0], [-INF, -INF], [1, INF])
    assert x[0] == 1
    assert x[1] == pytest.approx(3 / 1.01)


def test_at_a_lower_bound_too():
    # Without the bound (4, 0); with x0 >= 5 the best x1 is -1.
    x = least_squares(lambda x: [x[0] + x[1] - 4, 0.1 * x[1]], [9, 9], [5, -INF], [INF, INF])
    assert x[0] == 5
    assert x[1] == pytest.approx(-1 / 1.01)


def test_a_start_outside_the_bounds_is_brought_in():
    assert least_squares(lambda x: [x[0] - 9], [5], [0], [2]) == [2]
    assert least_squares(lambda x: [x[0] + 9], [-5], [0], [2]) == [0]


def test_a_bound_that_is_reached_can_be_left_again():
    """From x = 8 the first step overshoots to the lower bound, though the minimum lies inside."""
    x = least_squares(lambda x: [math.atan(x[0] - 3)], [8], [0], [9])
    assert x == pytest.approx([3])


def test_a_parameter_without_influence_stays():
    assert unbounded(lambda x: [x[0] - 3], [0, 7]) == pytest.approx([3, 7])


def test_parameters_that_only_count_together_are_split_somehow():
    x = unbounded(lambda x: [x[0] + x[1] - 3], [1, 1])
    assert sum(x) == pytest.approx(3)


def test_random_linear_problems_have_orthogonal_residuals():
    """At the least-squares solution no column of the problem says anything more about what is left."""
    rng = random.Random(2)
    for _ in range(20):
        n = rng.randint(1, 6)
        rows = [[rng.gauss(0, 1) for _ in range(n)] for _ in range(n + rng.randint(0, 10))]
        right = [rng.gauss(0, 1) for _ in rows]

        def residuals(x, rows=rows, right=right):
            return [sum(a * b for a, b in zip(row, x, strict=True)) - y for row, y in zip(rows, right, strict=True)]

        left = residuals(unbounded(residuals, [0.0] * n))
        for column in range(n):
            assert sum(row[column] * r for row, r in zip(rows, left, strict=True)) == pytest.approx(0, abs=1e-6)
