"""The scheduler's configuration: every value in its range, and no two that contradict each other."""

import re

import pytest

from mini_vllm.config import SchedulerConfig
from mini_vllm.errors import ConfigError

COUNTS = [
    *("max_num_seqs", "max_num_batched_tokens", "max_model_len", "num_gpu_blocks", "block_size"),
    *("max_num_scheduled_tokens", "sliding_window", "max_loras"),
]
MAY_BE_ZERO = ["long_prefill_token_threshold", "num_speculative_tokens", "num_lookahead_tokens"]
SWITCHES = [
    *("enable_chunked_prefill", "enable_prefix_caching", "reserve_full_isl", "refuse_unfittable"),
    "unpublish_given_back",
    "long_prefill_token_threshold_adaptive",
]


def refused(message, **values):
    with pytest.raises(ConfigError, match="^" + re.escape(message)):
        SchedulerConfig(**values)


@pytest.mark.parametrize("field", COUNTS)
@pytest.mark.parametrize("value", [0, -1, True, 1.5, "8"])
def test_every_limit_is_a_whole_number_of_at_least_one(field, value):
    refused(f"{field}={value!r} must be a whole number of at least 1", **{field: value})


@pytest.mark.parametrize("field", MAY_BE_ZERO)
@pytest.mark.parametrize("value", [-1, True, 1.5, None])
def test_these_may_be_zero_but_not_less(field, value):
    refused(f"{field}={value!r} must be a whole number of at least 0", **{field: value})
    SchedulerConfig(**{field: 0})


@pytest.mark.parametrize("field", SWITCHES)
@pytest.mark.parametrize("value", [1, 0, None, "yes"])
def test_a_switch_is_on_or_off(field, value):
    refused(f"{field}={value!r} must be True or False", **{field: value})


@pytest.mark.parametrize("value", [-0.1, 1, 1.5, True, None, "0.1"])
def test_the_watermark_is_a_share_of_the_pool(value):
    refused(f"watermark={value!r} must be a share of the pool, at least 0 and below 1", watermark=value)


@pytest.mark.parametrize("value", [0, -1, "1", float("inf"), float("nan")])
def test_aging_is_a_time(value):
    refused(f"aging={value!r} must be a time above 0, or None", aging=value)


@pytest.mark.parametrize("field", ["max_num_seqs", "num_gpu_blocks", "max_model_len", "block_size"])
def test_a_limit_that_must_be_there_cannot_be_none(field):
    refused(f"{field}=None must be a whole number of at least 1", **{field: None})


def test_an_unknown_policy_is_refused_with_those_that_exist():
    refused("policy='lifo' is not one of fcfs, priority", policy="lifo")
    SchedulerConfig(policy="priority")


def test_the_budget_must_hold_one_token_for_each_running_request():
    refused("max_num_batched_tokens=3 is below max_num_seqs=4", max_num_seqs=4, max_num_batched_tokens=3)
    SchedulerConfig(max_num_seqs=4, max_num_batched_tokens=4)


def test_without_chunks_the_longest_prompt_must_fit_into_one_step():
    limits = {"max_num_batched_tokens": 64, "enable_chunked_prefill": False}
    refused("the token budget of 64 is below max_model_len=65 and chunked prefill is off", max_model_len=65, **limits)
    SchedulerConfig(max_model_len=64, **limits)
    refused("the token budget of 63 is below max_model_len=64", max_model_len=64, max_num_scheduled_tokens=63, **limits)


def test_a_decode_must_fit_into_one_step_with_its_drafts():
    limits = {"max_num_seqs": 2, "max_num_batched_tokens": 8, "num_speculative_tokens": 3}
    refused("the token budget of 3 is below 1 + num_speculative_tokens = 4", max_num_scheduled_tokens=3, **limits)
    SchedulerConfig(max_num_scheduled_tokens=4, **limits)


def test_the_message_says_the_way_out():
    with pytest.raises(ConfigError, match="raise the first or lower the second"):
        SchedulerConfig(max_num_seqs=4, max_num_batched_tokens=3)
    with pytest.raises(ConfigError, match=r"raise max_num_batched_tokens .*, or allow chunks"):
        SchedulerConfig(enable_chunked_prefill=False)


def test_a_configuration_does_not_change():
    with pytest.raises(AttributeError):
        SchedulerConfig().max_num_seqs = 3


def test_the_token_budget_is_that_of_the_input_unless_it_is_set():
    assert SchedulerConfig(max_num_batched_tokens=32).token_budget == 32
    assert SchedulerConfig(max_num_batched_tokens=32, max_num_scheduled_tokens=16).token_budget == 16


@pytest.mark.parametrize(("blocks", "watermark", "free"), [(64, 0.0, 0), (9, 0.3, 3), (8, 0.3, 2), (19, 0.05, 1)])
def test_the_null_block_counts_in_the_watermark(blocks, watermark, free):
    """9 usable blocks and the null block are 10: 0.3 of them are 3."""
    assert SchedulerConfig(num_gpu_blocks=blocks, watermark=watermark).watermark_blocks == free


@pytest.mark.parametrize(("tokens", "blocks"), [(0, 0), (1, 1), (4, 1), (5, 2), (8, 2)])
def test_a_started_block_counts_in_full(tokens, blocks):
    assert SchedulerConfig(block_size=4).blocks_for(tokens) == blocks
