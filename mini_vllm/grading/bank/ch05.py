"""The exercises of chapter 5: cases, comparers, hints. Knows what is asked, not what is right. Chapter 5."""

import random
import string
from typing import Any

from mini_vllm.grading.checkers import all_of, exact, is_number, kind_of, sequence, shown
from mini_vllm.grading.exercise import NUM_CASES, Case, Exercise
from mini_vllm.grading.my_stage import stages_from
from mini_vllm.grading.step_traces import as_simulate, everybody_served, run_scheduler, same_trace, workload

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
    if not is_number(left) or not is_number(reserved) or stopped_by not in REASONS:
        return f"{pool}: two numbers and one of {', '.join(REASONS)} are asked for, got {shown(got)}"
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
        "running: 3 tokens, so 4,093 are left; (900 + 397 − 1) / 16 = 81 blocks for A, and so on for B and C\n"
        "D: 2,000 tokens; (2000 + 97 − 1) / 16 = 131 blocks. Does it fit both? Then take both away and go on to E\n"
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
        [one, [["B", 6, 2]], roomy | {"token_budget": 7, "draft_slots": 1}],
        *([two, [["C", prompt_len, 1]], drafting] for prompt_len in (7, 8, 9, 10)),
        [one, [["B", 9, 2], ["C", 1, 1]], roomy | {"token_budget": 8}],
        [two, [["C", 4, 4]], roomy | {"max_num_seqs": 2}],
        [[["A", 2, 9]], [["B", 30, 1]], roomy | {"token_budget": 20, "num_blocks": 6}],
    ]
    while len(cases) < NUM_CASES:
        names = string.ascii_uppercase[: rng.randint(2, 7)]
        requests: list[Any] = [[name, rng.randint(1, 24), rng.randint(1, 16)] for name in names]
        running, slots = rng.randint(0, min(3, len(names) - 1)), rng.choice([0, 1, 1, 2])
        carried = rng.randint(running + 1, len(names))  # about so many fit into the step
        tokens = running + sum(prompt_len for _, prompt_len, _ in requests[running:carried])
        block_size = rng.choice([4, 16])
        blocks = sum(-(-(prompt + output - 1) // block_size) for _, prompt, output in requests[:running])
        limits = roomy | {
            "max_num_seqs": running + rng.choice([1, 4, 4, 4]),
            "draft_slots": slots,
            "num_blocks": blocks + rng.choice([2, 6, 30]),
            "block_size": block_size,
        }
        least = limits["max_num_seqs"] * (1 + slots)
        limits["input_budget"] = max(least, tokens + slots * carried + rng.choice([-2, -1, 0, 0, 1]))
        limits["token_budget"] = max(limits["max_num_seqs"], limits["input_budget"] - rng.choice([0, 0, 3, 10]))
        cases.append([requests[:running], requests[running:], limits])
    return cases


def compare_plans(case: Case, got: Any, expected: list) -> str | None:
    if type(got) is not list or len(got) != 2:
        return f"expected two things, plan and reason, got {kind_of(got)}"
    if complaint := sequence("entry")(case, got[0], expected[0]):
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
        "plan = one token for each that runs;  used = their number;  reserved = the sum of their worst cases\n"
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


def draw_line_cases(rng: random.Random) -> list[Case]:
    """[requests, config, most_passed]; requests of a few sizes, a pool that carries each of them alone."""

    def config(seats: int, budget: int, blocks: int) -> dict:
        return dict(max_num_seqs=seats, max_num_batched_tokens=budget, num_gpu_blocks=blocks, block_size=4)

    line = [["A", 8, 5, 0], ["B", 9, 4, 0], ["C", 2, 2, 0], ["D", 3, 2, 0], ["E", 2, 3, 0]]
    cases: list[Case] = [
        [[["A", 4, 3, 0], ["B", 4, 3, 0]], config(4, 20, 10), 0],
        [[["A", 8, 5, 0], ["B", 9, 4, 0], ["C", 2, 2, 0], ["D", 9, 9, 0], ["E", 2, 2, 0]], config(4, 20, 5), 1],
        [line, config(4, 20, 5), 1],
        [line, config(4, 20, 5), 9],
        [line, config(5, 20, 5), 2],
        [[["A", 9, 2, 0], ["B", 8, 2, 0], ["C", 1, 1, 0], ["D", 1, 1, 0]], config(4, 12, 20), 1],
    ]
    while len(cases) < NUM_CASES:
        arrival, requests = 0, []
        for name in string.ascii_uppercase[: rng.randint(4, 9)]:
            prompt, output = rng.choice([(14, 6), (9, 9), (3, 3), (2, 2), (1, 5), (5, 1)])
            requests.append([name, prompt, output, arrival])
            arrival += rng.choice([0, 0, 0, 1, 4])
        limits = config(rng.randint(2, 6), rng.choice([14, 17, 24]), rng.choice([5, 6, 7, 9]))
        cases.append([requests, limits, rng.choice([0, 1, 1, 2, 3])])
    return cases


def run_passing(scheduler_cls: type, requests: list, config: Any, most_passed: int) -> list[dict]:
    """The run of the class with `most_passed` set; 0 is what it must have by itself, so then it is left alone."""
    slots = {"most_passed": most_passed} if most_passed else {}
    return run_scheduler(type(scheduler_cls.__name__, (scheduler_cls,), slots), requests, config)


def show_passing(name: str, arguments: tuple) -> str:
    requests, config, most_passed = arguments
    setting = f"{name}.most_passed = {most_passed}; " if most_passed else ""
    return setting + as_simulate(name, (requests, config))


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
        "    aside = [], head_reason = None\n"
        "    while there is somebody in the line:\n"
        "        if aside is not empty, and aside[0] has been passed most_passed times: break\n"
        "        reason = self.admit(self.waiting.peek())\n"
        "        if there is a reason: head_reason = head_reason or reason; if it is a seat: break\n"
        "            aside.append(self.waiting.pop())\n"
        "        else, if aside is not empty: aside[0] has been passed once more\n"
        "    for each of aside, the last one first: self.waiting.put_back(it)\n"
        "    return head_reason",
    ),
    draw_cases=draw_line_cases,
    compare=all_of(everybody_served, same_trace("scheduled", "waiting", "blocked_reason")),
    prepare=lambda case: (*workload(case[:2]), case[2]),
    call=run_passing,
    show=show_passing,
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
            mine, meant = plan.get(name, "nothing"), right.get(name, "nothing")
            why = f"it was evicted in this step ({' then '.join(gone)})" if name in gone else f"it should get {meant}"
            return f"{name} gets {shown(mine)}; {why}\nplan: expected {shown(right)}, got {shown(plan)}"
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
)

EXERCISES = (STEP, PLAN_STEP, PASSING, PLAN_RUNNING)
