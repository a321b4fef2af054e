"""The exercises of chapter 5: cases, comparers, hints. Knows what is asked, not what is right. Chapter 5."""

import random
import string
from typing import Any

from mini_vllm.grading.checkers import all_of, exact, is_number, kind_of, sequence, shown
from mini_vllm.grading.exercise import NUM_CASES, Case, Exercise
from mini_vllm.grading.my_stage import stages_from
from mini_vllm.grading.passing_runs import draw_line_cases, run_passing, show_passing
from mini_vllm.grading.step_traces import everybody_served, same_trace, workload

HIDDEN = [*stages_from("ch05"), "mini_vllm.sim.systems", "mini_vllm.engine", "mini_vllm.os_sched"]


# --- e1: step -------------------------------------------------------------------------------------------------

BOARD: dict[str, list] = {
    "running": [["A", 900, 397], ["B", 2300, 197], ["C", 120, 985]],  # id, prompt tokens, max_tokens
    "waiting": [["D", 2000, 97], ["E", 1500, 60], ["F", 595, 300], ["G", 16, 8]],
}
POOLS = {"wide": 700, "tight": 437}
TOKEN_BUDGET, SEATS, BLOCK_SIZE = 4096, 8, 16
PARTS = ("enter", "tokens_left", "blocks_reserved", "stopped_by")
REASONS = ("token_budget", "kv_reservation", "max_num_seqs")


def compare_step(case: Case, got: Any, expected: dict[str, dict]) -> str | None:
    """Says which entries are wrong, never which are right: there is one case only, and it is the answer."""
    if type(got) is not dict or got.keys() != set(POOLS):
        return f"expected a dict with 'wide' and 'tight', got {kind_of(got)}"
    complaints = [_about(pool, got[pool], expected[pool]) for pool in POOLS]
    return "\n".join(filter(None, complaints)) or None


def _about(pool: str, got: Any, expected: dict) -> str | None:
    if type(got) is not dict or got.keys() != set(PARTS):
        return f"{pool}: expected a dict with {', '.join(map(repr, PARTS))}, got {kind_of(got)}"
    prompts = {name: prompt_len for name, prompt_len, _ in BOARD["waiting"]}
    enter, left, reserved, stopped_by = (got[part] for part in PARTS)
    if type(enter) is not list or not all(type(name) is str and name in prompts for name in enter):
        return f"{pool}: enter is a list of some of D, E, F, G, got {kind_of(enter)}"
    if stopped_by not in REASONS:
        return f"{pool}: stopped_by is one of {', '.join(REASONS)}, got {shown(stopped_by)}"
    if not is_number(left) or not is_number(reserved):
        return f"{pool}: tokens_left and blocks_reserved are numbers, got {shown(left)} and {shown(reserved)}"
    wrong = [part for part in PARTS if got[part] != expected[part]]
    spent = sum(prompts[name] for name in enter) + len(BOARD["running"])
    if wrong and left != TOKEN_BUDGET - spent:
        who = " + ".join([*enter, "those who run"])
        return f"{pool}: {who} take {spent:,} of {TOKEN_BUDGET:,} tokens; that does not leave {shown(left)}"
    return f"{pool}: {' and '.join(wrong)} {'is' if len(wrong) == 1 else 'are'} not right" if wrong else None


STEP = Exercise(
    exercise_id="c05-e1",
    title="One step under two budgets, by hand",
    kind="analyse",
    function="step",
    stars=1,
    points=10,
    minutes=12,
    needs="the section “Build: the head of the line, gate by gate”",
    hints=(
        "Make two columns, tokens left and blocks reserved. First put in those who run: each takes one token of this "
        "step, and its whole worst case of the pool.",
        "A worst case is prompt + max_tokens − 1 tokens, in blocks rounded up. Then take the line from its head: the "
        "prompt against the tokens left, the worst case against the blocks left. The first that fails ends the step.",
        "running: 3 tokens, so 4,093 are left; (900 + 397 − 1) / 16 = 81 blocks for A\n"
        "    and so on for B and C\n"
        "D: 2,000 tokens; (2000 + 97 − 1) / 16 = 131 blocks. Does it fit both?\n"
        "    Then take both away and go on to E\n"
        "whoever fails: write down at which budget, and look at nobody behind",
    ),
    compare=compare_step,
)


