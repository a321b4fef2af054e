"""Capacity by bisection and the Pareto front."""

import itertools
import random
from dataclasses import replace

import pytest

from mini_vllm.errors import ConfigError
from mini_vllm.sim import capacity as capacity_module
from mini_vllm.sim.capacity import find_capacity
from mini_vllm.sim.metrics import SLO
from mini_vllm.sim.pareto import pareto_front
from mini_vllm.sim.scenario import Scenario

SLOW = SLO(ttft_ms=2000)


class Known:
    """A server that keeps the SLO up to a known rate; counts how often it is asked."""

    arrivals = "poisson"

    def __init__(self, limit):
        self.limit = limit
        self.asked = []

    def measure(self, rate, seed):
        self.asked.append(rate)
        return replace(TEMPLATE, slo_attainment=1.0 if rate <= self.limit else 0.5)


TEMPLATE = Scenario(num_requests=3, slo=SLOW).measure()


@pytest.mark.parametrize("limit", [0.013, 0.9, 1.0, 7.3, 100, 1000])
def test_the_limit_is_found_from_wherever_it_starts(limit, monkeypatch):
    monkeypatch.setattr(capacity_module, "replace", lambda scenario, slo: scenario)
    for start in (0.5, 1.0, 16.0):
        server = Known(limit)
        found = find_capacity(server, SLOW, start=start, tolerance=0.02)
        assert found.rate <= limit < found.broken_at
        assert found.broken_at <= 1.021 * found.rate
        assert len(server.asked) < 26 and list(found.probes) == server.asked


def test_a_server_that_bears_everything_and_one_that_bears_nothing(monkeypatch):
    monkeypatch.setattr(capacity_module, "replace", lambda scenario, slo: scenario)
    found = find_capacity(Known(1e9), SLOW, most=64)
    assert (found.rate, found.broken_at) == (64, None)
    found = find_capacity(Known(0), SLOW)
    assert (found.rate, found.broken_at) == (0, 1 / 1024)


class Uneven(Known):
    """Keeps the SLO for all requests of seed 0, and for 8 in 10 of seed 1; at any rate."""

    def measure(self, rate, seed):
        return replace(TEMPLATE, slo_attainment=(1.0, 0.8)[seed])


@pytest.mark.parametrize(("attainment", "rate"), [(0.9, 8), (0.91, 0)])
def test_the_mean_over_the_seeds_counts_and_exactly_enough_is_enough(attainment, rate, monkeypatch):
    monkeypatch.setattr(capacity_module, "replace", lambda scenario, slo: scenario)
    assert find_capacity(Uneven(0), SLOW, attainment=attainment, seeds=(0, 1), most=8).rate == rate


def test_the_slo_of_the_search_is_what_counts_not_the_scenarios_own():
    lax = Scenario(num_requests=20, slo=SLO(ttft_ms=1e9))
    assert find_capacity(lax, SLO(ttft_ms=1e-3), least=0.5).rate == 0


def test_capacity_of_a_real_scenario_lies_between_the_runs_that_show_it():
    scenario = Scenario(num_requests=150, model="qwen3-8b", dtype="bfloat16", workload="random", prompt_mean=2000)
    found = find_capacity(scenario, SLOW, attainment=0.9, tolerance=0.1)
    judged = replace(scenario, slo=SLOW)
    assert judged.measure(rate=found.rate).slo_attainment >= 0.9
    assert judged.measure(rate=found.broken_at).slo_attainment < 0.9


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"start": 0}, "start=0"),
        ({"tolerance": 0}, "tolerance=0"),
        ({"tolerance": 1e-18}, "tolerance=1e-18 must be a number from 1e-06 to 1"),  # bisection would never end
        ({"seeds": []}, "seeds="),
        ({"seeds": 3}, "seeds=3; give a list"),
        ({"attainment": 1.5}, "attainment=1.5"),
        ({"start": 5, "most": 2}, "start=5 must lie between least=.* and most=2"),
    ],
)
def test_unsound_searches_are_refused(changes, reason):
    with pytest.raises(ConfigError, match=reason):
        find_capacity(Scenario(num_requests=3), SLOW, **changes)


@pytest.mark.parametrize(
    ("scenario", "slo", "reason"),
    [
        (Scenario, SLOW, "scenario is the class Scenario; give an instance"),
        (Scenario(num_requests=3), SLO, "slo is the class SLO; give an instance of SLO"),
        (Scenario(num_requests=3), None, "slo is None, a NoneType; give a SLO"),  # nothing would ever be kept
    ],
)
def test_classes_where_instances_are_wanted(scenario, slo, reason):
    with pytest.raises(ConfigError, match=reason):
        find_capacity(scenario, slo)


def test_without_a_rate_there_is_nothing_to_raise():
    with pytest.raises(ConfigError, match="have no rate that could be raised"):
        find_capacity(Scenario(num_requests=3, arrivals="closed"), SLOW)


# --- the front ---


def test_a_point_on_the_front_is_beaten_by_none():
    points = {"a": (1, 1), "b": (2, 3), "c": (3, 2), "d": (4, 4), "e": (4, 4)}
    assert pareto_front(points) == ["a", "b", "d", "e"]
    assert pareto_front(points, y_best="low") == ["a"]
    assert pareto_front(points, x_best="high") == ["d", "e"]


def test_the_front_against_the_definition():
    rng = random.Random(0)
    for _ in range(200):
        points = {i: (rng.randrange(6), rng.randrange(6)) for i in range(rng.randint(1, 12))}
        for x_best, y_best in itertools.product(("low", "high"), repeat=2):
            sx, sy = (1 if x_best == "low" else -1), (1 if y_best == "low" else -1)

            def beats(p, q, sx=sx, sy=sy):
                return sx * p[0] <= sx * q[0] and sy * p[1] <= sy * q[1] and p != q

            wanted = {i for i, q in points.items() if not any(beats(p, q) for p in points.values())}
            front = pareto_front(points, x_best=x_best, y_best=y_best)
            assert set(front) == wanted
            assert [points[i][0] for i in front] == sorted(points[i][0] for i in front)


def test_a_point_needs_both_numbers():
    with pytest.raises(ConfigError, match="point 'a' is"):
        pareto_front({"a": (1.0, float("nan"))})
    with pytest.raises(ConfigError, match="y_best='big' is unknown"):
        pareto_front({"a": (1.0, 2.0)}, y_best="big")
