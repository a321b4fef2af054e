"""Bad input: empty and over-long prompts, limits, configurations that contradict themselves. Knows no model.

Each ends in a clear error or a documented result; never in a stuck queue or a leaked block: `World.drain` fails on
both. Cases named a… are those of `facts/public_bugs.json`; ids and aborts stand in test_public_bugs_aborts.py.
"""

from functools import partial

import pytest

from mini_vllm.config import SchedulerConfig
from mini_vllm.core.async_scheduler import AsyncScheduler
from mini_vllm.core.scheduler import Scheduler
from mini_vllm.errors import (
    ConfigError,
    EmptyPromptError,
    InvalidSamplingParamsError,
    KVPoolTooSmallError,
    MiniVLLMError,
    PromptTooLongError,
)
from mini_vllm.sampling_params import SamplingParams
from mini_vllm.stages.ch10_priority_aging import Scheduler as ClearForm
from tests.core.public_bugs_world import VOCABULARY, World


@pytest.fixture(params=[Scheduler, ClearForm, AsyncScheduler], ids=["core", "clear", "async"])
def world(request):
    """Builds a world; all three schedulers must pass."""
    return partial(World, request.param)


# --- lengths ---


@pytest.mark.parametrize("budget", [8, 64])
@pytest.mark.parametrize(("prompt_len", "room"), [(14, 2), (15, 1)])
@pytest.mark.parametrize("max_tokens", [1, 5])
def test_a29_room_is_what_the_prompt_leaves_of_max_model_len(world, budget, prompt_len, room, max_tokens):
    """Limits (vllm#6521, #16445, #10730): L - prompt tokens at most, then "length"; never more than 4 blocks."""
    w = world(max_model_len=16, max_num_batched_tokens=budget, num_gpu_blocks=4)
    w.add("r", prompt_len, max_tokens)
    w.drain()
    assert (len(w.outputs["r"]), w.ends["r"]) == (min(room, max_tokens), ["length"])
    assert w.outputs_are_right()


@pytest.mark.parametrize("budget", [8, 64])
@pytest.mark.parametrize("prompt_len", [16, 17])
def test_a29_a_prompt_that_leaves_no_room_is_refused(world, budget, prompt_len):
    """Limits (vllm#6521, #16445, #10730): a prompt of L tokens or more is refused, with both numbers."""
    w = world(max_model_len=16, max_num_batched_tokens=budget)
    with pytest.raises(PromptTooLongError, match=f"{prompt_len} prompt tokens.*16"):
        w.add("r", prompt_len, 5)
    w.add("next", 4, 2)
    w.drain()
    assert w.outputs_are_right()


@pytest.mark.parametrize("max_tokens", [0, -1, None, True, 1.5, "4"])
def test_a29_max_tokens_is_a_whole_number_of_at_least_1(max_tokens):
    """Limits (vllm#6521, #16445, #10730): 0 is refused, never one token; None is no length here."""
    with pytest.raises(InvalidSamplingParamsError, match=f"max_tokens={max_tokens!r}"):
        SamplingParams(max_tokens=max_tokens)


def test_a29_max_tokens_1_is_one_token_and_one_step(world):
    """Limits (vllm#6521, #16445, #10730): the token of the prompt's last step is the only one."""
    w = world()
    w.add("r", 5, 1)
    w.drain()
    assert (len(w.outputs["r"]), w.ends["r"], w.num_computed) == (1, ["length"], 5)


def test_an_empty_prompt_is_refused_and_the_others_go_on(world):
    w = world()
    w.add("good", 3, 4)
    w.step()
    with pytest.raises(EmptyPromptError, match="'r' has an empty prompt"):
        w.add("r", [], 4)
    w.drain()
    assert w.outputs_are_right()


# --- what enters the hash ---


def test_a_salt_that_cannot_be_hashed_is_no_poison(world):
    """JSON may carry half a surrogate pair; it is a salt like others, or refused where it is added."""
    w = world(enable_prefix_caching=True)
    try:
        w.add("bad", range(8), 1, cache_salt="\ud800")
    except MiniVLLMError:
        pass
    w.add("good", range(8), 2)
    w.drain()
    assert w.ends["good"] == ["length"]


# --- the pool ---


