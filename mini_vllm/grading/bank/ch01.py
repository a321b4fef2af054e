"""The exercises of chapter 1: cases, comparers, hints. Knows what is asked, not what is right. Chapter 1."""

import random
import string

from mini_vllm.grading.checkers import all_of, exact, is_number, kind_of, sequence, shown
from mini_vllm.grading.exercise import NUM_CASES, Case, Exercise
from mini_vllm.grading.my_stage import stages_from
from mini_vllm.grading.properties import each_once, least
from mini_vllm.grading.quantities import numeric

# Whatever could answer an exercise by itself: the chapter's batchers, and everything that holds a scheduler.
HIDDEN = ["mini_vllm.batching", "mini_vllm.core", "mini_vllm.sim", "mini_vllm.engine", *stages_from("ch04")]


# --- e1: static_waste(output_lens, batch_size) ----------------------------------------------------------------


def draw_lengths(tiny: list[Case], rng: random.Random) -> list[Case]:
    """Lists of output lengths with a batch size; the last batch is often not full."""
    cases = [*tiny]
    while len(cases) < NUM_CASES:
        cases.append([[rng.randint(1, 40) for _ in range(rng.randint(2, 24))], rng.randint(1, 8)])
    return cases


def draw_waste_cases(rng: random.Random) -> list[Case]:
    return draw_lengths([[[3], 1], [[4, 1], 2], [[5], 4], [[2, 2, 2], 2], [[4, 1, 1, 1], 2]], rng)


STATIC_WASTE = Exercise(
    exercise_id="c01-e1",
    title="The waste of a static batch",
    kind="code",
    function="static_waste",
    stars=1,
    points=10,
    minutes=10,
    needs="the section “How much is wasted?”",
    hints=(
        "Count, then divide once at the end: the slot-steps that the run pays for, and those in which a request "
        "advances.",
        "A batch costs batch_size × its longest request, whether its slots are taken or not. The useful part is "
        "the sum of all output lengths. The answer is 1 - useful / paid.",
        "paid starts at 0\n"
        "for each batch, which is the next batch_size entries of output_lens:\n"
        "    paid grows by batch_size times the longest entry\n"
        "the answer is 1 minus (all entries added up, divided by paid)",
    ),
    draw_cases=draw_waste_cases,
    compare=numeric("share"),
    essence=lambda case, value: round(value, 9),
)


# --- e2: bucket(output_lens, batch_size) ----------------------------------------------------------------------


def draw_bucket_cases(rng: random.Random) -> list[Case]:
    return draw_lengths([[[5], 2], [[3, 1], 2], [[1, 5, 2], 2], [[4, 1, 4, 1], 2], [[2, 2, 2], 4]], rng)


def num_steps(case: Case, batches: list[list[int]]) -> int:
    """Steps that a grouping takes: each batch runs as long as its longest request."""
    return sum(max(case[0][i] for i in batch) for batch in batches)


def batches_are_lists_of_indices(case: Case, got, expected) -> str | None:
    if type(got) is not list or any(type(batch) is not list for batch in got):
        return f"expected a list of batches, each a list of indices, got {kind_of(got)}"
    for batch in got:
        for index in batch:
            if index is None:
                return f"got {shown(batch)}: None is no request. A batch may hold fewer than {case[1]}: leave it out"
            if type(index) is not int or not 0 <= index < len(case[0]):
                known = f"indices go from 0 to {len(case[0]) - 1}" if case[0][1:] else "the only index is 0"
                length = "; it is a length" if index in case[0] else ""
                return f"{kind_of(index)} stands for no request, {known}{length}"
    return None


def indices_in(batches: list[list[int]]) -> list[int]:
    return [index for batch in batches for index in batch]


def all_indices(case: Case) -> range:
    return range(len(case[0]))


def each_request_once(case: Case, got, expected) -> str | None:
    complaint = each_once(indices_in, all_indices, "request", "batch")(case, got, expected)
    if complaint and sorted(case[0][index] for index in indices_in(got)) == sorted(case[0]):
        complaint += "; the lengths are right: list.index finds the first of equal ones, again and again"
    return complaint


def batches_fit(case: Case, got, expected) -> str | None:
    for number, batch in enumerate(got):
        if not 1 <= len(batch) <= case[1]:
            return f"batch {number} holds {len(batch)} requests, 1 to {case[1]} are allowed: got {shown(got)}"
    return None


BUCKET = Exercise(
    exercise_id="c01-e2",
    title="Bucketing by length",
    kind="code",
    function="bucket",
    stars=2,
    points=15,
    minutes=15,
    needs="c01-e1",
    hints=(
        "Whoever shares a batch with the longest request costs nothing extra. Whom do you give it as company?",
        "Sort the indices by length, then cut the sorted list into batches. The last batch is often not full. "
        "Which end of the list should it be at, the long or the short one?",
        "order = indices sorted by output_lens, longest first\n"
        "return [order[start : start + batch_size] for start in 0, batch_size, 2 * batch_size, …]",
    ),
    draw_cases=draw_bucket_cases,
    compare=all_of(
        batches_are_lists_of_indices,
        each_request_once,
        batches_fit,
        least(num_steps, "steps"),
    ),
    essence=lambda case, value: (sum(len(batch) for batch in value), num_steps(case, value)),
)


