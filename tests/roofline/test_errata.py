"""The corrected numbers of the course's errata, each by a function call. The name of a test says which entry it is.

Model and card unless said: Llama-3.1-8B in bfloat16 on an A100 80 GB SXM.
"""

import random
import statistics
from dataclasses import replace

import pytest

from mini_vllm.batching.waste import bubble_waste
from mini_vllm.errors import ConfigError
from mini_vllm.roofline import (
    ModelCosts,
    StepCost,
    StepWork,
    compute_bound_prompt,
    get_hardware,
    get_model,
    kv_capacity_tokens,
    recompute_ms,
    roofline_time,
    swap_copies,
    swap_ms,
)

DTYPE = "bfloat16"
LLAMA = ModelCosts(get_model("llama-3.1-8b"), DTYPE)
MULTI_HEAD = ModelCosts(replace(LLAMA.config, num_key_value_heads=32), DTYPE)  # what the popular numbers assume
A100 = get_hardware("A100-80GB-SXM")
CARDS = ("A100-40GB", "A100-80GB-PCIe", "A100-80GB-SXM")


def decode_time(batch: int, context: int, **efficiencies):
    return roofline_time(LLAMA.step(StepWork.decode(batch, context)), A100, DTYPE, **efficiencies)


def test_e1_ridge_points_are_200_161_and_153():
    ridges = [get_hardware(card).ridge_point(DTYPE) for card in CARDS]
    assert [round(ridge, 1) for ridge in ridges] == [200.6, 161.2, 153.0]
    idle = [1 - 1 / ridge for ridge in ridges]  # at 1 FLOP per byte, which is batch 1
    assert (round(100 * min(idle), 1), round(100 * max(idle), 1)) == (99.3, 99.5)


def test_e2_a_token_of_kv_takes_128_kib_not_512():
    assert LLAMA.kv_bytes_per_token == 131_072 == 128 * 1024
    assert MULTI_HEAD.kv_bytes_per_token == 524_288
    assert ModelCosts(get_model("llama-2-7b"), DTYPE).kv_bytes_per_token == 524_288


def test_e3_the_intensity_of_decode_rises_with_context():
    contexts = (1024, 4096, 32_768, 131_072)
    intensities = [LLAMA.step(StepWork.decode(1, context)).intensity for context in contexts]
    assert [round(value, 2) for value in intensities] == [1.03, 1.10, 1.67, 2.60]


def test_e3_attention_flops_per_decoded_token():
    costs = [LLAMA.step(StepWork.decode(1, context)).attention_flops for context in (1024, 4096)]
    assert [round(flops / 1e9, 2) for flops in costs] == [0.54, 2.15]
    assert LLAMA.attention_flops_per_pair / LLAMA.kv_bytes_per_token == 4
    assert MULTI_HEAD.attention_flops_per_pair / MULTI_HEAD.kv_bytes_per_token == 1


def test_e3_a_decode_reads_15_gb_and_computes_15_gflop():
    cost = LLAMA.step(StepWork.decode(1, 1))
    assert round(cost.weight_bytes / 1e9, 1) == round(cost.flops / 1e9, 1) == 15.0
    assert round(LLAMA.stored_bytes / 1e9, 1) == 16.1  # the input embedding is stored, but only looked up


@pytest.mark.parametrize(
    ("context", "batch", "times"),
    [
        (256, 32, 1.07), (256, 256, 1.68),
        (1024, 32, 1.27), (1024, 64, 1.56), (1024, 128, 2.13), (1024, 256, 3.26),
        (4096, 32, 2.07), (4096, 256, 9.81),
    ],
)  # fmt: skip
def test_e4_a_bigger_batch_costs_time(context, batch, times):
    assert round(decode_time(batch, context).ms / decode_time(1, context).ms, 2) == times


def test_e4_at_short_contexts_a_large_batch_is_compute_bound():
    time = decode_time(256, 256)
    assert (round(time.compute_ms, 2), round(time.memory_ms, 2), time.bound) == (12.43, 11.57, "compute")


def test_e4_256_sequences_of_4096_do_not_fit():
    kv_bytes = 256 * 4096 * LLAMA.kv_bytes_per_token
    assert round(kv_bytes / 1e9) == 137
    assert kv_capacity_tokens(LLAMA, A100, utilization=1.0) < 256 * 4096


def test_e4_free_far_below_114_thousand_resident_tokens():
    assert 114_000 < LLAMA.tokens_equal_to_weights < 115_000


def test_e4_decode_stays_memory_bound_from_1024_tokens_on():
    assert [round(LLAMA.decode_intensity_limit(context)) for context in (1024, 4096)] == [116, 32]
    assert LLAMA.decode_intensity_limit(1024) < min(get_hardware(card).ridge_point(DTYPE) for card in CARDS)
    assert all(decode_time(batch, 1024).bound == "memory" for batch in (1, 64, 4096))


def test_e5_the_intensity_of_a_prefill_is_about_its_length():
    intensities = [LLAMA.step(StepWork.prefill(n)).intensity for n in (64, 128, 1024)]
    assert [round(value) for value in intensities] == [60, 119, 962]


def test_e5_short_prompts_are_memory_bound():
    assert [compute_bound_prompt(LLAMA, get_hardware(card)) for card in CARDS] == [216, 173, 165]


def test_e5_kv_of_a_prompt_is_negligible():
    cost = LLAMA.step(StepWork.prefill(1024))
    assert round(cost.kv_bytes / 1e9, 3) == 0.134
    assert cost.kv_bytes < 0.01 * cost.bytes