def test_a_request_that_fills_the_pool_to_the_last_slot_runs(world):
    w = world(num_gpu_blocks=3)
    w.add("r", 8, 5)  # 12 tokens with KV
    w.drain()
    assert w.outputs_are_right()
    assert w.num_preemptions == 0
    with pytest.raises(KVPoolTooSmallError, match="4 KV blocks for 13 tokens"):
        w.add("r", 8, 6)


def test_slots_for_lookahead_count_when_a_request_is_refused():
    """3 + 3 tokens fit 2 of 4 blocks, but each allocation asks for 16 slots more: it could never enter."""
    w = World(Scheduler, num_gpu_blocks=4, num_lookahead_tokens=16)
    with pytest.raises(KVPoolTooSmallError):
        w.add("r", 3, 3)
    w.drain()


def test_slots_for_drafts_count_when_a_request_is_refused():
    """7 tokens with KV fit 2 blocks, but 5 tokens and 4 drafts do not: after an eviction it could not come back."""
    w = World(Scheduler, num_gpu_blocks=2, num_speculative_tokens=4, enable_prefix_caching=True)
    with pytest.raises(KVPoolTooSmallError):
        w.add("r", range(3), 5)
    w.drain()


@pytest.mark.parametrize("lookahead", [0, 4])
def test_with_slots_for_drafts_the_smallest_pool_that_is_let_in_suffices(lookahead):
    """The border of the refusal, from the other side: whoever is let in runs to its end, whatever is rejected."""
    for num_gpu_blocks in range(1, 6):
        limits = {"num_gpu_blocks": num_gpu_blocks, "num_lookahead_tokens": lookahead, "max_model_len": 32}
        w = World(Scheduler, num_speculative_tokens=4, enable_prefix_caching=True, **limits)
        w.drafter = lambda known: [VOCABULARY] * 4  # never right
        for prompt_len in range(1, 12):
            try:
                w.add("r", range(prompt_len), 5)
            except KVPoolTooSmallError:
                continue
            w.drain()
            assert len(w.outputs["r"]) == 5
            assert w.outputs_are_right()


# --- configurations ---


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        ({"max_num_seqs": 8, "max_num_batched_tokens": 7}, "max_num_batched_tokens=7 is below max_num_seqs=8"),
        (
            {"enable_chunked_prefill": False, "max_model_len": 65},
            "64 is below max_model_len=65 and chunked prefill is off",
        ),
        ({"block_size": 0}, "block_size=0 must be a whole number of at least 1"),
        ({"num_gpu_blocks": 0}, "num_gpu_blocks=0 must"),
        ({"max_num_seqs": 2.0}, "max_num_seqs=2.0 must"),
        ({"max_num_seqs": True}, "max_num_seqs=True must"),
        ({"max_model_len": None}, "max_model_len=None must"),
        ({"max_num_scheduled_tokens": 0}, "max_num_scheduled_tokens=0 must"),
        ({"long_prefill_token_threshold": -1}, "long_prefill_token_threshold=-1 must"),
        ({"enable_prefix_caching": 1}, "enable_prefix_caching=1 must be True or False"),
        ({"policy": "lifo"}, "policy='lifo' is not one of fcfs, priority"),
        (
            {"enable_chunked_prefill": False, "max_model_len": 64, "max_num_scheduled_tokens": 8},
            "budget of 8 is below max_model_len=64 and chunked prefill is off",
        ),
        ({"num_speculative_tokens": 64}, r"budget of 64 is below 1 \+ num_speculative_tokens = 65"),
    ],
)
def test_a_configuration_that_contradicts_itself_is_refused(limits, message):
    with pytest.raises(ConfigError, match=message):
        SchedulerConfig(**limits)


def test_the_token_budget_never_exceeds_the_input_budget(world):
    w = world(max_num_seqs=4, max_num_batched_tokens=8, max_num_scheduled_tokens=16)
    w.add("r", 20, 2)
    assert w.step() == {"r": 8}
    w.drain()
    assert w.outputs_are_right()


def test_async_with_drafts_is_refused():
    with pytest.raises(ConfigError, match="num_speculative_tokens=2 with asynchronous"):
        AsyncScheduler(SchedulerConfig(num_speculative_tokens=2))
