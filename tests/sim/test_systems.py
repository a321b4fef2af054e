"""The ways to serve, each on a run small enough to see what makes it different."""

import random
from dataclasses import replace

import pytest

from mini_vllm.config import SchedulerConfig
from mini_vllm.core.kv_cache_manager import KVCacheManager
from mini_vllm.core.scheduler import Scheduler
from mini_vllm.errors import ConfigError
from mini_vllm.request import Request
from mini_vllm.sim.arrivals import AtOnce, Poisson
from mini_vllm.sim.clock import FixedClock, ModelClock
from mini_vllm.sim.lengths import Fixed, Independent, Uniform
from mini_vllm.sim.simulator import Simulator
from mini_vllm.sim.systems import SYSTEMS, LongestPrefixQueue, PrefillFirstScheduler, get_system
from mini_vllm.sim.workloads import Arrival, SharedPrefixes, Workload

BASE = SchedulerConfig(max_num_seqs=8, max_num_batched_tokens=32, max_model_len=64, num_gpu_blocks=64, block_size=4)
SECOND = FixedClock(1.0)


def run(name, workload, base=BASE, clock=SECOND, watch=True, **chosen):
    system = get_system(name)
    return system.simulator(system.configure(base, **chosen), clock, watch=watch).run(workload, token_times=True)


@pytest.mark.parametrize("name", SYSTEMS)
def test_every_system_serves_everybody_and_keeps_the_contract(name):
    """Watched: no plan over budget, no block given twice, every token reported."""
    for seed in range(8):
        rng = random.Random(seed)
        lengths = Independent(Uniform(1, 30), Uniform(1, 30))
        workload = rng.choice(
            [
                Workload(rng.choice([AtOnce(), Poisson(1)]), lengths, 25, seed),
                SharedPrefixes(Poisson(1), lengths, 25, num_prefixes=2, prefix=Fixed(9), seed=seed),
            ]
        )
        base = SchedulerConfig(
            max_num_seqs=rng.choice([2, 8]),
            max_num_batched_tokens=16,
            max_model_len=72,
            num_gpu_blocks=rng.choice([20, 60]),
            block_size=4,
        )
        result = run(name, workload, base)
        assert all(row.finished for row in result.log)
        for times, row in zip(result.token_times.values(), [result.log[i] for i in result.token_times], strict=True):
            assert len(times) == row.output_tokens


def test_bucketed_keeps_a_long_answer_from_short_ones():
    rows = [Arrival(0.0, 4, output) for output in (2, 9, 2, 9)]
    assert [row.last_token_s for row in run("static", rows, max_num_seqs=2).log] == [2, 9, 11, 18]
    assert [row.last_token_s for row in run("bucketed", rows, max_num_seqs=2).log] == [2, 11, 2, 11]


def test_continuous_takes_a_slot_in_the_step_after_it_fell_free():
    rows = [Arrival(0.0, 4, output) for output in (2, 9, 2, 9)]
    assert [row.last_token_s for row in run("continuous", rows, max_num_seqs=2).log] == [2, 9, 4, 13]


@pytest.mark.parametrize("name", ["reserve", "orca"])
def test_who_reserves_evicts_nobody(name):
    tight = SchedulerConfig(
        max_num_seqs=8, max_num_batched_tokens=64, max_model_len=64, num_gpu_blocks=24, block_size=4
    )
    workload = Workload(AtOnce(), Independent(Uniform(1, 30), Uniform(10, 30)), 40, seed=1)
    assert run("vllm", workload, tight).totals.preemptions > 0
    assert run(name, workload, tight).totals.preemptions == 0


def test_orca_reserves_the_longest_request_there_can_be():
    # 64 blocks of 4, max_model_len 64: 16 blocks each, so 4 at a time, however short they are.
    result = run("orca", [Arrival(0.0, 4, 3)] * 8)
    assert [row.scheduled_s for row in result.log] == [0.0] * 4 + [3.0] * 4


def test_reserve_knows_what_everybody_wants():
    # Prompt 4 and 61 more: 64 tokens of KV, 16 blocks; and those of 4 + 2 take 2 blocks each.
    result = run("reserve", [Arrival(0.0, 4, 61)] * 3 + [Arrival(0.0, 4, 3)] * 6, max_model_len=128)
    assert sum(row.scheduled_s == 0.0 for row in result.log) == 8  # 3 × 16 + 5 × 2 = 58; max_num_seqs is 8


def test_reserve_knows_that_the_last_token_needs_no_kv():
    # 4 + 5 tokens, of which 8 have KV: 2 blocks each, and the pool has 4.
    result = run("reserve", [Arrival(0.0, 4, 5)] * 2, num_gpu_blocks=4)
    assert [row.scheduled_s for row in result.log] == [0.0, 0.0]


