"""The cards: names, dense rates, refusals; what fits; the plain roofline."""

import math

import pytest

from mini_vllm.errors import ConfigError
from mini_vllm.models.config import ModelConfig
from mini_vllm.roofline import (
    HardwareSpec,
    ModelCosts,
    StepWork,
    compute_bound_prompt,
    get_hardware,
    get_model,
    known_hardware,
    kv_capacity_tokens,
    roofline_time,
)

TOY = HardwareSpec("toy", {"float32": 1000.0}, 10.0, 1e9, "made up")


@pytest.mark.parametrize("name", known_hardware())
def test_every_card_is_plausible_and_sourced(name):
    card = get_hardware(name)
    assert card.name == name and "http" in card.source and not card.measured
    assert card.flop_per_s["float16"] > card.flop_per_s["float32"]
    # 16-bit ridge points of all of these lie between a laptop's and an L4's.
    assert 100 < card.ridge_point("float16") < 420
    assert 8e9 <= card.memory_bytes <= 141e9


def test_rates_are_dense():
    dense = {"T4": 65, "L4": 121, "A10G": 70, "A40": 149.7, "A100-40GB": 312, "H100-SXM": 989.4, "RTX-4090": 165.2}
    assert {name: get_hardware(name).peak("float16") / 1e12 for name in dense} == pytest.approx(dense)
    hopper = get_hardware("H200")
    assert hopper.peak("bfloat16") == get_hardware("H100-SXM").peak("bfloat16")
    assert hopper.bytes_per_s > get_hardware("H100-SXM").bytes_per_s


def test_the_laptop_from_cores_and_clock():
    laptop, flops = get_hardware("rtx 4070 laptop"), 4608 * 2 * 2.175e9
    assert laptop.peak("float32") == pytest.approx(flops, rel=0.01)
    assert laptop.peak("float16") == pytest.approx(2 * flops, rel=0.01)
    assert laptop.bytes_per_s == 128 / 8 * 16e9


@pytest.mark.parametrize("name", ["a100-80gb-sxm", "A100 80GB SXM", "a100_80gb_sxm"])
def test_names_are_read_leniently(name):
    assert get_hardware(name).name == "A100-80GB-SXM"


@pytest.mark.parametrize(
    ("reported", "card"),
    [
        ("Tesla T4", "T4"),
        ("NVIDIA A100-SXM4-80GB", "A100-80GB-SXM"),
        ("NVIDIA A100-SXM4-40GB", "A100-40GB"),
        ("NVIDIA H100 80GB HBM3", "H100-SXM"),
        ("NVIDIA H200", "H200"),
        ("NVIDIA GeForce RTX 4070 Laptop GPU", "RTX-4070-Laptop"),
        ("H100", "H100-SXM"),
    ],
)
def test_names_as_torch_reports_them(reported, card):
    assert get_hardware(reported).name == card


def test_an_unknown_card_is_told_the_known_ones():
    with pytest.raises(ConfigError, match=r"'A100' is not one of T4, L4, .*RTX-4090\..*HardwareSpec"):
        get_hardware("A100")
    with pytest.raises(ConfigError, match="Did you mean 'RTX-4090'"):
        get_hardware("RTX 4900")
    with pytest.raises(ConfigError, match="is not one of"):
        get_hardware(HardwareSpec)


def test_a_dtype_that_the_card_lacks():
    with pytest.raises(ConfigError, match="T4 has no bfloat16 rate; it has float16, float32"):
        get_hardware("T4").ridge_point("bfloat16")


@pytest.mark.parametrize("bad", [0, -1, math.nan, math.inf, True, "fast"])
def test_rates_are_numbers_above_zero(bad):
    for spec in (({"float32": bad}, 1.0, 1.0), ({"float32": 1.0}, bad, 1.0), ({"float32": 1.0}, 1.0, bad)):
        with pytest.raises(ConfigError, match="must be a number above 0"):
            HardwareSpec("broken", *spec, "made up")
    with pytest.raises(ConfigError, match="no FLOP/s for any dtype"):
        HardwareSpec("empty", {}, 1.0, 1.0, "made up")


