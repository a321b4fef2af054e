"""The exercises of chapter 3: cases, comparers, hints. Knows what is asked, not what is right. Chapter 3."""

import random
import string

from mini_vllm.grading.checkers import exact, is_number, kind_of, sequence, shown
from mini_vllm.grading.exercise import NUM_CASES, Case, Exercise
from mini_vllm.grading.my_stage import stages_from

# Whatever could answer an exercise by itself: the chapter's policies, and everything that holds a scheduler.
HIDDEN = [
    "mini_vllm.os_sched",
    "mini_vllm.batching",
    "mini_vllm.core",
    "mini_vllm.sim",
    "mini_vllm.engine",
    *stages_from("ch04"),
]


# --- e1: finish -----------------------------------------------------------------------------------------------

BOARD = {"A": (0, 7), "B": (2, 4), "C": (3, 1), "D": (5, 4)}  # name -> (arrives, needs)
POLICIES = ("srtf", "rr")


def compare_finish(case: Case, got, expected: dict[str, dict[str, int]]) -> str | None:
    """Says which finish times are wrong, never which are right: there is one case only, and it is the answer."""
    if type(got) is not dict or got.keys() != set(POLICIES):
        return f"expected a dict with 'srtf' and 'rr', got {kind_of(got)}"
    complaints = [_about(policy, got[policy], expected[policy]) for policy in POLICIES]
    return "\n".join(filter(None, complaints)) or None


def _about(policy: str, got, expected: dict[str, int]) -> str | None:
    if type(got) is not dict or got.keys() != expected.keys() or not all(map(is_number, got.values())):
        return f"{policy}: expected a dict with a number for A, B, C and D, got {kind_of(got)}"
    wrong = [name for name in expected if got[name] != expected[name]]
    if not wrong:
        return None
    for name in wrong:
        arrives, needs = BOARD[name]
        if got[name] < arrives + needs:
            return f"{policy}: {name} arrives at {arrives} and needs {needs}; it cannot be done at {got[name]}"
    work = sum(needs for _, needs in BOARD.values())
    if max(got.values()) != work:
        return f"{policy}: all four need {work} units and the CPU is never idle, so the last is done at {work}"
    names = " and ".join(filter(None, (", ".join(wrong[:-1]), wrong[-1])))
    return f"{policy}: {names} {'is' if len(wrong) == 1 else 'are'} not right"


FINISH = Exercise(
    exercise_id="c03-e1",
    title="Two schedules by hand",
    kind="analyse",
    function="finish",
    stars=1,
    points=10,
    minutes=10,
    needs="the section “The idea, part one”",
    hints=(
        "Draw a line of time from 0 to 16. Write the arrivals under it first, then who has the CPU in each unit.",
        "SRTF decides at every arrival and at every end: compare what each still needs. Round robin decides only when "
        "a slice or a job ends: keep a line of names, put those who arrived in the meantime at its end, then the one "
        "who used its slice.",
        "SRTF at 2: A still needs 5, B needs 4. At 3: B needs 3, C needs 1. At 4, at 7: go on.\n"
        "Round robin, line after the slice from 0 to 3: B came at 2 and C at 3, then A: B C A.\n"
        "  B runs from 3 to 6; D came at 5; B has 1 left: the line is C A D B.",
    ),
    compare=compare_finish,
)


# --- e2: stride(jobs, num_slices) -----------------------------------------------------------------------------


