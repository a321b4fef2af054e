"""The simulator: a scheduler on a clock where every step is one tick."""

import math
from dataclasses import asdict, replace

import pytest

from mini_vllm.config import SchedulerConfig
from mini_vllm.core.output import CachedRequestData, NewRequestData, SchedulerOutput
from mini_vllm.core.scheduler import Scheduler
from mini_vllm.errors import DuplicateRequestError, EmptyPromptError, InvalidRequestError, MiniVLLMError
from mini_vllm.sampling_params import SamplingParams
from mini_vllm.sim.driver import SimRequest, simulate
from mini_vllm.sim.fake_runner import FakeModelRunner

ROOMY = SchedulerConfig(max_num_seqs=4, max_num_batched_tokens=8192, max_model_len=10_000, num_gpu_blocks=3000)


def test_a_request_emits_exactly_max_tokens_tokens():
    assert simulate([SimRequest("A", 3, 4)]).outputs() == {"A": [1000, 1001, 1002, 1003]}


def test_the_default_configuration_is_the_schedulers():
    header = simulate([SimRequest("A", 3, 1)]).header
    assert header["config"] == asdict(SchedulerConfig())
    assert header["config"] | {
        "max_num_seqs": 8, "max_num_batched_tokens": 64, "max_model_len": 256, "num_gpu_blocks": 64, "block_size": 4,
        "policy": "fcfs", "enable_chunked_prefill": True, "enable_prefix_caching": False, "reserve_full_isl": True,
    } == header["config"]  # fmt: skip
    assert (header["kind"], header["scheduler"]) == ("sim", "Scheduler")


def test_nothing_to_do_is_a_trace_without_steps():
    assert simulate([]).steps == []


@pytest.mark.parametrize(
    ("prompt", "output", "budget", "steps"),
    [(5, 10, 64, 10), (4000, 40, 8192, 40), (4000, 40, 2048, 41), (4000, 40, 512, 47), (1, 1, 1, 1)],
)
def test_a_lone_request_takes_ceil_prompt_over_budget_plus_output_minus_one_steps(prompt, output, budget, steps):
    config = SchedulerConfig(
        max_num_seqs=1, max_num_batched_tokens=budget, max_model_len=8000, num_gpu_blocks=300, block_size=16
    )
    trace = simulate([SimRequest("A", prompt, output)], config)
    assert len(trace.steps) == steps == -(-prompt // budget) + output - 1


def test_requests_arrive_at_their_step():
    trace = simulate([SimRequest("B", 2, 1, arrival_step=3), SimRequest("A", 2, 1)], ROOMY)
    assert [step["arrivals"] for step in trace.steps] == [["A"], [], [], ["B"]]
    assert trace.first_token_step() == {"A": 0, "B": 3}


def test_an_idle_step_is_still_a_step():
    trace = simulate([SimRequest("A", 2, 1, arrival_step=2)], ROOMY)
    assert [step["scheduled"] for step in trace.steps] == [[], [], [["A", 2]]]
    assert [step["step"] for step in trace.steps] == [0, 1, 2]


def test_requests_of_one_step_are_added_in_the_order_given():
    trace = simulate([SimRequest(name, 2, 1) for name in "CAB"], ROOMY)
    assert trace.steps[0]["waiting_before"] == ["C", "A", "B"]


def test_any_iterable_of_requests_will_do():
    assert len(simulate((SimRequest(name, 2, 1) for name in "AB"), ROOMY).outputs()) == 2


def test_one_id_twice_is_refused():
    with pytest.raises(DuplicateRequestError, match=r"an id stands twice in \['A', 'A'\]"):
        simulate([SimRequest("A", 2, 2), SimRequest("A", 2, 2)], ROOMY)


def test_a_run_that_is_too_long_says_how_far_it_came():
    with pytest.raises(MiniVLLMError, match="not done after 5 steps, 2 requests unfinished"):
        simulate([SimRequest("A", 2, 6), SimRequest("B", 2, 7), SimRequest("C", 2, 3)], ROOMY, max_steps=5)


def test_who_has_not_come_yet_is_unfinished_too():
    with pytest.raises(MiniVLLMError, match="not done after 5 steps, 1 requests unfinished"):
        simulate([SimRequest("A", 2, 1, arrival_step=10**9)], ROOMY, max_steps=5)


@pytest.mark.parametrize("name", ["prompt_len", "arrival_step"])
@pytest.mark.parametrize("value", [-3, 2.5, None, math.nan, "1"])
def test_lengths_and_steps_are_whole_numbers(name, value):
    with pytest.raises(InvalidRequestError, match=rf"request 'A' has {name}={value!r}; give a whole number"):
        SimRequest("A", **{"prompt_len": 2, "max_tokens": 2, name: value})


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: simulate(SimRequest), "is no SimRequest; give SimRequest"),
        (lambda: simulate([("A", 2, 2)]), r"\('A', 2, 2\) is no SimRequest"),
        (lambda: simulate([], SchedulerConfig), "got config=<class .*; give a SchedulerConfig"),
        (lambda: simulate([], {"max_num_seqs": 3}), "got config={'max_num_seqs': 3}"),
        (lambda: simulate([], ROOMY, scheduler_cls=Scheduler(ROOMY)), "and a scheduler's class"),
    ],
)
def test_classes_and_instances_are_not_mixed_up(make, reason):
    with pytest.raises(MiniVLLMError, match=reason):
        make()