def test_the_roofline_by_hand():
    costs = ModelCosts(ModelConfig.tiny(), "float32")
    cost = costs.step(StepWork.decode(1, 1))
    time = roofline_time(cost, TOY, "float32", flop_eff=0.5, mem_eff=0.25)
    assert time.compute_ms == pytest.approx(1e3 * cost.flops / 500)
    assert time.memory_ms == pytest.approx(1e3 * cost.bytes / 2.5)
    assert (time.ms, time.bound) == (time.memory_ms, "memory")


def test_the_first_compute_bound_prompt_is_the_first():
    costs, card = ModelCosts(get_model("qwen3-0.6b")), get_hardware("L4")
    first = compute_bound_prompt(costs, card)
    times = [roofline_time(costs.step(StepWork.prefill(n)), card, "bfloat16") for n in range(first - 3, first + 3)]
    assert [time.bound for time in times] == ["memory"] * 3 + ["compute"] * 3


def test_no_prompt_is_compute_bound_on_a_card_without_memory_bandwidth():
    with pytest.raises(ConfigError, match=r"no prompt of up to 1024 tokens is compute-bound on slow"):
        compute_bound_prompt(
            ModelCosts(ModelConfig.tiny(), "float32"), HardwareSpec("slow", {"float32": 1e12}, 1.0, 1e9, "made up")
        )


def test_capacity_by_hand():
    costs, card = ModelCosts(get_model("llama-3.1-8b")), get_hardware("A100-80GB-SXM")
    assert kv_capacity_tokens(costs, card) == int((0.92 * 80e9 - 2 * 8_030_261_248) // 131_072)


def test_a_model_that_does_not_fit():
    costs = ModelCosts(get_model("llama-2-70b"))
    with pytest.raises(ConfigError, match=r"takes 138.0 GB in bfloat16 .* H100-SXM has 80.0 GB, of which 73.6 are"):
        kv_capacity_tokens(costs, get_hardware("H100-SXM"))
    assert kv_capacity_tokens(costs, get_hardware("H200"), utilization=1.0) > 0


def test_beside_the_weights_there_must_be_room_for_a_token():
    costs = ModelCosts(get_model("qwen3-0.6b"))
    for spare, fits in ((costs.kv_bytes_per_token, True), (costs.kv_bytes_per_token - 1, False)):
        card = HardwareSpec("just", {"bfloat16": 1e12}, 1e12, costs.stored_bytes + spare, "made up")
        if fits:
            assert kv_capacity_tokens(costs, card, utilization=1.0) == 1
        else:
            with pytest.raises(ConfigError, match="Take a larger card"):
                kv_capacity_tokens(costs, card, utilization=1.0)


@pytest.mark.parametrize("bad", [0, -0.1, 1.01, math.nan])
def test_shares_lie_between_0_and_1(bad):
    costs, card = ModelCosts(get_model("llama-2-7b")), get_hardware("A40")
    with pytest.raises(ConfigError, match="utilization="):
        kv_capacity_tokens(costs, card, bad)
    with pytest.raises(ConfigError, match="mem_eff="):
        roofline_time(costs.step(StepWork.decode(1, 1)), card, "float16", mem_eff=bad)


def test_classes_where_instances_are_wanted():
    costs, card = ModelCosts(get_model("llama-2-7b")), get_hardware("A40")
    with pytest.raises(ConfigError, match="hardware is the class HardwareSpec; give an instance"):
        kv_capacity_tokens(costs, HardwareSpec)
    with pytest.raises(ConfigError, match="costs is the class ModelCosts"):
        compute_bound_prompt(ModelCosts, card)
    with pytest.raises(ConfigError, match="hardware is 'A40', a str"):
        roofline_time(costs.step(StepWork.decode(1, 1)), "A40", "float16")
