"""Chapter 4's references are the chapter's own code, and the numbers on its exercise page are right. Knows both."""

import random
import re
from itertools import pairwise

import pytest

from mini_vllm.config import SchedulerConfig
from mini_vllm.grading.bank import chapter_module
from mini_vllm.grading.event_runs import EVENTS, run_with_grammars
from mini_vllm.grading.overlay import find_answers, source_of
from mini_vllm.grading.reference import ch04 as reference
from mini_vllm.grading.reference import ch04_variants as variants
from mini_vllm.sim.driver import SimRequest, simulate
from mini_vllm.sim.examples import FIVE, five_requests
from mini_vllm.stages.ch04_admit_retire import Scheduler

from .conftest import define, notebook, right, verdict_of

BANK = chapter_module("ch04")
EXERCISES = {exercise.exercise_id: exercise for exercise in BANK.EXERCISES}
SOLUTION, BLANK = notebook("solutions", "ch04"), notebook("exercises", "ch04")
TEXT = "\n".join(source_of(cell) for cell in BLANK["cells"])


def rows_of(exercise_id: str) -> list[list[str]]:
    """The cells of all table rows in the text of an exercise that begin with a number."""
    [text] = [source_of(cell) for cell in BLANK["cells"] if cell["id"] == f"{exercise_id}-text"]
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines() if line.startswith("|")]
    return [row for row in rows if row[0].isdigit()]


def source_of_given(exercise_id: str) -> str:
    return find_answers(BLANK).sources[exercise_id]


# --- e1 -------------------------------------------------------------------------------------------------------


def plans_of(requests, config: SchedulerConfig) -> list[dict[str, int]]:
    return [dict(record["scheduled"]) for record in simulate([SimRequest(*r) for r in requests], config).steps]


def test_plans_by_hand_and_by_machine():
    rows = re.findall(r"^\| ([A-D]) \| (\d+) \| (\d+) \|$", TEXT, re.MULTILINE)
    assert {name: (int(prompt), int(output)) for name, prompt, output in rows} == BANK.BOARD
    assert f"at most **{BANK.BUDGET} tokens** in a step; **{BANK.NUM_BLOCKS} blocks of {BANK.BLOCK_SIZE}" in TEXT
    assert reference.plans() == reference.by_hand() == right("c04-e1")
    assert len(reference.plans()) == BANK.NUM_STEPS == source_of_given("c04-e1").count("...,")


@pytest.mark.parametrize("admission", ["full", "chunk"])
def test_the_five_rules_are_the_schedulers(admission):
    """The plain loop of the rules, on the example of the page, and on random requests and limits."""
    loop = variants.plans_with
    config = five_requests(admission)[1]
    mode = {"piece_must_fit": admission == "chunk"}
    assert loop(list(FIVE), 8, 6, 16, **mode) == plans_of(FIVE, config)
    rng = random.Random(4)
    for _ in range(300):
        requests = [(name, rng.randint(1, 9), rng.randint(1, 8)) for name in "ABCDE"[: rng.randint(1, 5)]]
        budget, num_blocks = rng.randint(5, 9), rng.randint(4, 7)
        config = SchedulerConfig(
            max_num_seqs=5, max_num_batched_tokens=budget, num_gpu_blocks=num_blocks, block_size=4, max_model_len=32,
            reserve_full_isl=admission == "full",
        )  # fmt: skip
        assert loop(requests, budget, num_blocks, 4, **mode) == plans_of(requests, config)


def test_the_example_by_hand_is_the_schedulers():
    config = SchedulerConfig(max_num_seqs=2, max_num_batched_tokens=4, num_gpu_blocks=2, block_size=4, max_model_len=8)
    trace = simulate([SimRequest("P", 3, 4), SimRequest("Q", 4, 2)], config)
    rows, known = rows_of("c04-e1"), {"P": 3, "Q": 4}
    assert len(rows) == len(trace.steps) == 6
    for step, (number, plan, *numbers, blocks, _) in zip(trace.steps, rows, strict=True):
        for name in step["sampled"]:
            known[name] += 1
        assert (int(number), plan) == (step["step"], ", ".join(f"{n} {tokens}" for n, tokens in step["scheduled"]))
        for name, cell, held in zip("PQ", numbers, blocks.split(", "), strict=True):
            table = step["blocks"][name] if name in step["running_end"] else ()
            assert held == (str(len(table)) if table else "–"), (number, name)
            if name in step["computed"]:
                computed = step["computed"][name][1]
                assert cell == ("done" if name in step["finished"] else f"{known[name]} / {computed}")
    value = [dict(step["scheduled"]) for step in trace.steps]
    assert f"`{str(value).replace(chr(39), chr(34))}`" in TEXT


