"""The exercises of chapter 4: cases, comparers, hints. Knows what is asked, not what is right. Chapter 4."""

import random
import string
from typing import Any

from mini_vllm.grading.checkers import exact, is_number, kind_of, shown
from mini_vllm.grading.event_runs import EVENTS, as_a_run, draw_held_cases, logged_run, run_with_grammars
from mini_vllm.grading.exercise import NUM_CASES, Case, Exercise
from mini_vllm.grading.my_stage import stages_from
from mini_vllm.grading.step_traces import same_trace

# Whatever could answer an exercise by itself. The stage of this chapter stays: exercise 3 extends it.
HIDDEN = ["mini_vllm.viz.state_diagram", "mini_vllm.viz.timeline", "mini_vllm.batching", *stages_from("ch05")]


# --- e1: plans ------------------------------------------------------------------------------------------------

BOARD = {"A": (3, 6), "B": (2, 7), "C": (6, 3), "D": (4, 2)}  # name -> (prompt tokens, output tokens)
BUDGET, NUM_BLOCKS, BLOCK_SIZE, NUM_STEPS = 6, 5, 4, 9


def compare_plans(case: Case, got, expected: list[dict[str, int]]) -> str | None:
    """Says which step goes wrong first, never what is right: there is one case only, and it is the answer."""
    if type(got) is not list or any(type(plan) is not dict for plan in got):
        return f"expected a list of dicts, one a step, got {kind_of(got)}"
    if len(got) != len(expected):
        return f"the run has {len(expected)} steps, got {len(got)}"
    for step, plan in enumerate(got):
        for name, tokens in plan.items():
            if name not in BOARD:
                return f"step {step}: there is no request {shown(name)}; there are {', '.join(BOARD)}"
            if not is_number(tokens) or tokens != int(tokens) or tokens < 1:
                return f"step {step}: {name} gets {shown(tokens)}; whoever is in a plan gets a whole number from 1 on"
        if (total := sum(plan.values())) > BUDGET:
            return f"step {step}: {total:g} tokens are more than the budget of {BUDGET}"
    wrong = [step for step, plan in enumerate(got) if plan != expected[step]]
    if not wrong:
        return None
    before = f"; steps 0 to {wrong[0] - 1} are" if wrong[0] > 1 else "; step 0 is" if wrong[0] else ""
    return f"step {wrong[0]} is not right{before}"


PLANS = Exercise(
    exercise_id="c04-e1",
    title="Nine steps by hand",
    kind="analyse",
    function="plans",
    stars=1,
    points=10,
    minutes=15,
    needs="the section “Ten steps by hand”",
    hints=(
        "Keep a line for each request with three numbers: known tokens, computed tokens, blocks. After every step "
        "write down the blocks that are free.",
        "Whoever runs goes first, and takes a new block when its computed tokens pass a multiple of 4. If none is "
        "free, the last of the running gives way, and nobody enters in that step. Who comes back has more known "
        "tokens than its prompt.",
        "step 0: A 3, B 2, C 1 of 6; blocks A 1, B 1, C 1\n"
        "step 1: A 1 and B 1; the rest of the budget is C's; C now has computed 5, so 2 blocks\n"
        "step 2: all blocks are taken; who is the head of the line, and why does it stay out?\n"
        "step 3: B computes its fifth token: a second block; who stands last in running?",
    ),
    compare=compare_plans,
)


# --- e2: lives(records) ---------------------------------------------------------------------------------------


def record(step: int, **events: list[str]) -> dict[str, Any]:
    return {"step": step, **{name: list(events.get(name, [])) for name in EVENTS}}


def draw_life_cases(rng: random.Random) -> list[Case]:
    """Logs of real runs: seats, budget and blocks are scarce, and now and then a user hangs up."""
    cases: list[Case] = [
        [[record(0, arrivals=["A"], scheduled=["A"], finished=["A"])]],
        [[record(0, arrivals=["A", "B"], scheduled=["A"]), record(1, scheduled=["A", "B"], finished=["A", "B"])]],
        [[record(0, arrivals=["A"], scheduled=["A"]), record(1), record(2, scheduled=["A"], finished=["A"])]],
        [[record(0, arrivals=["A"], scheduled=["A"]), record(1, preempted=["A"]), record(2, scheduled=["A"])]],
        [[record(0, arrivals=["A", "B"], scheduled=["A"]), record(1, aborted=["B"], scheduled=["A"])]],
        [[record(3, arrivals=["A"], aborted=["A"]), record(4, arrivals=["B"], scheduled=["B"])]],
    ]
    while len(cases) < NUM_CASES:
        cases.append([logged_run(rng)])
    return cases


def compare_lives(case: Case, got, expected: dict[str, list]) -> str | None:
    if type(got) is not dict:
        return f"expected a dict, request id -> list of [step, state], got {kind_of(got)}"
    for name, life in expected.items():
        if name not in got:
            return f"the life of {name} is missing"
        if complaint := exact(case, got[name], life):
            return f"the life of {name}: {complaint}"
    extra = [name for name in got if name not in expected]
    return f"{shown(extra[0])} is in no record" if extra else None


def as_a_log(name: str, arguments: tuple) -> str:
    """The call; of each record only what happened in it."""
    steps = ["{" + ", ".join(f"{key!r}: {value!r}" for key, value in r.items() if value != []) + "}"
             for r in arguments[0]]  # fmt: skip
    return f"{name}([{', '.join(steps)}]), with an empty list for every other key"