# --- e2: plan_step(running, waiting, limits) ------------------------------------------------------------------


def draw_step_cases(rng: random.Random) -> list[Case]:
    """Limits that carry those who run; in the first cases one limit at a time binds."""
    roomy = dict(max_num_seqs=4, token_budget=99, input_budget=99, draft_slots=0, num_blocks=99, block_size=4)
    one, two = [["A", 5, 3]], [["A", 5, 3], ["B", 2, 2]]
    drafting = roomy | {"input_budget": 12, "token_budget": 12, "draft_slots": 1}
    cases: list[Case] = [
        [[], one, roomy],
        [one, [["B", 7, 2]], roomy | {"token_budget": 7}],
        [[["A", 6, 3]], [["B", 4, 1]], roomy | {"num_blocks": 3}],
        [[["A", 6, 3]], [["B", 4, 1]], roomy | {"num_blocks": 2}],
        [one, [["B", 5, 1]], roomy | {"num_blocks": 3}],
        [one, [["B", 7, 1]], roomy | {"num_blocks": 3}],
        [one, [["B", 6, 2]], roomy | {"token_budget": 7, "draft_slots": 1}],
        *([two, [["C", prompt_len, 1]], drafting] for prompt_len in (7, 8, 9, 10)),
        [one, [["B", 9, 2], ["C", 1, 1]], roomy | {"token_budget": 8}],
        [two, [["C", 4, 4]], roomy | {"max_num_seqs": 2}],
        [one, [["B", 4, 4]], roomy | {"max_num_seqs": 2}],
        [one, [["B", 2, 2], ["C", 2, 2]], roomy | {"num_blocks": 4}],
        [one, [["B", 4, 4]], roomy | {"num_blocks": 3}],
        [[["A", 5, 2]], [["B", 6, 1]], roomy | {"num_blocks": 3}],
        [[["A", 4, 4]], [["B", 4, 1]], roomy | {"num_blocks": 2}],
        [[], [["A", 4, 1], ["B", 7, 1]], drafting],
        *([one, [["B", 4, 1], ["C", prompt_len, 1]], drafting] for prompt_len in (5, 6)),
        [[["A", 2, 9]], [["B", 30, 1]], roomy | {"token_budget": 20, "num_blocks": 6}],
    ]
    while len(cases) < NUM_CASES:
        names = string.ascii_uppercase[: rng.randint(2, 7)]
        requests: list[Any] = [[name, rng.randint(1, 24), rng.randint(1, 16)] for name in names]
        running = rng.randint(0, min(3, len(names) - 1))
        carried = rng.randint(running + 1, len(names))  # so many just fit into the step, or just not
        slots, block_size = rng.choice([0, 1, 2]), rng.choice([4, 16])
        tokens = running + sum(prompt_len for _, prompt_len, _ in requests[running:carried])
        blocks = [-(-(prompt_len + output - 1) // block_size) for _, prompt_len, output in requests]
        needs = {"token_budget": tokens, "input_budget": tokens + slots * carried, "num_blocks": sum(blocks[:carried])}
        tight = rng.sample([*needs, "num_blocks", "max_num_seqs"], rng.choice([1, 1, 2, 3]))
        limits = {name: need + (rng.choice([-1, -1, 0, 0, 1]) if name in tight else 99) for name, need in needs.items()}
        limits |= {"max_num_seqs": carried + 2 * ("max_num_seqs" not in tight), "draft_slots": slots}
        limits |= {"block_size": block_size, "num_blocks": max(1, limits["num_blocks"], sum(blocks[:running]))}
        limits["input_budget"] = max(limits["max_num_seqs"] * (1 + slots), limits["input_budget"])
        limits["token_budget"] = min(limits["input_budget"], max(limits["max_num_seqs"], limits["token_budget"]))
        cases.append([requests[:running], requests[running:], limits])
    return cases


def compare_plans(case: Case, got: Any, expected: list) -> str | None:
    if type(got) is not list or len(got) != 2:
        return f"expected two things, plan and reason, got {kind_of(got)}"
    if complaint := sequence("place")(case, got[0], expected[0]):
        return f"plan: {complaint}"
    complaint = exact(case, got[1], expected[1])
    return f"the plan is right; reason: {complaint}" if complaint else None


PLAN_STEP = Exercise(
    exercise_id="c05-e2",
    title="One step, three limits",
    kind="code",
    function="plan_step",
    stars=2,
    points=15,
    minutes=15,
    needs="c05-e1, the section “A third limit, often taken for the first”",
    hints=(
        "Keep three numbers while you go: tokens planned, requests planned, blocks reserved. Those who run come first "
        "and are never refused.",
        "For each that waits, in order: seats, tokens, blocks. Its prompt must be at most what is left of the token "
        "budget, and of the input budget when each request of the plan, and this one, has its draft slots.",
        "plan = one token for each that runs;  used = their number\n"
        "reserved = the sum of their worst cases\n"
        "for each that waits:\n"
        '    len(plan) at max_num_seqs: return plan, "max_num_seqs"\n'
        "    room = the smaller of  token_budget - used\n"
        "                      and  input_budget - used - draft_slots * (len(plan) + 1)\n"
        '    its prompt over room: return plan, "token_budget"\n'
        '    reserved + its worst case over num_blocks: return plan, "kv_reservation"\n'
        "    put it into the plan, count its tokens and its blocks\n"
        "return plan, None",
    ),
    draw_cases=draw_step_cases,
    compare=compare_plans,
    prepare=lambda case: (*(list(map(tuple, line)) for line in case[:2]), case[2]),
)


# --- e3: Scheduler --------------------------------------------------------------------------------------------


PASSING = Exercise(
    exercise_id="c05-e3",
    title="Your scheduler: let the small ones pass, but not for ever",
    kind="extend",
    function="MyScheduler",
    stage="ch05",
    stars=3,
    points=20,
    minutes=35,
    needs="c04-e3, the section “Build: the head of the line, gate by gate”",
    hints=(
        "First the two budgets, with most_passed left aside: the methods of the page. Then schedule_waiting: whoever "
        "must wait leaves the line for a moment, as in c04-e3, so that the next one is asked.",
        "The first that must wait is the head: keep its reason. Everybody who enters from then on has passed it: count "
        "that by request id. Ask no more when the count has reached most_passed, or when a seat is missing. Then "
        "everybody who was taken out goes back in front, the last one first.",
        "schedule_waiting:\n"
        "    aside is empty, and there is no reason yet\n"
        "    while there is somebody in the line:\n"
        "        stop if aside[0], where there is one, has been passed most_passed times\n"
        "        ask admit for the first in the line\n"
        "        it must wait: keep the reason, if it is the first one of the step\n"
        "            a missing seat: stop;  else take it out of the line, to the end of aside\n"
        "        it is in, and aside is not empty: aside[0] has been passed once more\n"
        "    each of aside, the last one first, goes back with put_back\n"
        "    return the reason that was kept",
    ),
    draw_cases=draw_line_cases,
    compare=all_of(everybody_served, same_trace("scheduled", "waiting", "blocked_reason")),
    prepare=lambda case: (*workload(case[:2]), case[2]),
    call=run_passing,
    show=show_passing,
    raised=(
        (
            "KVPoolExhaustedError",
            "Your admit let somebody in who had no room for its worst case beside the worst cases of all who run. What "
            "is free now is not enough: those who run will still take of it. Add up reservations, not blocks in use.",
        ),
    ),
)


# --- b1: plan_running(running, budget, free, block_size) ------------------------------------------------------


def _request(name: str, priority: int, computed: int, known: int) -> dict:
    return dict(id=name, priority=priority, computed=computed, known=known, blocks=-(-computed // 4))


INCIDENT = [_request("A", 9, 8, 16), _request("B", 0, 4, 5), _request("C", 0, 6, 7), _request("D", 1, 2, 14)]


def draw_eviction_cases(rng: random.Random) -> list[Case]:
    """A pool that is nearly full; some requests have nothing to compute, some are in mid-prompt."""
    cases: list[Case] = [
        [[_request("A", 0, 5, 6)], 8, 2, 4],
        [[_request("A", 0, 4, 5), _request("B", 1, 4, 5)], 8, 1, 4],
        [[_request("A", 9, 5, 5), _request("B", 0, 4, 5), _request("C", 0, 5, 6)], 8, 0, 4],
        [[_request("A", 9, 5, 6), _request("B", 0, 4, 5), _request("C", 0, 5, 6)], 8, 0, 4],
        [[_request("A", 0, 5, 6), _request("B", 9, 4, 5), _request("C", 0, 5, 6)], 8, 0, 4],
        [[_request("A", 9, 5, 11), _request("B", 0, 4, 10)], 8, 1, 4],
        [INCIDENT, 12, 2, 4],
    ]
    while len(cases) < NUM_CASES:
        running = []
        for name in string.ascii_uppercase[: rng.randint(2, 6)]:
            computed = rng.choice([4, 8, 12, 3, rng.randint(1, 12)])
            running.append(_request(name, rng.randint(0, 4), computed, computed + rng.choice([0, 1, 1, 1, 1, 6])))
        cases.append([running, rng.randint(len(running), 16), rng.choice([0, 0, 0, 1]), 4])
    return cases


def compare_evictions(case: Case, got: Any, expected: list) -> str | None:
    if type(got) is not list or len(got) != 3 or type(got[0]) is not dict:
        return f"expected three things, plan, budget and evicted, got {kind_of(got)}"
    (plan, budget, evicted), (right, left, gone) = got, expected
    if complaint := exact(case, evicted, gone):
        return f"evicted: {complaint}"
    for name in (request["id"] for request in case[0]):
        if plan.get(name) != right.get(name):
            mine, meant = (shown(of[name]) if name in of else "nothing" for of in (plan, right))
            why = f"it was evicted in this step ({' then '.join(gone)})" if name in gone else f"it should get {meant}"
            return f"{name} gets {mine}; {why}\nplan: expected {shown(right)}, got {shown(plan)}"
    if complaint := exact(case, plan, right):
        return f"plan: {complaint}"
    complaint = exact(case, budget, left)
    return f"the plan is right; budget left: {complaint}" if complaint else None


PLAN_RUNNING = Exercise(
    exercise_id="c05-b1",
    title="Bug hunt: the step is full, and most of it is for nobody",
    kind="bug hunt",
    function="plan_running",
    stars=2,
    points=15,
    minutes=15,
    needs="the section “The idea: two budgets”",
    hints=(
        "Go through the function with the log's four requests and a pencil: plan, budget, free, index, after every "
        "line. Which of the four still know that A was planned when A is gone?",
        "Two kinds of trace are left: what A was given, an entry and tokens of the budget; and where A stood: all who "
        "come behind it have moved up by one, the index has not. The second also happens if A was in no plan.",
        "with the victim at place `at` of running, before it is removed:\n"
        "    it is taken out of running, its blocks are free (as given)\n"
        "    if it is in the plan: its tokens go back to the budget, its entry goes\n"
        "    if at < index: index is one less",
    ),
    draw_cases=draw_eviction_cases,
    compare=compare_evictions,
    raised=(("IndexError", "The index moves too far: by one, for a victim that stood before it, and for no other."),),
)

EXERCISES = (STEP, PLAN_STEP, PASSING, PLAN_RUNNING)
