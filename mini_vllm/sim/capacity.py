"""How much load a server bears within an SLO: the highest rate, found by bisection. Knows scenarios. Chapter 12."""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from mini_vllm.errors import ConfigError
from mini_vllm.roofline.arguments import (
    require_between,
    require_instance,
    require_method,
    require_positive,
    require_seeds,
    require_share,
)
from mini_vllm.sim.metrics import SLO, confidence_interval
from mini_vllm.sim.scenario import Scenario


@dataclass(frozen=True)
class Capacity:
    """rate: the highest tried rate that kept the SLO, 0 if none did; `broken_at`: the lowest that did not, None if all
    did. probes: rate -> share of requests that met the SLO, in the order in which they were tried.
    """

    rate: float
    broken_at: float | None
    probes: dict[float, float]


def find_capacity(
    scenario: Scenario,
    slo: SLO,
    *,
    attainment: float = 0.99,
    start: float = 1.0,
    least: float = 1 / 1024,
    most: float = 1024.0,
    tolerance: float = 0.02,
    seeds: Iterable[int] = (0,),
) -> Capacity:
    """The highest rate at which, on average over the seeds, at least the share `attainment` of requests meets the SLO.

    Doubles or halves the rate from `start`, between `least` and `most`, until one rate keeps the SLO and twice that
    does not, then bisects until the two are within `tolerance` of each other. With one seed all rates bring the same
    requests, only faster or slower. A run must be long enough for a queue to build up: beyond capacity the first
    requests are still served in time.
    """
    require_method(scenario, "scenario", "measure", "Scenario(model=...)")
    require_instance(slo, SLO, "slo")
    require_positive(start, "start")
    require_positive(least, "least")
    require_positive(most, "most")
    require_between(tolerance, "tolerance", 1e-6, 1)
    require_share(attainment, "attainment")
    seeds = require_seeds(seeds)
    if scenario.arrivals in ("at-once", "closed"):
        raise ConfigError(f"arrivals={scenario.arrivals!r} have no rate that could be raised; choose e.g. 'poisson'")
    if not least <= start <= most:
        raise ConfigError(f"start={start} must lie between least={least} and most={most}")
    probes: dict[float, float] = {}
    judged = replace(scenario, slo=slo)

    def is_kept(rate: float) -> bool:
        shares = [judged.measure(rate=rate, seed=seed).slo_attainment for seed in seeds]
        probes[rate] = confidence_interval(shares)[0]
        return probes[rate] >= attainment

    good, bad = 0.0, None
    rate = start
    while bad is None and rate <= most:
        if is_kept(rate):
            good, rate = rate, 2 * rate
        else:
            bad = rate
    while not good and bad is not None and bad / 2 >= least:
        if is_kept(bad / 2):
            good = bad / 2
        else:
            bad /= 2
    while good and bad is not None and bad - good > tolerance * good:
        middle = (good + bad) / 2
        if is_kept(middle):
            good = middle
        else:
            bad = middle
    return Capacity(good, bad, probes)