def draw_stride_cases(rng: random.Random) -> list[Case]:
    """Jobs in order of arrival, the first at slice 0; names are in no order."""
    cases: list[Case] = [
        [[["A", 1, 0]], 3],
        [[["A", 1, 0], ["B", 1, 0]], 4],
        [[["A", 2, 0], ["B", 1, 0]], 6],
        [[["A", 1, 0], ["B", 1, 3]], 6],
        [[["A", 2, 0], ["B", 1, 0], ["C", 1, 4]], 10],
        [[["B", 1, 0], ["A", 4, 2]], 8],
    ]
    while len(cases) < NUM_CASES:
        slice_number, jobs = 0, []
        for name in rng.sample(string.ascii_uppercase, rng.randint(2, 6)):
            jobs.append([name, rng.choice([1, 1, 2, 4, 8]), slice_number])
            slice_number += rng.choice([0, 0, 1, 5, 12])
        cases.append([jobs, rng.randint(slice_number + 1, slice_number + 20)])
    return cases


STRIDE = Exercise(
    exercise_id="c03-e2",
    title="Stride scheduling",
    kind="code",
    function="stride",
    stars=2,
    points=15,
    minutes=15,
    needs="c03-e1",
    hints=(
        "Everybody carries one number, the pass. Who has run a lot for its tickets has a large one. What must a slice "
        "add to it, so that twice the tickets get twice the slices?",
        "A slice adds 1 / tickets. In each slice: give those who arrive the smallest pass of those present (0 if there "
        "is nobody), then the smallest pass runs; min() over the jobs in their order takes the first of equals.",
        "passes = {}  (name -> pass, in the order of the list)\n"
        "for each slice:\n"
        "    floor = the smallest of passes, or 0 if there are none\n"
        "    each job whose arrival_slice is this one: its pass is floor\n"
        "    the first name with the smallest pass runs; write it down\n"
        "    its pass grows by 1 / its tickets",
    ),
    draw_cases=draw_stride_cases,
    compare=sequence("slice"),
    prepare=lambda case: ([tuple(job) for job in case[0]], case[1]),
)


# --- e3: fair_door(requests, num_seats) -----------------------------------------------------------------------


def draw_door_cases(rng: random.Random) -> list[Case]:
    """Requests of a few users in order of arrival; some users leave and come back."""
    cases: list[Case] = [
        [[["a1", "ann", 0, 2]], 1],
        [[["a1", "ann", 0, 1], ["b1", "bob", 3, 1]], 1],
        [[["a1", "ann", 0, 3], ["a2", "ann", 0, 3], ["b1", "bob", 1, 2]], 1],
        [[["a1", "ann", 0, 4], ["a2", "ann", 0, 2], ["b1", "bob", 4, 2]], 1],
        [[["a1", "ann", 0, 2], ["a2", "ann", 0, 2], ["a3", "ann", 0, 2], ["b1", "bob", 0, 2]], 2],
        # Ann comes back after a pause: lifted, though she is not new.
        [[["a1", "ann", 0, 1], ["b1", "bob", 0, 5], ["b2", "bob", 0, 1], ["a2", "ann", 6, 1]], 1],
    ]
    while len(cases) < NUM_CASES:
        users = rng.sample(["ann", "bob", "cat", "dan"], rng.randint(2, 4))
        step, requests = 0, []
        for number in range(rng.randint(4, 12)):
            requests.append([f"r{number}", rng.choice(users), step, rng.choice([1, 1, 2, 3, 5, 8])])
            step += rng.choice([0, 0, 0, 1, 2, 3, 12])
        cases.append([requests, rng.randint(1, 3)])
    return cases


FAIR_DOOR = Exercise(
    exercise_id="c03-e3",
    title="Fair at the door",
    kind="code",
    function="fair_door",
    stars=3,
    points=20,
    minutes=35,
    needs="c01-e3, the section “Fair to whom?”",
    hints=(
        "It is the continuous batcher of c01-e3 with one other line: which of those who wait joins next? For that you "
        "need one number for each user.",
        "A step: arrivals one by one, each with the lift if its user has nothing waiting or running; then seats, each "
        "to the waiting request with the smallest (tokens of its user, place in the line); then everybody in a seat "
        "advances and its user's number grows by 1.",
        "had = {}  (user -> tokens so far)\n"
        "while somebody is still to come, waiting or running:\n"
        "    each who arrives now: present = users of waiting and running\n"
        "        if its user is not in present:\n"
        "            had[user] = max(had[user] or 0, the smallest had of present, or 0)\n"
        "        to the end of waiting\n"
        "    while somebody waits and a seat is free:\n"
        "        of waiting, the first with the smallest had of its user joins running\n"
        "    write down the ids in running\n"
        "    had of its user grows by 1 for each request in running\n"
        "    take out those that are done",
    ),
    draw_cases=draw_door_cases,
    compare=sequence("step"),
    prepare=lambda case: ([tuple(request) for request in case[0]], case[1]),
)


