"""Right answers and known mistakes of chapter 1. Never importable in a graded kernel. Chapter 1."""

import statistics

from mini_vllm.batching import ContinuousBatcher, SimRequest, run_batches
from mini_vllm.grading.reference.ch01_variants import (
    advances_once_more,
    all_there_at_once,
    comes_a_step_late,
    gaps_left_out,
    schedule_with,
    stops_at_a_gap,
    stops_in_the_first_idle_step,
)


def _batches(items: list, batch_size: int) -> list[list]:
    return [items[start : start + batch_size] for start in range(0, len(items), batch_size)]


# --- e1 -------------------------------------------------------------------------------------------------------


def static_waste(output_lens: list[int], batch_size: int) -> float:
    paid = sum(batch_size * max(batch) for batch in _batches(output_lens, batch_size))
    return 1 - sum(output_lens) / paid


def mean_of_batch_wastes(output_lens: list[int], batch_size: int) -> float:
    batches = _batches(output_lens, batch_size)
    return statistics.fmean(1 - sum(batch) / (batch_size * max(batch)) for batch in batches)


def empty_slots_forgotten(output_lens: list[int], batch_size: int) -> float:
    paid = sum(len(batch) * max(batch) for batch in _batches(output_lens, batch_size))
    return 1 - sum(output_lens) / paid


def mean_and_empty_slots_forgotten(output_lens: list[int], batch_size: int) -> float:
    return statistics.fmean(1 - sum(batch) / (len(batch) * max(batch)) for batch in _batches(output_lens, batch_size))


def empty_slots_only_paid(output_lens: list[int], batch_size: int) -> float:
    idle = sum(len(batch) * max(batch) for batch in _batches(output_lens, batch_size)) - sum(output_lens)
    return idle * (1 - static_waste(output_lens, batch_size)) / sum(output_lens)


def waste_of_the_useful(output_lens: list[int], batch_size: int) -> float:
    waste = static_waste(output_lens, batch_size)
    return waste / (1 - waste)


def one_longest_for_all(output_lens: list[int], batch_size: int) -> float:
    paid = batch_size * len(_batches(output_lens, batch_size)) * max(output_lens)
    return 1 - sum(output_lens) / paid


# --- e2 -------------------------------------------------------------------------------------------------------


def _by_length(output_lens: list[int], longest_first: bool) -> list[int]:
    return sorted(range(len(output_lens)), key=output_lens.__getitem__, reverse=longest_first)


def bucket(output_lens: list[int], batch_size: int) -> list[list[int]]:
    """Longest first: every batch but the last is full, and the part-filled one is the cheapest.

    The i-th longest batch of any grouping is at least as long as the request at place (i - 1) * batch_size of the
    sorted list, since the i - 1 batches before it hold at most that many requests. This grouping reaches the bound.
    """
    return _batches(_by_length(output_lens, longest_first=True), batch_size)


def shortest_first(output_lens: list[int], batch_size: int) -> list[list[int]]:
    return _batches(_by_length(output_lens, longest_first=False), batch_size)


def arrival_order(output_lens: list[int], batch_size: int) -> list[list[int]]:
    return _batches(list(range(len(output_lens))), batch_size)


def longest_with_the_shortest(output_lens: list[int], batch_size: int) -> list[list[int]]:
    order, batches = _by_length(output_lens, longest_first=False), list[list[int]]()
    while order:
        batches.append([order.pop(), *order[: batch_size - 1]])
        order = order[batch_size - 1 :]
    return batches


def last_batch_dropped(output_lens: list[int], batch_size: int) -> list[list[int]]:
    return [batch for batch in bucket(output_lens, batch_size) if len(batch) == batch_size]


# --- e3 -------------------------------------------------------------------------------------------------------


def continuous_schedule(requests: list[tuple], num_slots: int) -> list[list[str]]:
    """The chapter's own ContinuousBatcher on the step clock; prompts of one token."""
    sim_requests = [SimRequest(name, 1, output_len, arrival) for name, arrival, output_len in requests]
    trace = run_batches(ContinuousBatcher, sim_requests, num_slots).trace
    return [[name for name, _ in record["scheduled"]] for record in trace.steps]


# --- b1 -------------------------------------------------------------------------------------------------------


def deliver(plan, rows, sampled, prompt_left) -> dict[str, int]:
    return {name: token for name, token in zip(rows, sampled, strict=True) if prompt_left[name] == 0}


def deliver_unfinished_prompts_too(plan, rows, sampled, prompt_left) -> dict[str, int]:
    return dict(zip(rows, sampled, strict=True))


def deliver_in_plan_order(plan, rows, sampled, prompt_left) -> dict[str, int]:
    return deliver(plan, plan, sampled, prompt_left)


def deliver_as_given(plan, rows, sampled, prompt_left) -> dict[str, int]:
    return dict(zip(plan, sampled, strict=True))


def deliver_filtered_first(plan, rows, sampled, prompt_left) -> dict[str, int]:
    return dict(zip([name for name in rows if prompt_left[name] == 0], sampled, strict=False))


def deliver_sorted(plan, rows, sampled, prompt_left) -> dict[str, int]:
    return deliver(plan, sorted(rows), sampled, prompt_left)


def deliver_all_sorted(plan, rows, sampled, prompt_left) -> dict[str, int]:
    return dict(zip(sorted(rows), sampled, strict=True))


