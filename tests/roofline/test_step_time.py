"""The step-time model: by hand on a toy, then its shape on random work."""

import math
from dataclasses import asdict, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mini_vllm.errors import ConfigError
from mini_vllm.models.config import ModelConfig
from mini_vllm.roofline import (
    HardwareSpec,
    ModelCosts,
    StepConstants,
    StepTimeModel,
    StepWork,
    get_hardware,
    get_model,
    gpu_constants,
    roofline_time,
)

TOY = HardwareSpec("toy", {"float32": 1e6}, 1e6, 1e9, "made up")
COSTS = ModelCosts(ModelConfig.tiny(), "float32")
CONSTANTS = StepConstants(
    flop_eff=0.5,
    mem_eff=0.8,
    layer_us=3,
    attn_flop_eff=0.25,
    kv_eff=0.4,
    attn_us=5,
    seq_us=7,
    prefill_us=13,
    step_us=11,
)
FREE = StepConstants(
    flop_eff=1, mem_eff=1, layer_us=0, attn_flop_eff=1, kv_eff=1, attn_us=0, seq_us=0, prefill_us=0, step_us=0
)


@st.composite
def works(draw):
    prefills = draw(st.lists(st.tuples(st.integers(1, 50), st.integers(0, 99), st.booleans()), max_size=3))
    parts = [StepWork.prefill(*prefill) for prefill in prefills]
    if draw(st.booleans()) or not parts:
        parts.append(StepWork.decode(draw(st.integers(1, 50)), draw(st.integers(1, 500))))
    return StepWork.mixed(parts)


def test_a_mixed_step_by_hand():
    work = StepWork.mixed([StepWork.prefill(4, sampled=False), StepWork.decode(2, 10)])
    linear = math.hypot(6 * COSTS.linear_flops_per_token / 0.5e6, COSTS.layer_weight_bytes / 0.8e6)
    attention = math.hypot(30 * COSTS.attention_flops_per_pair / 0.25e6, 24 * COSTS.kv_bytes_per_token / 0.4e6)
    head = math.hypot(2 * 2 * 128 * 32 / 0.5e6, 4 * 128 * 32 / 0.8e6)
    fixed = (11 + 2 * (3 + 5 + 3 * 7 + 13)) / 1e6  # two layers, three sequences, one of them a prefill
    model = StepTimeModel(COSTS, TOY, CONSTANTS)
    assert model.step_ms(work) == pytest.approx(1e3 * (linear + attention + head + fixed))


def test_a_step_without_tokens_takes_the_fixed_time():
    assert StepTimeModel(COSTS, TOY, CONSTANTS).step_ms(StepWork()) == 0.011


def test_only_a_step_with_prefills_has_their_fixed_time():
    without = replace(CONSTANTS, prefill_us=0)
    for work, us in ((StepWork.decode(4, 9), 0), (StepWork.prefill(4), 2 * 13)):
        added = StepTimeModel(COSTS, TOY, CONSTANTS).step_ms(work) - StepTimeModel(COSTS, TOY, without).step_ms(work)
        assert 1e3 * added == pytest.approx(us, abs=1e-6)


def test_a_chunk_that_samples_nothing_has_no_head():
    model = StepTimeModel(COSTS, TOY, CONSTANTS)
    assert model.parts_ms(StepWork.prefill(4, sampled=False))["head"] == 0
    assert model.parts_ms(StepWork.prefill(4))["head"] > 0


@settings(max_examples=200, deadline=None)
@given(works())
def test_the_parts_add_up(work):
    model = StepTimeModel(COSTS, TOY, CONSTANTS)
    assert sum(model.parts_ms(work).values()) == pytest.approx(model.step_ms(work))


@settings(max_examples=200, deadline=None)
@given(works())
def test_without_overheads_it_lies_between_the_roofline_and_its_two_sides_in_turn(work):
    sides = roofline_time(COSTS.step(work), TOY, "float32")
    ms = StepTimeModel(COSTS, TOY, FREE).step_ms(work)
    assert sides.ms <= ms * (1 + 1e-9)
    assert ms <= (sides.compute_ms + sides.memory_ms) * (1 + 1e-9)


@settings(max_examples=100, deadline=None)
@given(works(), works())
def test_more_work_takes_longer_and_one_step_less_than_two(first, second):
    model = StepTimeModel(COSTS, TOY, CONSTANTS)
    both = model.step_ms(StepWork.mixed([first, second]))
    apart = model.step_ms(first) + model.step_ms(second)
    assert max(model.step_ms(first), model.step_ms(second)) < both < apart


@settings(max_examples=50, deadline=None)
@given(works(), st.sampled_from(sorted(asdict(CONSTANTS))))
def test_every_constant_matters(work, name):
    work = StepWork.mixed([work, StepWork.prefill(3)])
    worse = 0.5 if name.endswith("_eff") else 2
    slower = replace(CONSTANTS, **{name: worse * getattr(CONSTANTS, name)})
    assert StepTimeModel(COSTS, TOY, slower).step_ms(work) > StepTimeModel(COSTS, TOY, CONSTANTS).step_ms(work)


def test_a_small_model_at_batch_1_is_bound_by_overhead():
    """Published: Qwen3-0.6B takes 4.2 ms a token on an A100, seven times what its bytes need."""
    costs = ModelCosts(get_model("qwen3-0.6b"))
    card, work = get_hardware("A100-80GB-SXM"), StepWork.decode(1, 192)
    ms = StepTimeModel(costs, card, gpu_constants()).step_ms(work)
    assert 5 < ms / roofline_time(costs.step(work), card, "bfloat16").ms < 9


def test_a_model_that_does_not_fit_the_card():
    with pytest.raises(ConfigError, match=r"takes 138.0 GB .* H100-SXM has 80.0 GB"):
        StepTimeModel(ModelCosts(get_model("llama-2-70b")), get_hardware("H100-SXM"), gpu_constants())


def test_a_dtype_that_the_card_lacks():
    with pytest.raises(ConfigError, match="T4 has no bfloat16 rate"):
        StepTimeModel(ModelCosts(get_model("smollm2-135m")), get_hardware("T4"), gpu_constants())


def test_classes_where_instances_are_wanted():
    with pytest.raises(ConfigError, match="constants is the class StepConstants; give an instance"):
        StepTimeModel(COSTS, TOY, StepConstants)
    with pytest.raises(ConfigError, match="costs is the class ModelCosts"):
        StepTimeModel(ModelCosts, TOY, CONSTANTS)


@pytest.mark.parametrize("bad", [-1, math.nan, math.inf])
def test_constants_are_numbers(bad):
    for name in asdict(CONSTANTS):
        with pytest.raises(ConfigError, match=f"{name}=.* must be a number above 0"):
            replace(CONSTANTS, **{name: bad})


def test_fixed_times_may_be_zero_but_efficiencies_may_not():
    assert replace(CONSTANTS, seq_us=0).seq_us == 0
    with pytest.raises(ConfigError, match="kv_eff=0 must be a number above 0"):
        replace(CONSTANTS, kv_eff=0)
    with pytest.raises(ConfigError, match=r"kv_eff=1\.5 is a share and must be at most 1"):
        replace(CONSTANTS, kv_eff=1.5)


def test_missing_or_unknown_constants_are_named():
    stored = asdict(CONSTANTS)
    stored["stepp_us"] = stored.pop("step_us")
    with pytest.raises(ConfigError, match=r"\['step_us', 'stepp_us'\] are missing or unknown"):
        StepConstants.from_dict(stored)