# --- b1: boost(now, next_boost, every, jobs) ------------------------------------------------------------------


def draw_boost_cases(rng: random.Random) -> list[Case]:
    """Before the boost, at its very time, a little late, and a night late."""

    def job(name: str) -> dict:
        used = rng.choice([0, 50, 200, 450, 900])
        return {"name": name, "level": min(used // 200, 2), "used": used, "served": used + rng.choice([0, 1000])}

    tired = {"name": "A", "level": 2, "used": 450, "served": 450}
    fresh = {"name": "N", "level": 0, "used": 0, "served": 0}
    cases: list[Case] = [
        [1000, 1000, 1000, [tired]],
        [950, 1000, 1000, [tired]],
        [1000, 1000, 1000, [fresh]],
        [36_000_000, 1000, 1000, [fresh]],
        [1050, 1000, 1000, [tired, fresh]],
        [1000, 1000, 1000, []],
    ]
    while len(cases) < NUM_CASES:
        every, due = rng.choice([500, 1000, 5000]), rng.randint(1, 100) * 1000
        now = due + rng.choice([-every, -1, 0, 0, 1, 50, every - 1, every, 7 * every + 50, 36_000_000])
        cases.append([now, due, every, [job(name) for name in rng.sample(string.ascii_uppercase, rng.randint(1, 4))]])
    return cases


def compare_boosts(case: Case, got, expected: list) -> str | None:
    now, next_boost, _, before = case
    if type(got) is not list or len(got) != 2 or type(got[0]) is not list:
        return f"expected two things, jobs and next_boost, got {kind_of(got)}"
    jobs, due = got
    when = f"at {now} a boost is due" if now >= next_boost else f"at {now} no boost is due before {next_boost}"
    names = [job["name"] for job in before]
    if [job.get("name") if type(job) is dict else None for job in jobs] != names:
        return f"expected the jobs {shown(names)} in this order, got {shown(jobs)}"
    for old, mine, right in zip(before, jobs, expected[0], strict=True):
        for key in ("level", "used", "served"):
            if key not in mine or exact(case, mine[key], right[key]):
                what = shown(mine[key]) if key in mine else "missing"
                return f"{when}; {old['name']} had {key} {old[key]}, it should be {right[key]}, got {what}"
    if complaint := exact(case, jobs, expected[0]):
        return complaint
    if complaint := exact(case, due, expected[1]):
        return f"{when}; the next boost: {complaint}"
    return None


BOOST = Exercise(
    exercise_id="c03-b1",
    title="Bug hunt: after the boost, one tenant has the machine to itself",
    kind="bug hunt",
    function="boost",
    stars=2,
    points=15,
    minutes=20,
    needs="the section “The idea, part one”",
    hints=(
        "Do by hand what the machine does from 1000 on, with the numbers that the log shows after the boost. Why does "
        "B get one turn, and N seven?",
        "Two things are wrong. One: a request has two counters, and only one of them decides when it sinks. Two: in "
        "the morning, how far from `now` is the boost that the function calls the next one?",
        "a boost sets level and used to 0 and leaves served alone: it is the bill\n"
        "the next boost is due `every` after now",
    ),
    draw_cases=draw_boost_cases,
    compare=compare_boosts,
)

EXERCISES = (FINISH, STRIDE, FAIR_DOOR, BOOST)