def test_a_wrong_plan_is_told_which_step_and_never_how_much():
    source = find_answers(SOLUTION).sources["c04-e1"]
    for old, new, says in (
        ('"C": 4}', '"C": 3}', "step 1 is not right; step 0 is"),
        ('"C": 5}', '"C": 4}', "step 6 is not right; steps 0 to 5 are"),
        ('"C": 4}', '"C": 5}', "step 1: 7 tokens are more than the budget of 6"),
        ('"C": 4}', '"C": 0}', "step 1: C gets 0; whoever is in a plan gets"),
        ('"C": 4}', '"E": 4}', "step 1: there is no request 'E'"),
    ):
        message = verdict_of("c04-e1", source.replace(old, new)).message
        assert says in message.splitlines()[2], message


# --- e2 -------------------------------------------------------------------------------------------------------


def test_lives_are_the_chapters_own_moves_and_agree_with_a_plain_loop():
    exercise, seen = EXERCISES["c04-e2"], set()
    for seed in range(20):
        for [records] in exercise.cases(seed):
            lives = reference.lives(records)
            assert lives == variants.lives_with(records)
            seen |= {(a[1], b[1]) for life in lives.values() for a, b in pairwise(life)}
    ways = {("waiting", "running"), ("running", "preempted"), ("preempted", "running"), ("running", "finished")}
    assert seen == ways | {("waiting", "finished"), ("preempted", "finished")}, "the logs take every way there is"


def test_the_log_by_hand():
    records = [
        {"step": int(step)} | {e: cell.split(", ") if cell else [] for e, cell in zip(EVENTS, cells, strict=True)}
        for step, *cells in rows_of("c04-e2")
    ]
    assert len(records) == 5
    lives = reference.lives(records)
    for name, said in (("A", "A's life is"), ("B", "B's is"), ("C", "C's is")):
        assert f"{said} `{str(lives[name]).replace(chr(39), chr(34))}`" in TEXT


# --- e3 -------------------------------------------------------------------------------------------------------


def test_my_scheduler_is_the_chapters_stage_as_long_as_nobody_is_held():
    mine, exercise = right("c04-e3"), EXERCISES["c04-e3"]
    for seed in range(10):
        for requests, seats, ready in exercise.cases(seed):
            passing = run_with_grammars(mine, requests, seats, ready)
            assert exercise.essence([], passing) == exercise.essence([], reference.my_scheduler(requests, seats, ready))

            class Stage(Scheduler):
                hold = grammar_ready = lambda self, request_id: None

            free = run_with_grammars(mine, requests, seats, {})
            assert free == run_with_grammars(Stage, requests, seats, {})


def test_held_requests_keep_their_place_and_hold_nothing():
    """Of those who are ready, nobody enters before one who came earlier; a held one has no token and no block."""
    for seed in range(20):
        for requests, seats, ready in EXERCISES["c04-e3"].cases(seed):
            came = {name: (at, place) for place, (name, _, _, at) in enumerate(requests)}
            steps = reference.my_scheduler(requests, seats, ready)
            for step, record in enumerate(steps):
                able = [n for n in record["waiting"] if ready.get(n, 0) <= step]
                entered = record["new"]
                assert all(ready.get(name, 0) <= step for name in entered)
                assert not able or not entered or max(map(came.get, entered)) < min(map(came.get, able))
                assert not able or len(record["running"]) == seats, "a seat is free and somebody could take it"


def test_the_run_by_hand():
    steps = reference.my_scheduler([["A", 2, 1, 0], ["B", 2, 2, 0], ["C", 2, 1, 0]], 1, {"A": 1})
    rows = rows_of("c04-e3")
    assert [[name for name, _ in record["scheduled"]] for record in steps] == [[seat] for _, _, _, seat, _ in rows]
    for record, (_, _, line, *_) in zip(steps, rows, strict=True):
        assert sorted(record["waiting"] + record["new"]) == line.split(", ")


# --- b1: the machine of the incident ---------------------------------------------------------------------------


SEATS, NUM_BLOCKS, BLOCKS_EACH, LASTS, EVERY = 4, 32, 4, 10, 3
PATIENCE = (0, 6, 40, 0)  # of requests 0, 1, 2, 3, 4, …: steps until the user hangs up; 0 is never