ANSWERS = {
    "c01-e1": static_waste,
    "c01-e2": bucket,
    "c01-e3": continuous_schedule,
    "c01-b1": deliver,
}

_SORTED = "Sorted ids look right only while they grow with the rows. Once a left row is taken again they do not."

MISTAKES = {
    "c01-e1": [
        (
            "That is the mean of the batches' wastes. A batch that runs 100 steps must count 50 times as much as one "
            "that runs 2: add up slot-steps first, divide once.",
            mean_of_batch_wastes,
        ),
        (
            "That leaves out the empty slots of the last batch. Nobody advances in them either, and they are paid for.",
            empty_slots_forgotten,
        ),
        (
            "That is the mean of the batches' wastes, and the empty slots of the last batch are left out. Add up "
            "slot-steps first, all batch_size slots of every batch, and divide once.",
            mean_and_empty_slots_forgotten,
        ),
        (
            "That lets every batch run as long as the longest request of all. Each batch ends with its own longest.",
            one_longest_for_all,
        ),
        ("That is the useful share. The waste is the rest: 1 minus it.", lambda o, b: 1 - static_waste(o, b)),
        (
            "That divides by the useful slot-steps only. The share is one of all slot-steps that are paid for.",
            waste_of_the_useful,
        ),
        (
            "That takes the whole list as one batch. There are several: each pays batch_size times its own longest.",
            lambda o, b: 1 - sum(o) / (b * max(o)),
        ),
        (
            "That takes the whole list as one batch, with as many slots as there are requests. There are several "
            "batches: each pays batch_size times its own longest.",
            lambda o, b: 1 - sum(o) / (len(o) * max(o)),
        ),
        (
            "All slot-steps are counted, but of those in which nobody advances the empty slots of the last batch are "
            "missing.",
            empty_slots_only_paid,
        ),
    ],
    "c01-e2": [
        (
            "That is shortest first. When the last batch is not full, it then holds the longest requests, and the "
            "room left in it is the room they needed: let the short ones have the part-filled batch.",
            shortest_first,
        ),
        ("That is the order of arrival: a long request makes the short ones beside it wait.", arrival_order),
        ("The last batch is dropped when it is not full. Its requests are still waiting.", last_batch_dropped),
        (
            "The longest has the shortest for company there, and they wait for it: a batch takes as long as its "
            "longest. Put long ones beside long ones.",
            longest_with_the_shortest,
        ),
        (
            "Every request has a batch of its own there: nobody shares a step with anybody. Up to batch_size may.",
            lambda o, b: [[index] for index in range(len(o))],
        ),
    ],
    "c01-e3": [
        (
            "A slot that is free at the end of step k stays empty in step k+1. Fill free slots at the start of a step, "
            "after the leavers of the step before are gone.",
            lambda r, s: schedule_with(r, s, hole_lasts=1),
        ),
        (
            "That is static batching: nobody joins until the whole batch is done. Look for free slots in every step.",
            lambda r, s: schedule_with(r, s, door=True),
        ),
        (
            "It stops when nobody is there, although somebody is still to come. An idle step is an empty list.",
            stops_at_a_gap,
        ),
        (
            "It stops in the first step in which nobody runs, even before the first request has come. An idle step is "
            "an empty list; the end is when nobody is still to come either.",
            stops_in_the_first_idle_step,
        ),
        (
            "Everybody joins a step late, as if only those with arrival_step < k were there in step k. It is "
            "arrival_step <= k.",
            comes_a_step_late,
        ),
        (
            "Everybody advances once more than its output_len, as if the step of joining were for the prompt alone. "
            "That step is the first in which it advances.",
            advances_once_more,
        ),
        ("Steps in which nobody advances are left out. An idle step is an empty list.", gaps_left_out),
        (
            "Every step shows how it was at the end. Write down a copy, list(running): what is kept itself goes on "
            "changing.",
            lambda r, s: [[] for _ in continuous_schedule(r, s)],
        ),
        (
            "Requests join before they have arrived. In step k only those with arrival_step <= k are there.",
            all_there_at_once,
        ),
        (
            "The newest of those waiting joins first. The one that has waited longest has the next slot.",
            lambda r, s: schedule_with(r, s, last_in_first_out=True),
        ),
        (
            "One request joins in each step, however many slots are free. Fill all free slots: a while, not an if.",
            lambda r, s: schedule_with(r, s, one_a_step=True),
        ),
        (
            "All is right but the end: the loop goes round once more when the last request is done. Take out those who "
            "are done at the end of their step, or look for them before the step is written down.",
            lambda r, s: [*continuous_schedule(r, s), []],
        ),
        (
            "Within a step the ids are sorted by name. They stand in the order in which they joined.",
            lambda r, s: schedule_with(r, s, by_id=True),
        ),
    ],
    "c01-b1": [
        ("That is the function as given.", deliver_as_given),
        (
            "The rows are right now. But a row whose prompt is not through is sampled too, and the token is noise.",
            deliver_unfinished_prompts_too,
        ),
        (
            "Unfinished prompts get nothing now, as it should be. But tokens are still handed out in the plan's order, "
            "and they were computed in the order of the rows.",
            deliver_in_plan_order,
        ),
        (
            "Unfinished prompts are taken out before rows and tokens are joined: every token after them moves up. Join "
            "first, leave out afterwards.",
            deliver_filtered_first,
        ),
        (_SORTED, deliver_sorted),
        (_SORTED + " And a row whose prompt is not through is sampled too.", deliver_all_sorted),
    ],
}
