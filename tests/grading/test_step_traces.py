"""A learner's scheduler in the simulator: traces compared, work counted, broken contracts named."""

import json
import random
from pathlib import Path

import pytest

from mini_vllm.core.scheduler import Scheduler
from mini_vllm.errors import SchedulerContractError
from mini_vllm.grading.calling import call_once
from mini_vllm.grading.exercise import NUM_CASES, Exercise
from mini_vllm.grading.step_traces import (
    as_simulate,
    count_work,
    draw_workload,
    everybody_served,
    run_scheduler,
    same_trace,
    work_within,
    workload,
)

RECORDINGS = sorted((Path(__file__).resolve().parents[1] / "data" / "vllm_traces").glob("*.json"))
SMALL = {"max_num_seqs": 3, "max_num_batched_tokens": 8, "num_gpu_blocks": 6, "block_size": 4}
THREE = [[["A", 6, 6, 0], ["B", 5, 7, 0], ["C", 4, 8, 1]], SMALL]


def run(case, scheduler_cls=Scheduler):
    return run_scheduler(scheduler_cls, *workload(case))


def shifted(steps, index, **changes):
    """A copy of a trace with one record changed."""
    return [{**record, **changes} if i == index else record for i, record in enumerate(steps)]


def test_the_same_scheduler_gives_the_same_trace_and_serves_everybody():
    for seed in range(20):
        case = draw_workload(random.Random(seed), **SMALL | {"num_gpu_blocks": 40})
        steps = run(case)
        assert json.loads(json.dumps(steps)) == steps, "plain data"
        assert same_trace("scheduled", "preempted", "waiting")(case, steps, run(case)) is None
        assert everybody_served(case, steps, None) is None


def test_the_first_difference_is_named_with_step_and_field():
    right = run(THREE)
    compare = same_trace("scheduled", "preempted")
    other = shifted(right, 2, scheduled=[["A", 1]])
    assert compare(THREE, other, right).startswith(
        f"first difference in step 2, scheduled: expected {right[2]['scheduled']}"
    )
    assert ">    2" in compare(THREE, other, right)
    other = shifted(right, 2, preempted=["A"])
    assert "step 2, preempted: expected [], got ['A']" in compare(THREE, other, right)
    assert (
        compare(THREE, right[:-1], right)
        == f"step {len(right) - 1} is missing: the run has {len(right) - 1} steps, {len(right)} are right"
    )
    assert "is one too many" in compare(THREE, [*right, right[-1]], right)


def test_work_is_counted():
    steps = run(THREE)
    work = count_work(steps)
    needed = sum(prompt + output - 1 for _, prompt, output, _ in THREE[0])
    assert work["preemptions"] > 0 and work["steps"] == len(steps)
    assert work["scheduled_tokens"] == needed + work["recomputed_tokens"]
    roomy = count_work(run([THREE[0], SMALL | {"num_gpu_blocks": 40}]))
    assert roomy["preemptions"] == roomy["recomputed_tokens"] == 0 and roomy["scheduled_tokens"] == needed


# Without drafts and tokens in flight, which are computed for nothing: that is no recomputation.
PREEMPT = [path for path in RECORDINGS if "preempt" in path.name and not {"async", "spec"} & set(path.name.split("_"))]


@pytest.mark.parametrize("path", PREEMPT, ids=lambda path: path.stem)
def test_counts_agree_with_recorded_runs_of_vllm(path):
    data = json.loads(path.read_text(encoding="utf-8"))
    steps = data["trace"]["steps"]
    work = count_work(steps)
    assert work["preemptions"] == sum(len(step["preempted"]) for step in steps) > 0
    seen, again = set(), 0
    for step in steps:
        for req_id, num_tokens in step["scheduled"]:
            end = step["computed"][req_id][1]  # a request that finds cached blocks starts behind them
            positions = {(req_id, position) for position in range(end - num_tokens, end)}
            again += len(positions & seen)
            seen |= positions
    assert work["recomputed_tokens"] == again


def test_more_work_than_needed_is_told_how_much_and_where():
    right = run([THREE[0], SMALL | {"num_gpu_blocks": 40}])
    mine = run(THREE)
    complaint = work_within("preemptions")(THREE, mine, right)
    assert "preemptions, 0 are enough; the first eviction of your own is in step" in complaint
    assert work_within("recomputed_tokens")(THREE, right, mine) is None
    assert work_within("preemptions", lambda n: n + 99)(THREE, mine, right) is None
    assert "steps," in work_within("steps", lambda n: 1)(THREE, mine, right)


def test_nobody_is_left_out_and_no_token_invented():
    steps = run(THREE)
    last = len(steps) - 1
    assert "A finished 0 times" in everybody_served(THREE, [], None)
    assert "finished 2 times" in everybody_served(
        THREE, shifted(steps, last, finished=["A", *steps[last]["finished"]]), None
    )
    assert "needs 11 tokens computed, got" in everybody_served(THREE, [{**r, "scheduled": []} for r in steps], None)


def test_an_answer_that_the_model_s_length_ends_is_served_to_there():
    case = [[["A", 4, 30, 0]], SMALL | {"max_model_len": 12, "num_gpu_blocks": 40}]
    steps = run(case)
    assert everybody_served(case, steps, None) is None
    assert "needs 33 tokens computed, got 11" in everybody_served([case[0], SMALL], steps, None)


SCHEDULER = Exercise(
    exercise_id="c99-e1", title="A scheduler", kind="extend", function="MyScheduler", stars=3, points=20, minutes=30,
    needs="chapter 5", hints=("a", "b", "c"), compare=same_trace("scheduled"), prepare=workload, call=run_scheduler,
    show=as_simulate, draw_cases=lambda rng: [draw_workload(rng, **SMALL) for _ in range(NUM_CASES)],
)  # fmt: skip


def test_an_exercise_takes_a_class_and_names_a_broken_contract():
    assert SCHEDULER.call_text(THREE) == (
        "simulate([SimRequest('A', 6, 6, arrival_step=0), SimRequest('B', 5, 7, arrival_step=0), "
        "SimRequest('C', 4, 8, arrival_step=1)], SchedulerConfig(max_num_seqs=3, max_num_batched_tokens=8, "
        "num_gpu_blocks=6), scheduler_cls=MyScheduler)"
    )
    outcome = call_once(SCHEDULER, Scheduler, THREE)
    assert same_trace("scheduled")(THREE, outcome["value"], run(THREE)) is None
    assert (
        "lacks add_request"
        in call_once(SCHEDULER, type("MyScheduler", (), {"__init__": lambda s, c: None}), THREE)["error"]
    )

    class Idle(Scheduler):
        def schedule(self):
            plan = super().schedule()
            plan.num_scheduled_tokens.clear()
            return plan

    assert SchedulerContractError.__name__ in call_once(SCHEDULER, Idle, THREE)["error"]

    class Stub(Scheduler):
        def schedule(self):
            raise NotImplementedError("c99-e1: write MyScheduler")

    assert call_once(SCHEDULER, Stub, THREE) == {"stub": True}
