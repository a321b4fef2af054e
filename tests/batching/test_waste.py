"""Waste in closed form, against the simulation, against sampling, and against the numbers of the course.

Two averages that are easy to mix up: the *mean over batches* of 1 - mean/max, and the *long-run share*, in which a long
batch counts for as long as it lasts. The second is what a bill shows; it is the larger one.
"""

import random
import statistics

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mini_vllm.batching import PaddedBatcher, SimRequest, StaticBatcher, run_batches
from mini_vllm.batching.waste import (
    bubble_waste,
    expected_waste,
    expected_waste_exponential,
    expected_waste_normal,
    padding_waste,
)

lengths = st.integers(1, 20)
batches = st.lists(st.tuples(lengths, lengths), min_size=1, max_size=8)


def test_three_of_four_slots_wait_for_the_fourth():
    assert bubble_waste([1, 1, 1, 5]) == pytest.approx(1 - 8 / 20)


def test_equal_lengths_waste_nothing():
    assert bubble_waste([7, 7, 7]) == 0
    assert padding_waste([4, 4], [7, 7]) == 0


def test_padding_by_hand():
    # Rectangle 2 × (3 + 4 - 1) = 12 tokens; useful (3 + 1) + (1 + 3) = 8.
    assert padding_waste([3, 1], [2, 4]) == pytest.approx(1 - 8 / 12)


def test_padding_needs_as_many_prompts_as_outputs():
    with pytest.raises(ValueError, match="shorter"):
        padding_waste([3, 1], [2])


@settings(max_examples=100, deadline=None, derandomize=True)
@given(batches)
def test_closed_forms_equal_the_simulation_of_one_full_batch(batch):
    requests = [SimRequest(f"R{i}", p, o) for i, (p, o) in enumerate(batch)]
    prompt_lens, output_lens = zip(*batch, strict=True)
    static = run_batches(StaticBatcher, requests, num_slots=len(batch))
    padded = run_batches(PaddedBatcher, requests, num_slots=len(batch))
    assert static.num_steps == padded.num_steps == max(output_lens)
    assert static.bubble_waste == pytest.approx(bubble_waste(output_lens))
    assert padded.padding_waste == pytest.approx(padding_waste(prompt_lens, output_lens))


def test_expected_waste_sums_over_batches_first_and_divides_last():
    draws = iter([1, 3, 10, 10])
    # (4 + 20) useful of (2 × 3 + 2 × 10) paid; the mean over batches would be (1/3 + 0) / 2 = 1/6.
    assert expected_waste(lambda: next(draws), batch_size=2, num_batches=2) == pytest.approx(1 - 24 / 26)


def test_expected_waste_is_the_long_run_of_the_simulation():
    rng = random.Random(7)
    outputs = [rng.randint(1, 30) for _ in range(4 * 50)]
    requests = [SimRequest(f"R{i}", 1, o) for i, o in enumerate(outputs)]
    draws = iter(outputs)
    closed = expected_waste(lambda: next(draws), batch_size=4, num_batches=50)
    assert run_batches(StaticBatcher, requests, num_slots=4).bubble_waste == pytest.approx(closed)


@pytest.mark.parametrize("batch_size", [1, 2, 8, 32])
def test_exponential_lengths_by_sampling(batch_size):
    rng = random.Random(batch_size)
    sampled = expected_waste(lambda: rng.expovariate(1 / 100), batch_size)
    assert sampled == pytest.approx(expected_waste_exponential(batch_size), abs=0.005)


@pytest.mark.parametrize("cv", [0.25, 0.5])
@pytest.mark.parametrize("batch_size", [1, 2, 8, 32])
def test_normal_lengths_by_sampling(batch_size, cv):
    rng = random.Random(batch_size)
    sampled = expected_waste(lambda: rng.gauss(100, cv * 100), batch_size)
    assert sampled == pytest.approx(expected_waste_normal(batch_size, cv), abs=0.005)


def test_two_exponentials_waste_a_third():
    assert expected_waste_exponential(2) == pytest.approx(1 / 3)


def test_two_normals_on_paper():
    # The mean of the larger of two standard normal values is 1 / sqrt(pi).
    assert expected_waste_normal(2, 0.5) == pytest.approx(1 - 1 / (1 + 0.5 * 0.5641896), abs=1e-4)


def test_a_batch_of_one_wastes_nothing():
    assert expected_waste_exponential(1) == 0
    assert expected_waste_normal(1, 0.5) == pytest.approx(0, abs=1e-6)


def test_waste_grows_with_the_batch_and_with_the_spread():
    by_size = [expected_waste_normal(b, 0.5) for b in (1, 2, 4, 8, 32, 128)]
    assert by_size == sorted(by_size)
    assert expected_waste_normal(8, 0.25) < expected_waste_normal(8, 0.5)


def percent(share: float) -> int:
    return round(100 * share)


@pytest.mark.parametrize(
    ("waste", "at_8", "at_32"),
    [
        (expected_waste_exponential, 63, 75),
        (lambda b: expected_waste_normal(b, 0.5), 42, 51),
        (lambda b: expected_waste_normal(b, 0.25), 26, 34),
    ],
    ids=["exponential", "normal cv .5", "normal cv .25"],
)
def test_long_run_shares_for_batches_of_8_and_32(waste, at_8, at_32):
    assert (percent(waste(8)), percent(waste(32))) == (at_8, at_32)


def mean_over_batches(draw, batch_size, num_batches=20_000):
    return statistics.fmean(bubble_waste([draw() for _ in range(batch_size)]) for _ in range(num_batches))


@pytest.mark.parametrize(
    ("distribution", "at_8", "at_32"),
    [
        (lambda rng: rng.expovariate(1), 61, 74),
        (lambda rng: rng.gauss(1, 0.5), 41, 50),
        (lambda rng: rng.gauss(1, 0.25), 26, 34),
    ],
    ids=["exponential", "normal cv .5", "normal cv .25"],
)
def test_means_over_batches_are_those_of_the_fact_sheet(distribution, at_8, at_32):
    """E6 of the facts: 41 / 50 %, 26 / 34 %, 61 / 74 % are means over batches."""
    for batch_size, expected in ((8, at_8), (32, at_32)):
        rng = random.Random(batch_size)
        assert percent(mean_over_batches(lambda rng=rng: distribution(rng), batch_size)) == expected
