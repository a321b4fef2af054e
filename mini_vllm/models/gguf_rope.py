"""Llama 3.1's stretched rope, found from what a GGUF file states. Knows frequencies; knows no file. Chapter 14.

config.json has four numbers (`RopeScaling`). A GGUF file has what llama.cpp computed from them, one divisor for each
frequency of the rotary embedding (tensor rope_freqs.weight):

    wavelength   short  |  between                             |  long
    divisor      1      |  1 / ((1 - share) / factor + share)  |  factor

`share` is a straight line in 1 / wavelength, from 0 where "long" begins to 1 where "short" ends: two divisors between
give the line, and the line gives the numbers.
"""

import math
from collections.abc import Sequence

from mini_vllm.errors import ConfigError
from mini_vllm.models.config import RopeScaling

ROPE_FACTORS = "rope_freqs.weight"


def factors_of(scaling: RopeScaling, theta: float, head_dim: int) -> list[float]:
    """The divisors that these four numbers mean, the shortest wavelength first."""
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    factors = []
    for wavelength in _wavelengths(theta, head_dim):
        share = (scaling.original_max_position_embeddings / wavelength - low) / (high - low)
        share = min(max(share, 0.0), 1.0)
        factors.append(1 / ((1 - share) / scaling.factor + share))
    return factors


def scaling_of(factors: Sequence[float], theta: float, head_dim: int) -> RopeScaling | None:
    """The four numbers behind these divisors; None if all are 1. Raises ConfigError for what Llama 3.1 cannot mean.

    Only the two wavelengths at the ends of "between" are in the divisors, so `original_max_position_embeddings` comes
    out as the longer of them (8,192 for Llama 3.1), and `low_freq_factor` as 1.
    """
    wavelengths, factor = _wavelengths(theta, head_dim), max(factors, default=0.0)
    if len(factors) != len(wavelengths) or not all(1 <= f < math.inf for f in factors):
        raise ConfigError(
            f"{ROPE_FACTORS} is not {len(wavelengths)} numbers of at least 1, one for each pair of a head"
        )
    if factor == 1:
        return None
    shares = [(1 / f - 1 / factor) / (1 - 1 / factor) for f in factors]
    between = [(1 / w, s) for w, s in zip(wavelengths, shares, strict=True) if 1e-5 < s < 1 - 1e-5]
    if len(between) >= 2:
        (x1, s1), (x2, s2) = between[0], between[-1]
        slope = (s1 - s2) / (x1 - x2)
        longest, shortest = 1 / (x2 - s2 / slope), 1 / (x2 + (1 - s2) / slope)
        if 0 < shortest < longest < math.inf:
            original = max(round(longest), 1)
            for digits in (3, 12):  # whole or nearly so, where the numbers of the model were
                low, high = round(original / longest, digits), round(original / shortest, digits)
                scaling = RopeScaling(factor, low, high, original)
                found = factors_of(scaling, theta, head_dim)
                if all(math.isclose(a, b, rel_tol=1e-5) for a, b in zip(found, factors, strict=True)):
                    return scaling
    raise ConfigError(
        f"{ROPE_FACTORS} holds {_short(factors)}, from which no rope scaling of Llama 3.1's kind can be told; take the "
        "model's safetensors folder, whose config.json states it"
    )


def _wavelengths(theta: float, head_dim: int) -> list[float]:
    """Tokens of one whole turn, of each pair of numbers of a head."""
    return [2 * math.pi * theta ** (i / head_dim) for i in range(0, head_dim, 2)]


def _short(factors: Sequence[float]) -> str:
    shown = ", ".join(f"{f:.4g}" for f in factors[:8])
    return f"{shown}, …" if len(factors) > 8 else shown