def test_orca_needs_room_for_one_request():
    with pytest.raises(
        ConfigError, match=r"orca reserves max_model_len=64 tokens for everybody, 16 KV blocks; the pool has 8"
    ):
        run("orca", [Arrival(0.0, 4, 3)], num_gpu_blocks=8)


def test_vllm_v0_computes_prompts_while_others_stand_still():
    # A decodes from 1 s on; B comes at 3 s: its prompt takes step 3 for itself.
    result = run("vllm-v0", [Arrival(0.0, 4, 6), Arrival(3.0, 4, 2)])
    assert result.token_times == {0: [1, 2, 3, 5, 6, 7], 1: [4, 5]}
    # In today's vLLM both advance in every step.
    assert run("vllm", [Arrival(0.0, 4, 6), Arrival(3.0, 4, 2)]).token_times == {0: [1, 2, 3, 4, 5, 6], 1: [4, 5]}


def test_vllm_v0_counts_those_who_stand_still_as_present():
    result = run("vllm-v0", [Arrival(0.0, 4, 5), Arrival(0.0, 4, 5), Arrival(1.0, 4, 2)], max_num_seqs=2)
    assert result.log[2].scheduled_s == 5.0  # not before one of the two has left


def test_vllm_v0_keeps_its_watermark_while_others_stand_still():
    # 10 blocks and the null block, 30 %: 3 stay free. A holds 2 of them; B needs 6 of the 8 left, and waits for A.
    rows = [Arrival(0.0, 5, 3), Arrival(1.0, 24, 1)]
    assert run("vllm-v0", rows, num_gpu_blocks=10, watermark=0.3).log[1].scheduled_s == 3.0
    assert run("vllm-v0", rows, num_gpu_blocks=10, watermark=0.1).log[1].scheduled_s == 1.0


def test_vllm_v0_tells_the_worker_of_everybody_who_finished():
    told = []

    class Listening(PrefillFirstScheduler):
        def schedule(self):
            plan = super().schedule()
            told.extend(plan.finished_req_ids)
            return plan

    # The third needs 8 of 10 blocks and must wait for the second; the first leaves while it waits.
    rows = [Arrival(0.0, 4, 2), Arrival(0.0, 4, 9), Arrival(0.0, 32, 2)]
    config = get_system("vllm-v0").configure(BASE, num_gpu_blocks=10, watermark=0.0)
    Simulator(config, SECOND, scheduler_cls=Listening).run(rows)
    assert told == ["0", "1"]  # of the last nobody is told, since there is no step after it


def test_vllm_v0_lets_a_lone_request_into_the_watermark():
    result = run("vllm-v0", [Arrival(0.0, 24, 1)], num_gpu_blocks=10, watermark=0.6)  # 6 of 10 blocks, 6 kept free
    assert result.log[0].finished


def test_vllm_v0_evicts_who_entered_last():
    # 5 blocks: A and B take 3 each in the end. B has stood last since it entered, though A stood still meanwhile.
    result = run("vllm-v0", [Arrival(0.0, 4, 9), Arrival(2.0, 4, 9)], num_gpu_blocks=5, watermark=0.0)
    assert [row.preemptions for row in result.log] == [0, 1]


def test_vllm_v0_takes_no_prompt_in_pieces():
    assert not get_system("vllm-v0").configure(BASE).enable_chunked_prefill
    with pytest.raises(ConfigError, match="below max_model_len=64 and chunked prefill is off"):
        get_system("vllm-v0").configure(BASE, max_num_batched_tokens=32)


def test_sarathi_cuts_long_prompts_and_lets_decodes_ride_along():
    config = get_system("sarathi").configure(SchedulerConfig(max_model_len=4096, num_gpu_blocks=600, block_size=16))
    assert config.max_num_batched_tokens == 512 and config.enable_chunked_prefill
    result = run("sarathi", [Arrival(0.0, 4, 9), Arrival(2.0, 1200, 2)], max_model_len=4096, num_gpu_blocks=600)
    assert result.log[0].longest_gap_s == 1.0
    # 1,200 tokens at 511 a step beside one decode: steps 2, 3 and 4.
    assert result.token_times[1] == [5.0, 6.0]


def test_static_batching_lets_nobody_in_before_all_have_left():
    # Two rows. The batch is full at once, and runs until the longer one is done.
    result = run(
        "static", [Arrival(0.0, 4, 2), Arrival(0.0, 4, 6), Arrival(0.0, 4, 2), Arrival(0.0, 4, 2)], max_num_seqs=2
    )
    assert [row.scheduled_s for row in result.log] == [0.0, 0.0, 6.0, 6.0]


def test_a_static_batch_has_as_many_rows_as_are_sure_to_fit():
    # 64 blocks of 4 tokens, requests of up to 64 tokens: 4 rows.
    config = get_system("static").configure(BASE)
    assert (config.max_num_seqs, config.max_num_batched_tokens) == (4, 4 * 64)
    assert get_system("static").configure(BASE, max_num_seqs=2).max_num_seqs == 2