def test_e5_attention_is_not_linear():
    costs = [LLAMA.step(StepWork.prefill(n)) for n in (1024, 4096, 8192, 32_768)]
    assert [round(100 * cost.attention_flops / cost.flops, 1) for cost in costs] == [1.9, 7.1, 13.3, 38.1]
    assert [round(100 * cost.attention_flops / cost.linear_flops, 1) for cost in costs] == [1.9, 7.7, 15.4, 61.5]


@pytest.mark.parametrize(
    ("draw", "at_8", "at_32"),
    [
        (lambda rng: rng.gauss(1, 0.5), 0.41, 0.50),
        (lambda rng: rng.gauss(1, 0.25), 0.26, 0.34),
        (lambda rng: rng.expovariate(1), 0.61, 0.74),
    ],
    ids=["normal cv .5", "normal cv .25", "exponential"],
)
def test_e6_waste_depends_on_the_batch_too(draw, at_8, at_32):
    rng = random.Random(6)
    for batch, expected in ((8, at_8), (32, at_32)):
        wasted = statistics.fmean(bubble_waste([draw(rng) for _ in range(batch)]) for _ in range(4000))
        assert wasted == pytest.approx(expected, abs=0.01)


def test_e14_a_decode_at_128k_reads_more_kv_than_weights():
    cost = LLAMA.step(StepWork.decode(1, 131_072))
    assert round(cost.kv_bytes / 1e9) == 17
    assert cost.kv_bytes > cost.weight_bytes


def test_e14_tokens_do_not_cost_the_same():
    prefill = roofline_time(LLAMA.step(StepWork.prefill(1024)), A100, DTYPE, flop_eff=0.55).ms / 1024
    assert round(prefill, 2) == 0.08
    assert round(decode_time(1, 1024).ms, 1) == 7.4
    assert round(decode_time(32, 1024).ms / 32, 1) == 0.3


def test_e25_recomputing_4100_tokens():
    flops = LLAMA.step(StepWork.prefill(4100)).flops
    assert round(flops / 1e12, 1) == 61.6
    assert [round(recompute_ms(LLAMA, A100, 4100, flop_eff=eff)) for eff in (1, 0.55, 0.4)] == [198, 359, 494]


def test_e25_recomputing_210_tokens():
    times = [recompute_ms(LLAMA, A100, 210, flop_eff=eff) for eff in (1, 0.55, 0.4)]
    assert [round(ms, 1) for ms in times] == [9.4, 17.2, 23.6]
    assert round(recompute_ms(LLAMA, A100, 1), 1) == 7.4  # one pass over the weights: no recompute is shorter


def test_e25_a_prefill_of_4000_takes_192_ms_at_peak():
    assert round(recompute_ms(LLAMA, A100, 4000)) == 192
    assert round(recompute_ms(LLAMA, A100, 4000, flop_eff=0.55)) == 350


def test_e26_in_the_linear_model_the_ratio_does_not_depend_on_length():
    for tokens in (210, 4100):
        compute = roofline_time(StepCost(16_000_000_000 * tokens, 0, 0, 0, 0), A100, DTYPE).compute_ms
        swap = swap_ms(MULTI_HEAD, tokens, 32e9, round_trip=False)
        assert (round(1e3 * compute / tokens, 1), round(1e3 * swap / tokens, 1)) == (51.3, 16.4)
        assert round(compute / swap, 2) == 3.13


def test_e26_only_attention_cached_prefixes_and_fixed_costs_break_the_tie():
    def ratio(tokens, copy_us=0.0, cached=0):
        return recompute_ms(LLAMA, A100, tokens, cached=cached) / swap_ms(LLAMA, tokens, 25e9, copy_us=copy_us)

    assert ratio(8192) > 1.05 * ratio(1024)  # attention
    assert ratio(1024, copy_us=5) < ratio(1024)
    assert ratio(4096, cached=4000) < 0.1 * ratio(4096)


def test_e27_swapping_4100_tokens():
    assert round(4100 * LLAMA.kv_bytes_per_token / 1e9, 3) == 0.537
    assert round(swap_ms(LLAMA, 4100, 25e9, round_trip=False), 1) == 21.5
    assert round(swap_ms(LLAMA, 4100, 25e9)) == 43
    ratios = [recompute_ms(LLAMA, A100, 4100, flop_eff=eff) / swap_ms(LLAMA, 4100, 25e9) for eff in (1, 0.55)]
    assert [round(ratio, 1) for ratio in ratios] == [4.6, 8.4]


def test_e27_even_with_512_kib_a_round_trip_is_not_three_times_faster():
    round_trip = swap_ms(MULTI_HEAD, 4100, 32e9)
    assert round(round_trip) == 134
    assert round(210 / round_trip, 1) == 1.6  # 210 ms: the popular number for the recompute


def test_e28_a_swap_is_many_small_copies():
    assert swap_copies(LLAMA, 4100) == 16_448 == 257 * 32 * 2
    assert 16 * LLAMA.kv_bytes_per_token // (32 * 2) == 32 * 1024  # bytes of each
    moved = swap_ms(LLAMA, 4100, 25e9, round_trip=False)
    fixed = [swap_ms(LLAMA, 4100, 25e9, round_trip=False, copy_us=us) - moved for us in (5, 10)]
    assert [round(ms) for ms in fixed] == [82, 164]


def test_a_recompute_of_everything_cached_is_refused():
    with pytest.raises(ConfigError, match=r"cached=100 must be less than tokens=100"):
        recompute_ms(LLAMA, A100, 100, cached=100)
