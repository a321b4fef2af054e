"""KV that is copied to the host and back: a plan's copy lists, and the same tokens as without. Chapter 8."""

import random

import pytest
import torch

from mini_vllm.config import SchedulerConfig
from mini_vllm.core.output import CachedRequestData, SchedulerOutput
from mini_vllm.engine.model_runner import ModelRunner
from mini_vllm.models.tiny import tiny_model
from mini_vllm.request import Request
from mini_vllm.sampling_params import SamplingParams
from mini_vllm.stages.ch09_chunked_prefill import Scheduler as Stage9
from tests.engine.dense_oracle import dense_generate


@pytest.fixture(scope="module")
def model():
    return tiny_model(0)


def test_copies_by_hand(model):
    """Out first, then in: block 1 goes out to host 2 and takes what lies in host 0, in one plan."""
    runner = ModelRunner(model, 3, 4, num_host_blocks=3)
    for cache, host in zip(runner.kv_caches, runner.host_caches, strict=True):
        cache[:, 1], host[:, 0] = 11.0, 10.0
    runner.execute(SchedulerOutput(swapped_out=[(1, 2)], swapped_in=[(1, 0), (3, 2)]))
    for cache, host in zip(runner.kv_caches, runner.host_caches, strict=True):
        assert cache[0, :, 0, 0, 0].tolist() == [0, 10, 0, 11] and torch.equal(cache[0], cache[1])
        assert host[1, :, 3, 1, 0].tolist() == [10, 0, 11]


class SwapScheduler(Stage9):
    """Evicts by copying instead of forgetting; whoever comes back goes on where it was."""

    def __init__(self, config):
        super().__init__(config)
        self.swapped = {}  # request -> (computed tokens, host blocks)
        self.host_free = list(range(64))
        self.given_back = []

    def schedule(self):
        self.out, self.back = [], []
        self.host_free += self.given_back  # read in the step before
        self.given_back = []
        plan = super().schedule()
        plan.swapped_out, plan.swapped_in = self.out, self.back
        return plan

    def preempt(self, victim):
        computed = victim.num_computed_tokens
        table = self.kv_cache_manager.get_block_ids(victim.request_id)[: self.config.blocks_for(computed)]
        host = [self.host_free.pop() for _ in table]
        self.out += zip(table, host, strict=True)
        self.swapped[victim] = (computed, host)
        super().preempt(victim)

    def admit(self, request):
        if request not in self.swapped:
            return super().admit(request)
        if self.preempted or len(self.running) >= self.config.max_num_seqs or not self.budget:
            return "busy"
        computed, host = self.swapped[request]
        n = min(request.num_tokens - computed, self.budget)
        blocks = self.kv_cache_manager.allocate_slots(request, computed + n)
        if blocks is None:
            return "kv"
        del self.swapped[request]
        self.back += zip(blocks, host, strict=False)
        self.given_back += host
        self.resumed.append(request.request_id)
        self.start(request)
        request.num_computed_tokens = computed
        self.give(request, n, blocks)
        return None


@pytest.mark.parametrize("seed", range(25))
def test_same_tokens_when_evicted_kv_comes_back(model, seed):
    rng = random.Random(seed)
    cases = []
    for _ in range(rng.randrange(2, 7)):
        prompt = [rng.randrange(128) for _ in range(rng.randrange(1, 30))]
        cases.append((prompt, rng.randrange(1, 20)))
    block_size = rng.choice([1, 3, 4])
    longest = max(len(p) + m for p, m in cases)
    least = -(-longest // block_size)
    config = SchedulerConfig(4, rng.choice([4, 9, 32]), longest, least + rng.choice([0, 2, least // 2]), block_size)
    scheduler = SwapScheduler(config)
    runner = ModelRunner(model, config.num_gpu_blocks, block_size, num_host_blocks=64)
    outputs = {str(i): [] for i in range(len(cases))}
    for i, (prompt, max_tokens) in enumerate(cases):
        scheduler.add_request(Request(str(i), prompt, SamplingParams(max_tokens=max_tokens, ignore_eos=True)))
    steps = 0
    while scheduler.has_unfinished_requests():
        plan = scheduler.schedule()
        for news in scheduler.update_from_output(plan, runner.execute(plan)):
            outputs[news.request_id] += news.new_token_ids
        steps += 1
        assert steps < 2000
    assert outputs == {str(i): dense_generate(model, *case) for i, case in enumerate(cases)}
    assert sorted(scheduler.host_free + scheduler.given_back) == list(range(64))


def test_the_schedules_above_do_swap(model):
    scheduler = SwapScheduler(SchedulerConfig(3, 16, 40, 12, 4))
    runner = ModelRunner(model, 12, 4, num_host_blocks=64)
    for i in range(3):
        scheduler.add_request(Request(str(i), [i] * 10, SamplingParams(max_tokens=25, ignore_eos=True)))
    moved, computed = 0, 0
    while scheduler.has_unfinished_requests():
        plan = scheduler.schedule()
        moved += len(plan.swapped_out) + len(plan.swapped_in)
        computed += plan.total_num_scheduled_tokens
        scheduler.update_from_output(plan, runner.execute(plan))
    assert moved > 10
    assert computed == 3 * (10 + 25 - 1), "nothing is computed twice"


def test_a_plan_without_copies_copies_nothing(model):
    runner = ModelRunner(model, 3, 4)
    before = [cache.clone() for cache in runner.kv_caches]
    runner.execute(SchedulerOutput(scheduled_cached_reqs=CachedRequestData()))
    assert all(torch.equal(a, b) for a, b in zip(before, runner.kv_caches, strict=True))
