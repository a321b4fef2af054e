"""Where two runs part: tiny runs changed by hand in one place, other schedulers' runs, and what cannot be compared."""

import copy
import random

import pytest

from mini_vllm.config import SchedulerConfig
from mini_vllm.errors import TraceFormatError
from mini_vllm.sim.driver import SimRequest, simulate
from mini_vllm.stages.ch10_priority_aging import Scheduler as ClearScheduler
from mini_vllm.trace.diff import compare, diff
from mini_vllm.trace.trace import Trace
from tests.trace.runs import random_trace, tiny_trace


@pytest.fixture
def trace():
    return tiny_trace()


@pytest.fixture
def other(trace):
    return copy.deepcopy(trace)


def test_a_run_does_not_differ_from_itself(trace, other):
    comparison = compare(trace, other)
    assert diff(trace, other) is None
    assert (comparison.num_steps, comparison.notes) == (3, [])
    assert comparison.compared[0] == "arrivals" and "blocks" in comparison.compared
    assert set(comparison.not_compared) == {"t_start", "t_end", "blocked_reason"}


def test_reasons_are_compared_if_asked_for(trace, other):
    other.steps[1]["blocked_reason"] = "in other words"
    assert diff(trace, other) is None
    says = "step 1, blocked_reason: preempted_this_step against in other words"
    assert str(diff(trace, other, reasons=True)) == says


def test_the_first_difference_names_step_field_request_and_both_values(trace, other):
    other.steps[1]["blocks"] = {"A": [1, 9]}
    other.steps[2]["free"] = 7
    found = diff(trace, other)
    assert (found.step, found.field, found.request, found.a, found.b) == (1, "blocks", "A", [1, 2], [1, 9])
    assert str(found) == "step 1, blocks of A: [1, 2] against [1, 9]"


def test_of_one_step_the_field_comes_first_that_happens_first(trace, other):
    other.steps[1] |= {"free_end": 9, "sampled": {"A": [7]}, "preempted": [], "scheduled": [["A", 1], ["B", 1]]}
    found = diff(trace, other)
    assert (found.field, found.also) == ("scheduled", ("preempted", "sampled", "free_end"))


def test_tokens_are_compared(trace, other):
    other.steps[2]["sampled"]["B"] = [1002]
    assert str(diff(trace, other)) == "step 2, sampled of B: [1001] against [1002]"


def test_a_request_that_only_one_run_has_a_value_for(trace, other):
    del other.steps[0]["sampled"]["B"]
    assert str(diff(trace, other)) == "step 0, sampled of B: [1000] against None"
    assert str(diff(other, trace)) == "step 0, sampled of B: None against [1000]"


@pytest.mark.parametrize(
    ("one", "two", "says"),
    [
        (["A", "B"], ["A"], "waiting: ['A', 'B'] against ['A']"),
        ([f"r{i}" for i in range(20)], [f"r{i}" for i in range(13)], "waiting, entry 13: r13 against None"),
        ([f"r{i}" for i in range(20)], [*[f"r{i}" for i in range(14)], "X"], "waiting, entry 14: r14 against X"),
    ],
)
def test_a_short_list_is_shown_whole_and_a_long_one_where_it_differs(trace, other, one, two, says):
    trace.steps[0]["waiting"], other.steps[0]["waiting"] = one, two
    assert str(diff(trace, other)) == f"step 0, {says}"


def test_what_a_record_leaves_out_is_as_good_as_empty(trace, other):
    del other.steps[0]["preempted"], other.steps[1]["hits"]
    assert diff(trace, other) is None
    del other.steps[1]["preempted"]
    assert diff(trace, other).field == "preempted"


def test_zero_and_null_are_not_empty(trace, other):
    del other.steps[1]["free"]  # it was 0
    assert str(diff(trace, other)) == "step 1, free: 0 against None"


def test_a_run_that_ends_sooner_differs_there(trace, other):
    del other.steps[2:]
    found = diff(trace, other)
    assert (found.step, found.field, found.a, found.b) == (2, "step", "there", "missing")
    assert (diff(other, trace).a, compare(trace, other).num_steps) == ("missing", 2)


def test_times_are_not_compared(trace, other):
    for step in other.steps:
        step["t_end"] += 0.25
    assert diff(trace, other) is None


# --- runs of different kinds ---