# --- e3: continuous_schedule(requests, num_slots) -------------------------------------------------------------


def draw_schedule_cases(rng: random.Random) -> list[Case]:
    """Requests in order of arrival, sometimes with gaps in which nobody is there; ids are in no order."""
    cases: list[Case] = [
        [[["A", 0, 2]], 1],
        [[["A", 0, 1], ["B", 0, 1]], 1],
        [[["A", 0, 3], ["B", 0, 1], ["C", 0, 2]], 2],
        [[["A", 0, 1], ["B", 3, 1]], 1],
        [[["B", 2, 1], ["A", 2, 2]], 2],
        [[["A", 0, 2], ["C", 1, 2], ["B", 1, 1]], 2],
    ]
    while len(cases) < NUM_CASES:
        names = rng.sample(string.ascii_uppercase, rng.randint(2, 10))
        step, requests = rng.choice([0, 0, 1]), []
        for name in names:
            requests.append([name, step, rng.randint(1, 7)])
            step += rng.choice([0, 0, 0, 1, 2, 9])
        cases.append([requests, rng.randint(1, 4)])
    return cases


CONTINUOUS_SCHEDULE = Exercise(
    exercise_id="c01-e3",
    title="Continuous batching from scratch",
    kind="code",
    function="continuous_schedule",
    stars=3,
    points=20,
    minutes=25,
    needs="the section “Build: the door”",
    hints=(
        "A loop over steps. In each: who has arrived, who may join, who advances, who is done? The order of these "
        "four questions is the whole exercise.",
        "Keep a waiting line and the list of those running, each with its tokens still to come. A step fills free "
        "slots first, writes down who runs, and only then takes out those that are done, so that their slots are "
        "free in the next step. The loop ends when nobody runs, nobody waits and nobody is still to come.",
        "step = 0\n"
        "while somebody is still to come, waiting or running:\n"
        "    move those whose arrival_step == step to the end of waiting\n"
        "    while somebody waits and a slot is free:\n"
        "        the first of waiting joins running\n"
        "    write down the ids in running (maybe none)\n"
        "    each running request has one token less to come; take out those with 0\n"
        "    step += 1",
    ),
    draw_cases=draw_schedule_cases,
    compare=sequence("step"),
    prepare=lambda case: ([tuple(request) for request in case[0]], case[1]),
)


# --- b1: deliver(plan, rows, sampled, prompt_left) ------------------------------------------------------------


def draw_deliver_cases(rng: random.Random) -> list[Case]:
    """Steps of a worker: sometimes in the plan's order, sometimes with prompts still under way."""
    cases: list[Case] = [
        [["A"], ["A"], [7], {"A": 0}],
        [["A"], ["A"], [7], {"A": 5}],
        [["A"], ["A"], [7], {"A": 1}],
        [["A", "B"], ["B", "A"], [7, 8], {"A": 0, "B": 0}],
        [["A", "B"], ["A", "B"], [7, 8], {"A": 0, "B": 5}],
        [["B", "C"], ["C", "B"], [7, 8], {"B": 0, "C": 5}],
    ]
    while len(cases) < NUM_CASES:
        rows = rng.sample(string.ascii_uppercase, rng.randint(1, 6))
        plan = rng.sample(rows, len(rows))
        sampled = rng.sample(range(100, 1000), len(rows))
        cases.append([plan, rows, sampled, {name: rng.choice([0, 0, 0, 16, 480]) for name in rows}])
    return cases


def compare_deliveries(case: Case, got, expected: dict[str, int]) -> str | None:
    _, rows, sampled, prompt_left = case
    if type(got) is not dict:
        return f"expected a dict of request id and token, got {kind_of(got)}"
    for name in rows:
        if name not in got and name in expected:
            return f"{name} gets nothing, but token {expected[name]} was computed in its row"
        if name in got and name not in expected and got[name] is None:
            return f"{name} has no token yet and gets None: leave out whoever has none"
        if name in got and name not in expected:
            return (
                f"{name} gets token {got[name]!r}, but {prompt_left[name]} tokens of its prompt are still to be "
                "computed: no token of its answer exists yet"
            )
        if name in got and exact(case, got[name], expected[name]):
            value = got[name]
            owner = rows[sampled.index(value)] if is_number(value) and value in sampled else None
            whose = f"the token from the row of {owner}" if owner else "a token that nobody computed"
            return f"{name} gets {value!r}, {whose}; its own is {expected[name]}"
    extra = [name for name in got if name not in rows]
    return f"{extra[0]!r} is in no row of this step" if extra else None


DELIVER = Exercise(
    exercise_id="c01-b1",
    title="Bug hunt: somebody else's words",
    kind="bug hunt",
    function="deliver",
    stars=2,
    points=15,
    minutes=15,
    needs="c01-e3",
    hints=(
        "Take step 8 of the log and do by hand what the function does. Then do the same with step 9.",
        "Two things are wrong. One: which list says whose row sampled[i] came from? Two: which request of step 9 "
        "cannot have a token yet?",
        "go through rows and sampled together, not through plan\nleave out every request whose prompt_left is above 0",
    ),
    draw_cases=draw_deliver_cases,
    compare=compare_deliveries,
)

EXERCISES = (STATIC_WASTE, BUCKET, CONTINUOUS_SCHEDULE, DELIVER)