def serve(abort, num_steps):
    """(rows, log): running, waiting, held and free blocks after each step, and around each event."""
    waiting, running, blocks, free, left, rows, log = [], [], {}, NUM_BLOCKS, {}, [], []

    def numbers():
        return len(running), len(waiting), sum(blocks.values()), free

    for step in range(num_steps):
        if step % EVERY == 0:
            waiting.append(f"r{step // EVERY}")
            left[waiting[-1]] = LASTS
        hanging = []
        for number in range(step // EVERY + 1):
            patience = PATIENCE[number % 4]
            if patience and EVERY * number + patience == step and left[f"r{number}"]:
                hanging.append(f"r{number}")
        if hanging:
            log += [(step, name, "before", name in running, *numbers()) for name in hanging]
            waiting, running, blocks, free = abort(hanging, list(waiting), list(running), dict(blocks), free)
            log += [(step, name, "after", None, *numbers()) for name in hanging]
        while waiting and len(running) < SEATS and free >= BLOCKS_EACH:
            name = waiting.pop(0)
            running.append(name)
            blocks[name], free = BLOCKS_EACH, free - BLOCKS_EACH
            log.append((step, name, "enters", None, *numbers()))
        for name in list(running):
            left[name] -= 1
            if not left[name]:
                running.remove(name)
                free += blocks.pop(name)
        rows.append(numbers())
    return rows, log


GIVEN = dict(reference.MISTAKES["c04-b1"])["That is the function as given."]


def test_incident_dashboard_is_what_the_machine_does():
    given, meant = serve(GIVEN, 400)[0], serve(reference.abort, 400)[0]
    [after] = re.findall(r"^\| after step \| (.*) \|$", TEXT, re.MULTILINE)
    shown = [int(step) for step in after.split(" | ")]
    for column, name in enumerate(("running", "waiting", "blocks held", "blocks free")):
        assert f"| {name} | {' | '.join(str(given[step][column]) for step in shown)} |" in TEXT
    assert f"| running, as it was meant | {' | '.join(str(meant[step][0]) for step in shown)} |" in TEXT
    assert all(row[0] == row[2] == row[3] == 0 for row in given[130:]) and given[129][0] == 1
    assert all(held + free == NUM_BLOCKS for _, _, held, free in meant)
    assert "served nobody from step 130 on, with 32 blocks that nobody held" in TEXT
    source = source_of_given("c04-b1")
    assert serve(define("c04-b1", source), 400)[0] == given


def test_incident_log_is_what_the_given_function_does():
    log = serve(GIVEN, 140)[1]
    shown = rows_of("c04-b1")
    assert len(shown) == 6
    for step, event, *numbers in shown:
        before, name, what = re.fullmatch(r"(before )?(r\d+) (.*)", event).groups()
        kind = "before" if before else "enters" if what == "enters" else "after"
        [(was_running, *mine)] = [row[3:] for row in log if row[:3] == (int(step), name, kind)]
        assert mine == [int(number) for number in numbers]
        if before:
            assert what == f"hangs up, {'running' if was_running else 'waiting'}"


def test_numbers_in_the_chapters_prose():
    page = "\n".join(source_of(cell) for cell in notebook("notebooks", "ch04")["cells"])
    small = simulate(*five_requests()).steps
    evicted = [(name, step["step"]) for step in small for name in step["preempted"]]
    assert evicted[:2] == [("R4", 9), ("R4", 18)] and "The next one gives way in step 18" in page
    assert small[8]["scheduled"][2:] == [["R3", 2], ["R4", 4]] and small[8]["free"] == 0
    assert "In step 8, R3 needs only 2 tokens to end its prompt" in page
    assert small[9]["computed"]["R3"] == [32, 33] and len(small[9]["blocks"]["R3"]) == 3
    assert "In step 9, the tenth, R3 computes its 33rd token and needs a third block" in page
    assert small[10]["finished"] == ["R2"] and small[11]["resumed"] == ["R4"] and "at the end of step 10" in page
    assert "vLLM 0.33.0 has names for twelve" in page
    [named] = re.findall(r"request.py</code>: (.*?) Their order", page)
    assert len(re.findall("<code>", named)) == 12


def test_solution_uses_only_the_stage_that_it_extends():
    sources = "\n".join(find_answers(SOLUTION).sources.values())
    used = {line for line in sources.splitlines() if "mini_vllm" in line}
    assert used == {"from mini_vllm.stages.ch04_admit_retire import Scheduler as Stage4"}
