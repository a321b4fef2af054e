"""Waste of a static batch in closed form. Knows lengths only; knows no scheduler. Chapter 1."""

import statistics
from collections.abc import Callable, Sequence


def bubble_waste(output_lens: Sequence[int]) -> float:
    """Share of the slot-steps of one static batch in which a slot is done and waits: 1 - mean/max.

    A request with O output tokens advances in O steps: its prefill gives the first token.
    """
    return 1 - statistics.fmean(output_lens) / max(output_lens)


def padding_waste(prompt_lens: Sequence[int], output_lens: Sequence[int]) -> float:
    """Share of the tokens computed by one padded batch that are thrown away.

    useful   = sum of (P + O - 1)             the KV of the last sampled token is never needed
    computed = B * (max P + max O - 1)        the rectangle
    """
    useful = sum(p + o - 1 for p, o in zip(prompt_lens, output_lens, strict=True))
    return 1 - useful / (len(prompt_lens) * (max(prompt_lens) + max(output_lens) - 1))


def expected_waste(draw: Callable[[], float], batch_size: int, num_batches: int = 20_000) -> float:
    """Long-run bubble waste by sampling: `draw()` gives one output length; batches are filled in order.

    Summed over batches first, divided last, so that a long batch counts for as long as it lasts.
    """
    useful = paid = 0.0
    for _ in range(num_batches):
        lengths = [draw() for _ in range(batch_size)]
        useful += sum(lengths)
        paid += batch_size * max(lengths)
    return 1 - useful / paid


def expected_waste_exponential(batch_size: int) -> float:
    """Long-run bubble waste for exponential lengths: 1 - 1/H(B), with the harmonic number H(B) = 1 + 1/2 + … + 1/B.

    The mean cancels: the longest of B exponentials is on average H(B) means long.
    """
    return 1 - 1 / sum(1 / k for k in range(1, batch_size + 1))


def expected_waste_normal(batch_size: int, cv: float) -> float:
    """Long-run bubble waste for normal lengths with coefficient of variation `cv`: 1 - 1/(1 + cv * e(B)).

    e(B) is the mean of the largest of B standard normal values; it grows like sqrt(2 ln B).
    """
    return 1 - 1 / (1 + cv * _expected_max_normal(batch_size))


def _expected_max_normal(batch_size: int, grid: int = 4_000) -> float:
    """Mean of the largest of B standard normal values, by averaging its quantiles (midpoint rule)."""
    normal = statistics.NormalDist()
    # P(max <= x) = P(one <= x)**B, so the q-quantile of the maximum is the q**(1/B)-quantile of one value.
    return statistics.fmean(normal.inv_cdf(((i + 0.5) / grid) ** (1 / batch_size)) for i in range(grid))