class Charged:
    """One millisecond for each token that a step computes."""

    def step_ms(self, work):
        return max(work.n_prefill + work.n_decode, 0.001)


def test_a_padded_batch_pays_for_its_rectangle():
    # Prompts 4 and 10, outputs 2 and 6. Prefill: 2 rows of 10. Then 5 steps of 2 rows, the first row done after one.
    rows = [Arrival(0.0, 4, 2), Arrival(0.0, 10, 6)]
    padded = run("padded", rows, clock=ModelClock(Charged()), max_num_seqs=2)
    static = run("static", rows, clock=ModelClock(Charged()), max_num_seqs=2)
    assert padded.totals.computed_tokens == 20 + 5 * 2
    assert padded.totals.padding_tokens == 6 + 4
    assert static.totals.computed_tokens == 14 + 2 + 4 * 1
    assert padded.end_s == pytest.approx(0.030) and static.end_s == pytest.approx(0.020)


def test_padding_counts_the_keys_that_are_only_padding():
    charges = []

    class Recorder(Charged):
        def step_ms(self, work):
            charges.append((work.n_prefill, work.n_decode, work.kv_tokens, work.attention_pairs))
            return 1.0

    run("padded", [Arrival(0.0, 4, 2), Arrival(0.0, 10, 3)], clock=ModelClock(Recorder()), max_num_seqs=2)
    assert charges == [(20, 0, 20, 110), (0, 2, 22, 22), (0, 2, 24, 24)]


def test_longest_prefix_goes_first():
    # The cache holds 8 tokens of content 7. Both come while the only seat is taken: the later one has a hit.
    first = Arrival(0.0, 8, 4, segments=((7, 8),))
    cold = Arrival(1.0, 12, 1, segments=((1, 12),))
    hot = Arrival(2.0, 12, 1, segments=((7, 8), (2, 4)))
    fcfs = run("vllm", [first, cold, hot], max_num_seqs=1, enable_prefix_caching=True)
    lpm = run("lpm", [first, cold, hot], max_num_seqs=1)
    assert fcfs.log[1].scheduled_s < fcfs.log[2].scheduled_s
    assert lpm.log[2].scheduled_s < lpm.log[1].scheduled_s
    assert lpm.log[2].hit_tokens == 8


def test_who_was_chosen_enters_even_if_another_has_the_better_hit_by_then():
    # The blocks that A is given carry its content at once: 2 of them are hits for B, one more than for A itself.
    a, b = Arrival(0.0, 8, 2, segments=((7, 8),)), Arrival(0.0, 16, 2, segments=((7, 8), (8, 8)))
    result = run("lpm", [a, b])
    assert [row.scheduled_s for row in result.log] == [0.0, 0.0]
    assert [row.hit_tokens for row in result.log] == [0, 8]


def test_of_equal_hits_the_first_goes_first():
    rows = [Arrival(0.0, 8, 1) for _ in range(5)]
    assert [row.scheduled_s for row in run("lpm", rows, max_num_seqs=1).log] == [0, 1, 2, 3, 4]


def test_who_was_evicted_goes_before_equals():
    queue = LongestPrefixQueue(KVCacheManager(BASE))
    waiting, evicted = Request("W", [1]), Request("E", [2])
    queue.add(waiting)
    queue.put_back(evicted)
    assert queue.peek() is evicted and list(queue) == [evicted, waiting]


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("vllm", {}),
        ("reserve", {}),
        ("lpm", {"enable_prefix_caching": True}),
        ("sarathi", {"max_num_batched_tokens": 512, "reserve_full_isl": False, "watermark": 0.01}),
        ("orca", {"enable_chunked_prefill": False, "max_num_batched_tokens": 64}),
        ("vllm-v0", {"enable_chunked_prefill": False, "max_num_batched_tokens": 64, "watermark": 0.01}),
    ],
)
def test_what_a_system_sets(name, changes):
    assert get_system(name).configure(BASE) == replace(BASE, **changes)


def test_a_chunk_holds_one_token_of_every_seat():
    wide = replace(BASE, max_num_seqs=1000, max_num_batched_tokens=1000)
    assert get_system("sarathi").configure(wide).max_num_batched_tokens == 1000


def test_an_unknown_system_lists_the_known_ones():
    with pytest.raises(ConfigError, match="system 'tgi' is not one of static, padded, bucketed, continuous, orca"):
        get_system("tgi")


def test_what_the_user_has_chosen_goes_before_what_the_system_would():
    config = get_system("sarathi").configure(BASE, max_num_batched_tokens=16, watermark=0.2)
    assert (config.max_num_batched_tokens, config.watermark, config.reserve_full_isl) == (16, 0.2, False)


def test_systems_that_only_set_limits_use_the_engines_own_scheduler():
    assert SYSTEMS["vllm"].scheduler_cls is SYSTEMS["sarathi"].scheduler_cls is Scheduler