LIVES = Exercise(
    exercise_id="c04-e2",
    title="Lives out of a log",
    kind="code",
    function="lives",
    stars=2,
    points=15,
    minutes=15,
    needs="the section “Four states, and what each owns”",
    hints=(
        "A log tells events, not states. Which event changes a state, and which only says that somebody is still "
        "where they were?",
        "Keep the state of every request. Go through the records; in each, through the events in the order arrivals, "
        "aborted, preempted, scheduled, finished. Write something down only when the new state is another one.",
        'becomes = {"arrivals": "waiting", "aborted": "finished", "preempted": "preempted",\n'
        '           "scheduled": "running", "finished": "finished"}\n'
        "for each record, for each event in that order, for each id in record[event]:\n"
        "    if the latest state of the id is not becomes[event]:\n"
        "        append [step, becomes[event]] to its life",
    ),
    draw_cases=draw_life_cases,
    compare=compare_lives,
    show=as_a_log,
)


# --- e3: class MyScheduler ------------------------------------------------------------------------------------


MY_SCHEDULER = Exercise(
    exercise_id="c04-e3",
    title="Your scheduler: pass over whoever is not ready",
    kind="extend",
    function="MyScheduler",
    stars=3,
    points=20,
    minutes=25,
    needs="the section “Build: admit and retire”",
    hints=(
        "Only `schedule_waiting` has to change. It may look at the head of the line alone, so who is held must leave "
        "the line for a moment to let the next one become its head. When must it be back, and where?",
        "Take whoever is held out with `self.waiting.pop()` and remember it in a list; ask `self.admit` for everybody "
        "else. When the loop is over, put those you remembered back in front with `self.waiting.put_back(request)`. "
        "It puts one in front of all: which of several must be put back first?",
        "passed_over = [], reason = None\n"
        "while the line is not empty and reason is None:\n"
        "    head = self.waiting.peek()\n"
        "    is the id of head in self.held? take it out with pop, remember it in passed_over\n"
        "    else: reason = self.admit(head)\n"
        "for each of passed_over, the last one first: self.waiting.put_back(it)\n"
        "return reason",
    ),
    draw_cases=draw_held_cases,
    compare=same_trace("scheduled", "finished"),
    call=run_with_grammars,
    stage="ch04",
    raised=(
        (
            "SchedulerStalledError",
            "Does everybody whom you take out of the line stand in it again when the method returns, whichever way it "
            "returns? Who is in no list is never served.",
        ),
        (
            "IllegalTransitionError",
            "self.admit seats the *head* of the line, whomever it is given: take out who is held, then give it the "
            "head.",
        ),
    ),
    essence=lambda case, value: [(record["scheduled"], record["finished"]) for record in value],
    show=as_a_run,
)


# --- b1: abort(gone, waiting, running, blocks, num_free) ------------------------------------------------------


def draw_abort_cases(rng: random.Random) -> list[Case]:
    """Users hang up in every state: waiting, evicted and waiting again, running, done long ago; some twice."""
    cases: list[Case] = [
        [["A"], [], ["A"], {"A": 2}, 4],
        [["A"], [], ["A"], {"A": 4}, 0],
        [["A"], [], ["A"], {"A": 3}, 0],
        [["A"], ["A"], [], {}, 6],
        [[], ["B"], ["A"], {"A": 2}, 4],
        [["Z"], ["B"], ["A"], {"A": 2}, 4],
        [["A", "A"], ["B"], ["A"], {"A": 2}, 4],
        [["B", "A"], ["B", "C"], ["A"], {"A": 3}, 3],
    ]
    while len(cases) < NUM_CASES:
        names = rng.sample(string.ascii_uppercase, rng.randint(2, 9))
        cut = rng.randint(0, len(names))
        running, waiting = names[:cut], names[cut:]
        gone = rng.sample([*names, "old", "older"], rng.randint(1, len(names)))
        gone += rng.sample(gone, rng.choice([0, 0, 1]))
        cases.append([gone, waiting, running, {name: rng.randint(1, 5) for name in running}, rng.randint(0, 9)])
    return cases


def compare_aborts(case: Case, got, expected: list) -> str | None:
    names = ("waiting", "running", "blocks", "num_free")
    if type(got) is not list or len(got) != len(names):
        return f"expected {', '.join(names)}, in this order, got {kind_of(got)}"
    for name, mine, right in zip(names, got, expected, strict=True):
        if complaint := exact(case, mine, right):
            return f"{name}: {complaint}"
    return None


ABORT = Exercise(
    exercise_id="c04-b1",
    title="Bug hunt: nobody runs, and nobody gets in",
    kind="bug hunt",
    function="abort",
    stars=2,
    points=15,
    minutes=20,
    needs="the section “Four states, and what each owns”",
    hints=(
        "Add up the blocks of one column of the dashboard: those that somebody holds, and those that are free. Then do "
        "the same in the first column.",
        "Two things are wrong. One: what does a request own while it runs, and what of it comes back when its user "
        "hangs up? Two: where do people hang up most? Do by hand what the function does with somebody who has no seat.",
        "for each name in gone:\n"
        "    if it is in running, take it out; if it is in waiting, take it out there\n"
        "    take it out of blocks, if it is there, and add that many to num_free\n"
        "whoever is in neither has left already: nothing to do",
    ),
    draw_cases=draw_abort_cases,
    compare=compare_aborts,
    raised=(
        ("KeyError", "Who waits owns no blocks and has no entry in the table, nor has one that has left already."),
        (
            "ValueError: list.remove",
            "Whoever is not in the one list need not be in the other: ids may stand in gone that have left already, or "
            "stand there twice. Look before you take it out.",
        ),
    ),
)

EXERCISES = (PLANS, LIVES, MY_SCHEDULER, ABORT)