def test_fields_that_one_run_lacks_are_listed_with_the_run_that_has_them(trace, other):
    for step in other.steps:
        del step["blocked_reason"]
        step["free_queue"] = [1]
    comparison = compare(trace, other)
    assert comparison.difference is None
    assert comparison.not_compared["blocked_reason"] == "only in A"
    assert comparison.not_compared["free_queue"] == "only in B"
    assert not {"blocked_reason", "free_queue"} & set(comparison.compared)


def test_an_engines_tokens_are_compared_by_number(trace, other):
    other.header["kind"] = "engine"
    for step in other.steps:
        step["sampled"] = {req_id: [7] for req_id in step["sampled"]}
    comparison = compare(trace, other)
    assert comparison.difference is None and "number" in comparison.not_compared["sampled"]
    other.steps[1]["sampled"] = {"A": [7, 8]}
    assert str(diff(trace, other)) == "step 1, sampled of A: number of tokens: 1 against number of tokens: 2"


def test_two_engines_tokens_are_compared_themselves(trace, other):
    trace.header["kind"] = other.header["kind"] = "engine"
    other.steps[1]["sampled"] = {"A": [7]}
    assert diff(trace, other).field == "sampled"


# --- headers and ends that differ ---


def test_other_limits_are_a_note_and_no_difference(trace, other):
    other.header["config"]["max_model_len"] = 99
    comparison = compare(trace, other)
    assert (comparison.difference, comparison.notes) == (None, ["max_model_len is 256 in A and 99 in B"])


def test_other_requests_are_a_note(trace, other):
    other.header["requests"]["C"] = other.header["requests"].pop("B")
    other.header["requests"]["A"]["prompt_len"] = 3
    assert compare(trace, other).notes == [
        "request B is only in A", "request C is only in B", "prompt_len of A is 4 in A and 3 in B",
    ]  # fmt: skip


def test_runs_of_nothing_in_common_say_so_once(trace):
    other = simulate([SimRequest(f"X{i}", 4, 2) for i in range(20)])
    assert compare(trace, other).notes[-1] == "the two runs have no request in common: they are not of one workload"


def test_many_notes_are_cut():
    one, other = (simulate([SimRequest(f"R{i}", 2 + k, 1) for i in range(20)]) for k in range(2))
    assert len(compare(one, other).notes) == 9
    assert compare(one, other).notes[-1] == "and 12 more differences in the headers"


def test_a_run_whose_start_was_dropped_is_compared_from_there_on(trace, other):
    del other.steps[0]
    comparison = compare(trace, other)
    assert (comparison.difference, comparison.num_steps) == (None, 2)
    assert comparison.notes == ["steps before 1 are only in A"]


def test_runs_without_a_step_in_common_are_refused(trace, other):
    del trace.steps[1:], other.steps[0]
    with pytest.raises(TraceFormatError, match="no step in common \\(A: steps 0 to 0, B: steps 1 to 2\\)"):
        diff(trace, other)
    with pytest.raises(TraceFormatError, match="B: no steps"):
        diff(trace, Trace(trace.header))


def test_two_empty_runs_do_not_differ(trace):
    assert diff(Trace(trace.header), Trace(trace.header)) is None


# --- real ones ---


class OldestFirst(ClearScheduler):
    """Evicts the head instead of the tail: a wrong decision."""

    def choose_victim(self):
        return self.running[0]


def test_a_wrong_scheduler_is_found_where_it_first_decides_wrongly():
    config = SchedulerConfig(max_num_seqs=3, max_num_batched_tokens=16, num_gpu_blocks=6)
    requests = [SimRequest(f"R{i}", 5, 12) for i in range(3)]
    right = simulate(requests, config)
    found = diff(right, simulate(requests, config, scheduler_cls=OldestFirst))
    assert found.step == next(step["step"] for step in right.steps if step["preempted"])
    assert diff(right, simulate(requests, config, scheduler_cls=ClearScheduler)) is None


@pytest.mark.parametrize("seed", range(30))
def test_one_changed_value_anywhere_is_found_there(seed):
    rng = random.Random(seed)
    trace = random_trace(seed)
    other = copy.deepcopy(trace)
    step = rng.randrange(len(trace.steps))
    name = rng.choice(compare(trace, other, reasons=True).compared)
    value = other.steps[step][name]
    match value:
        case list():
            value.append(["X", 1] if name == "scheduled" else "X")
        case dict():
            value["X"] = [1]
        case int():
            other.steps[step][name] += 1
        case _:
            other.steps[step][name] = "another reason"
    found = diff(trace, other, reasons=True)
    assert (found.step, found.field, found.also) == (step, name, ())