def test_a_single_request_needs_no_list():
    assert len(simulate(SimRequest("A", 2, 3)).steps) == 3


def test_max_steps_steps_are_allowed():
    assert len(simulate([SimRequest("A", 2, 6)], ROOMY, max_steps=6).steps) == 6


def test_another_scheduler_runs_in_its_place():
    class Mine(Scheduler):
        pass

    trace = simulate([SimRequest("A", 2, 2)], ROOMY, scheduler_cls=Mine)
    assert trace.header["scheduler"] == "Mine"


def test_times_are_ticks_and_the_same_input_gives_the_same_trace():
    requests = [SimRequest("A", 3, 4), SimRequest("B", 5, 2, arrival_step=1)]
    trace = simulate(requests)
    assert trace == simulate(requests)
    assert [step["t_start"] for step in trace.steps] == [0, 1, 2, 3]


# --- the stand-in for the model ---


def plan(new=(), cached=(), **tokens):
    return SchedulerOutput(
        [NewRequestData(r, [0] * prompt_len, SamplingParams(), [1], 0) for r, prompt_len in new],
        CachedRequestData([r for r, _ in cached], [computed for _, computed in cached]),
        tokens,
    )


def test_the_fake_model_answers_only_at_the_end_of_the_known_tokens():
    runner = FakeModelRunner()
    assert runner.execute(plan(new=[("A", 5)], A=3)).sampled_token_ids == {"A": []}
    assert runner.execute(plan(cached=[("A", 3)], A=2)).sampled_token_ids == {"A": [1000]}
    assert runner.execute(plan(cached=[("A", 5)], A=1)).sampled_token_ids == {"A": [1001]}


def test_the_fake_model_starts_over_after_a_preemption():
    runner = FakeModelRunner()
    runner.execute(plan(new=[("A", 3)], A=3))
    assert runner.execute(plan(cached=[("A", 0)], A=3)).sampled_token_ids == {"A": []}  # 4 tokens are known
    assert runner.execute(plan(cached=[("A", 3)], A=1)).sampled_token_ids == {"A": [1001]}


def test_the_fake_model_counts_what_hit_the_cache_as_computed():
    new = NewRequestData("A", [0] * 5, SamplingParams(), [1], 4)
    output = FakeModelRunner().execute(SchedulerOutput([new], num_scheduled_tokens={"A": 1}))
    assert output.sampled_token_ids == {"A": [1000]}


# --- prefix caching and priority in a simulation ---


@pytest.mark.parametrize("prompt_len", [0, 1, 2, 40])
def test_a_simulated_prompt_has_the_length_asked_for(prompt_len):
    if prompt_len == 0:
        with pytest.raises(EmptyPromptError):
            simulate([SimRequest("A", 0, 1)])
    else:
        assert simulate([SimRequest("A", prompt_len, 1)]).header["requests"]["A"]["prompt_len"] == prompt_len


def test_simulated_prompts_share_nothing():
    config = replace(ROOMY, enable_prefix_caching=True)
    trace = simulate([SimRequest(name, 40, 2) for name in "AB"], config)
    assert trace.steps[0]["hits"] == {"A": 0, "B": 0}
    assert trace.outputs() == {"A": [1000, 1001], "B": [1000, 1001]}


def test_a_prefix_is_shared_in_whole_blocks_and_the_rest_is_not():
    config = replace(ROOMY, enable_prefix_caching=True)
    same = range(900, 917)  # 17 tokens, four blocks of 4 and one token
    requests = [SimRequest("A", 40, 2, prefix=same), SimRequest("B", 40, 2, prefix=same), SimRequest("C", 5, 2)]
    trace = simulate([*requests, SimRequest("D", 12, 1, prefix=same)], config)
    assert trace.steps[0]["hits"] == {"A": 0, "B": 16, "C": 0, "D": 8}, "D is cut to 12, of which a block is left over"
    assert dict(trace.steps[0]["scheduled"]) == {"A": 40, "B": 24, "C": 5, "D": 4}


def test_an_evicted_request_finds_its_own_blocks_again():
    # Four blocks: in step 1 A takes B's second block, so B keeps its first one cached and comes back to it.
    config = SchedulerConfig(num_gpu_blocks=4, max_num_seqs=2, enable_prefix_caching=True)
    trace = simulate([SimRequest("A", 8, 2), SimRequest("B", 8, 2)], config)
    assert [step["preempted"] for step in trace.steps] == [[], ["B"], []]
    assert trace.steps[2]["hits"] == {"B": 4}
    assert trace.outputs()["B"] == [1000, 1001]


def test_a_simulated_request_has_a_priority():
    requests = [SimRequest("A", 2, 1, priority=2), SimRequest("B", 2, 1, priority=1)]
    config = SchedulerConfig(max_num_seqs=1, policy="priority")
    assert simulate(requests, config).finish_step() == {"B": 0, "A": 1}


def test_who_waits_is_written_down_in_the_order_of_service():
    requests = [SimRequest("A", 2, 1, priority=2), SimRequest("B", 2, 1, priority=1), SimRequest("C", 2, 1)]
    trace = simulate(requests, SchedulerConfig(max_num_seqs=1, policy="priority"))
    assert [step["waiting_before"] for step in trace.steps] == [["C", "B", "A"], ["B", "A"], ["A"]]
