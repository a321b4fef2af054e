"""Llama 3.1's rope scaling, back from the divisors that a GGUF file holds. Chapter 14."""

import math
import random

import pytest
import torch

from mini_vllm.errors import ConfigError
from mini_vllm.models.config import RopeScaling
from mini_vllm.models.gguf_rope import factors_of, scaling_of
from mini_vllm.models.llama import stretch

# What Llama 3.1 and 3.2 state in config.json: (scaling, rope base, head_dim).
LLAMA_31 = RopeScaling(8.0, 1.0, 4.0, 8192), 500_000.0, 128
LLAMA_32 = RopeScaling(32.0, 1.0, 4.0, 8192), 500_000.0, 64


def as_converted(scaling, theta, head_dim):
    """The divisors as llama.cpp's converter computes them from config.json, in float32 as it stores them."""
    low, high = (
        scaling.original_max_position_embeddings / f for f in (scaling.low_freq_factor, scaling.high_freq_factor)
    )
    factors = []
    for i in range(0, head_dim, 2):
        wavelength = 2 * math.pi / (1.0 / theta ** (i / head_dim))
        if wavelength < high:
            factors.append(1.0)
        elif wavelength > low:
            factors.append(scaling.factor)
        else:
            smooth = (scaling.original_max_position_embeddings / wavelength - scaling.low_freq_factor) / (
                scaling.high_freq_factor - scaling.low_freq_factor
            )
            factors.append(1 / ((1 - smooth) / scaling.factor + smooth))
    return torch.tensor(factors, dtype=torch.float32).tolist()


@pytest.mark.parametrize(("scaling", "theta", "head_dim"), [LLAMA_31, LLAMA_32])
def test_the_published_models_come_back_exactly(scaling, theta, head_dim):
    assert scaling_of(as_converted(scaling, theta, head_dim), theta, head_dim) == scaling


@pytest.mark.parametrize(("scaling", "theta", "head_dim"), [LLAMA_31, LLAMA_32])
def test_a_divisor_is_what_stretch_does_to_a_frequency(scaling, theta, head_dim):
    frequency = 1.0 / theta ** (torch.arange(0, head_dim, 2, dtype=torch.float64) / head_dim)
    expected = (frequency / stretch(frequency, scaling)).tolist()
    assert factors_of(scaling, theta, head_dim) == pytest.approx(expected, rel=1e-12)


def test_other_numbers_give_the_same_frequencies():
    """The same divisors can be stated in many ways, so it is they that must come back."""
    rng, found = random.Random(0), 0
    for _ in range(300):
        theta, head_dim, low = rng.choice([1e4, 5e5, 1e6]), rng.choice([64, 80, 128]), rng.uniform(0.5, 3)
        scaling = RopeScaling(rng.uniform(1.5, 64), low, low * rng.uniform(2, 8), rng.randrange(512, 32_768))
        factors = as_converted(scaling, theta, head_dim)
        try:
            again = scaling_of(factors, theta, head_dim)
        except ConfigError:  # one frequency between, or none that is stretched in full
            continue
        found += 1
        assert factors_of(again, theta, head_dim) == pytest.approx(factors, rel=2e-5)
    assert found > 290


def test_no_stretch_at_all():
    assert scaling_of([1.0] * 32, 10_000.0, 64) is None


@pytest.mark.parametrize(
    ("factors", "message"),
    [
        ([1.0] * 31, "is not 32 numbers"),
        ([1.0] * 31 + [0.5], "of at least 1"),
        ([1.0] * 31 + [math.nan], "of at least 1"),
        ([1.0] * 31 + [math.inf], "of at least 1"),
        ([4.0] * 32, "holds 4, 4, 4, 4, 4, 4, 4, 4, …, from which no rope scaling"),  # "linear"
        ([1.0 + i for i in range(32)], "no rope scaling of Llama 3.1's kind can be told; take .* safetensors folder"),
        ([1.0] * 16 + [8.0] * 16, "no rope scaling"),  # a cliff: any of many would do
    ],
)
def test_what_llama_3_cannot_mean_is_refused(factors, message):
    with pytest.raises(ConfigError, match=message):
        scaling_of(factors, 10_000.0, 64)
