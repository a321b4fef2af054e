"""Chapter 5's references agree with the chapter's scheduler, and the numbers on its pages are right. Knows both."""

import copy
import json
import random
import re

import pytest

from mini_vllm.config import SchedulerConfig
from mini_vllm.core.step_loop import StepLoop
from mini_vllm.grading.bank import chapter_module
from mini_vllm.grading.overlay import find_answers, source_of
from mini_vllm.grading.quizzes import two_budgets as quiz
from mini_vllm.grading.reference import ch05 as reference
from mini_vllm.grading.reference.ch05_variants import Passing, plan_with, running_with
from mini_vllm.request import Request
from mini_vllm.sampling_params import SamplingParams
from mini_vllm.sim.driver import SimRequest, simulate
from mini_vllm.sim.fake_runner import FakeModelRunner
from mini_vllm.stages.ch05_two_budgets import Scheduler
from tests.repo.repository import cells, notebooks

from .conftest import notebook, right, verdict_of

BANK = chapter_module("ch05")
EXERCISES = {exercise.exercise_id: exercise for exercise in BANK.EXERCISES}
SOLUTION, BLANK = notebook("solutions", "ch05"), notebook("exercises", "ch05")
TEXT = "\n".join(source_of(cell) for cell in BLANK["cells"])
ROOMY = {"max_num_seqs": 9, "token_budget": 99, "input_budget": 99, "draft_slots": 0, "num_blocks": 99}


# --- e1 and e2 against the chapter's scheduler ---


def step_of_the_stage(running, waiting, limits):
    """(plan, reason) of the stage's scheduler in the step after all of `running` have read their prompts."""
    config = SchedulerConfig(
        max_num_seqs=limits["max_num_seqs"],
        max_num_batched_tokens=10**6,
        max_model_len=10**5,
        num_gpu_blocks=limits["num_blocks"],
        block_size=limits["block_size"],
    )
    scheduler = Scheduler(config)
    loop = StepLoop(scheduler, config, FakeModelRunner().execute, kind="sim", clock=None)

    def add(request):
        name, prompt_len, max_tokens = request
        loop.add_request(Request(name, [1] * prompt_len, SamplingParams(max_tokens=max_tokens, ignore_eos=True)))

    for request in running:
        add(request)
    loop.step()
    for request in waiting:
        add(request)
    object.__setattr__(config, "max_num_batched_tokens", limits["token_budget"])  # only from this step on
    plan = scheduler.schedule()
    return [[name, n] for name, n in plan.num_scheduled_tokens.items()], plan.blocked_reason


def test_the_step_by_hand_is_what_the_chapters_scheduler_does():
    running, waiting = BANK.BOARD["running"], BANK.BOARD["waiting"]
    expected = reference.step()
    for pool, num_blocks in BANK.POOLS.items():
        limits = {
            "max_num_seqs": BANK.SEATS,
            "token_budget": BANK.TOKEN_BUDGET,
            "num_blocks": num_blocks,
            "block_size": BANK.BLOCK_SIZE,
        }
        plan, reason = step_of_the_stage(running, waiting, limits)
        assert [name for name, _ in plan[3:]] == expected[pool]["enter"] and reason == expected[pool]["stopped_by"]
        assert BANK.TOKEN_BUDGET - sum(n for _, n in plan) == expected[pool]["tokens_left"]
        who = dict((name, -(-(p + m - 1) // BANK.BLOCK_SIZE)) for name, p, m in [*running, *waiting])
        assert sum(who[name] for name, _ in plan) == expected[pool]["blocks_reserved"] <= num_blocks


def test_a_step_without_drafts_is_what_the_chapters_scheduler_does():
    rng, compared = random.Random(5), 0
    while compared < 60:
        running, waiting, limits = BANK.draw_step_cases(rng)[-1]
        running = [[name, prompt, max(2, output)] for name, prompt, output in running]  # else done after their prompt
        held = sum(-(-(p + m - 1) // limits["block_size"]) for _, p, m in running)
        limits |= {"draft_slots": 0, "input_budget": limits["token_budget"], "num_blocks": held + rng.randint(1, 9)}
        if any(prompt > limits["token_budget"] for _, prompt, _ in waiting):
            continue  # the scheduler refuses it at once
        if any(-(-(p + m - 1) // limits["block_size"]) > limits["num_blocks"] for _, p, m in waiting):
            continue
        assert reference.plan_step(running, waiting, limits) == [*step_of_the_stage(running, waiting, limits)]
        compared += 1


def test_draft_slots_are_counted_as_the_configuration_counts_them():
    """`SchedulerConfig.room` is what the package's scheduler uses for both budgets."""
    for seed in range(10):
        for running, waiting, limits in BANK.PLAN_STEP.cases(seed):
            config = SchedulerConfig(
                max_num_seqs=limits["max_num_seqs"],
                max_num_batched_tokens=limits["input_budget"],
                max_num_scheduled_tokens=limits["token_budget"],
                max_num_new_slots_for_drafting=limits["draft_slots"],
            )
            plan, reason = plan_with(running, waiting, limits)
            left = config.token_budget
            for planned, (_, n) in enumerate(plan):
                assert n <= config.room(left, planned)
                left -= n
            if reason == "token_budget":
                assert waiting[len(plan) - len(running)][1] > config.room(left, len(plan))


def test_worked_examples():
    """The examples worked by hand, as the page prints them."""
    limits = ROOMY | {"token_budget": 50, "input_budget": 50, "num_blocks": 5, "block_size": 16}
    small = [("X", 20, 13)], [("Y", 40, 4), ("Z", 8, 1)]
    plan, reason, used, reserved = plan_with(*small, limits, adds_up=True)
    value = {"enter": ["Y"], "tokens_left": 50 - used, "blocks_reserved": reserved, "stopped_by": reason}
    assert plan == [["X", 1], ["Y", 40]] and f"`{json.dumps(value)}`" in TEXT

    limits = ROOMY | {"token_budget": 12, "input_budget": 12, "draft_slots": 1, "block_size": 16}
    two = [("A", 5, 3), ("B", 2, 2)]
    assert reference.plan_step(two, [("C", 8, 1)], limits) == [[["A", 1], ["B", 1]], "token_budget"]
    assert reference.plan_step(two, [("C", 7, 1)], limits)[1] is None
    assert '`([("A", 1), ("B", 1)], "token_budget")`' in TEXT and "a C of 7 tokens would enter" in TEXT
    rows = re.findall(r"^\| (?:runs|waits) \| ([A-G]) \| ([\d,]+) \| ([\d,]+) \|$", TEXT, re.MULTILINE)
    told = [[name, *(int(number.replace(",", "")) for number in numbers)] for name, *numbers in rows]
    assert told == [*BANK.BOARD["running"], *BANK.BOARD["waiting"]]


def test_a_wrong_step_is_told_which_and_never_how_much():
    step = right("c05-e1")
    for pool, part, value in (
        ("wide", "blocks_reserved", 534.5),
        ("tight", "stopped_by", "token_budget"),
        ("wide", "enter", ["D"]),
    ):
        wrong = copy.deepcopy(step)
        wrong[pool][part] = value
        told = verdict_of("c05-e1", f"step = {wrong!r}").message.splitlines()[2]
        assert told.strip().startswith(f"{pool}: ")
        numbers = {int(n.replace(",", "")) for n in re.findall(r"\d[\d,]*", told)}
        own = {wrong[pool][name] for name in ("tokens_left", "blocks_reserved")}
        assert not (numbers - own) & {step[p][name] for p in step for name in ("tokens_left", "blocks_reserved")}


# --- e3 ---


def test_with_nobody_passing_it_is_the_chapters_scheduler():
    for requests, config, _ in BANK.PASSING.cases(3):
        arguments = BANK.workload([requests, config])
        steps = [simulate(*arguments, scheduler_cls=cls).steps for cls in (Passing, Scheduler, right("c05-e3"))]
        assert steps[0] == steps[1] == steps[2]


def passed_by(case):
    """Head -> who entered while it waited at the head, from the records alone."""
    found = {}
    for record in reference.ANSWERS["c05-e3"](*BANK.PASSING.arguments(case)):
        order = [name for name, *_ in case[0]]
        for name in record["new"]:
            heads = [other for other in record["waiting"] if order.index(other) < order.index(name)]
            if heads:
                found.setdefault(heads[0], []).append(name)
    return found


@pytest.mark.parametrize("seed", range(5))
def test_no_head_is_passed_more_often_than_allowed(seed):
    cases = BANK.PASSING.cases(seed)
    assert any(passed_by(case) for case in cases)
    for case in cases:
        assert all(len(names) <= case[2] for names in passed_by(case).values())


def test_answers_end_at_the_model_s_length_in_some_cases_and_it_matters():
    endless = reference.pass_with(tokens_to_reserve=lambda self, request: request.longest - 1)
    for seed in range(5):
        cases = BANK.PASSING.cases(seed)
        differ = [case for case in cases if endless(*BANK.PASSING.arguments(case)) != right_run(case)]
        assert differ and all("max_model_len" in case[1] for case in differ)


def right_run(case):
    return reference.ANSWERS["c05-e3"](*BANK.PASSING.arguments(case))


def served(most_passed):
    requests = [SimRequest("L1", 8, 21), SimRequest("L2", 30, 11)]
    requests += [SimRequest(f"s{i}", 3, 6, arrival_step=1 + i) for i in range(40)]
    config = SchedulerConfig(max_num_seqs=8, max_num_batched_tokens=32, num_gpu_blocks=12, block_size=4)
    first = simulate(
        requests, config, scheduler_cls=type("S", (Passing,), {"most_passed": most_passed})
    ).first_token_step()
    return first["L2"], sum(first[f"s{i}"] - 1 - i for i in range(40)) / 40


def test_numbers_of_the_three_servers():
    strict, four, open_door = map(served, (0, 4, 10**6))
    assert f"| by nobody | step {strict[0]} | {strict[1]:.1f} steps on average |" in TEXT
    assert f"| by 4 | step {four[0]} | {four[1]:.1f} |" in TEXT
    assert f"| by anybody, for ever | step {open_door[0]} | {open_door[1]:.1f} |" in TEXT
    assert f"brought them in {strict[1] - four[1]:.0f} steps sooner on average and cost it none" in TEXT
    assert strict[0] == four[0] and f"cost it {open_door[0] - strict[0]}." in TEXT


# --- b1 ---

GIVEN = dict(reference.MISTAKES["c05-b1"])["That is the function as given."]


def test_incident_log_is_what_the_given_function_does():
    rows = re.findall(r"([A-D])  priority (\d)  computed +(\d+)  known +(\d+)  (\d) blocks?", TEXT)
    told = [dict(id=name, **dict(zip(("priority", "computed", "known", "blocks"), map(int, numbers), strict=True)))
            for name, *numbers in rows]  # fmt: skip
    assert told == BANK.INCIDENT
    plan, budget, evicted = GIVEN(copy.deepcopy(told), 12, 2, 4)
    assert "plan       " + "   ".join(f"{name}: {n}" for name, n in plan.items()) in TEXT
    assert f"evicted    {' '.join(evicted)}\nbudget     {budget} left" in TEXT
    assert "Budget 12, blocks of 4, 2 blocks free." in TEXT


def test_incident_dashboard_is_what_the_two_functions_do():
    rows = []
    for plan_running in (GIVEN, reference.plan_running):
        steps = tokens = ghosts = without = 0
        for running, *rest in BANK.PLAN_RUNNING.cases("the minute"):
            running = copy.deepcopy(running)
            plan, left, evicted = plan_running(running, *rest)
            if not evicted:
                continue
            steps, tokens = steps + 1, tokens + sum(plan.values())
            ghosts += sum(n for name, n in plan.items() if name in evicted)
            lacking = [r["id"] for r in running if r["known"] > r["computed"] and r["id"] not in plan]
            without += len(lacking) if left else 0
        rows.append(f"{tokens} | {ghosts} | {without} |")
    assert f"| as it runs | {rows[0]}\n| as it was meant | {rows[1]}" in TEXT
    assert f"the {steps} steps in which somebody was evicted" in TEXT


def test_a_plan_keeps_every_rule_whoever_is_evicted():
    for seed in range(20):
        for running, budget, free, size in BANK.PLAN_RUNNING.cases(seed):
            now = copy.deepcopy(running)
            plan, left, evicted = reference.plan_running(now, budget, free, size)
            assert not set(plan) & set(evicted) and sum(plan.values()) + left == budget
            held = sum(r["blocks"] for r in now)
            assert held <= free + sum(r["blocks"] for r in running)
            room = {r["id"]: r["blocks"] * size for r in now}
            assert all(r["computed"] + plan.get(r["id"], 0) <= room[r["id"]] for r in now)
            lacking = [r for r in now if r["known"] > r["computed"] and r["id"] not in plan]
            assert not lacking or not left, "nobody goes without while tokens are left"
            assert running_with(copy.deepcopy(running), budget, free, size)[0] == plan


# --- the quiz and the pages ---


def test_the_quiz_asks_about_steps_as_the_chapter_plans_them():
    rng = random.Random(1)
    for _ in range(200):
        step = quiz.draw_step(rng)
        requests = [[(r.name, r.prompt, r.max_tokens) for r in line] for line in (step.running, step.waiting)]
        limits = ROOMY | {"num_blocks": step.pool, "block_size": quiz.BLOCK_SIZE}
        limits |= {"token_budget": step.budget, "input_budget": step.budget}
        plan, _, used, reserved = plan_with(*requests, limits, adds_up=True)
        entered = step.entering()
        if sum(r.blocks() for r in step.running) <= step.pool:
            assert [r.name for r, _, _ in entered] == [name for name, _ in plan[len(step.running) :]]
            assert step.left() == (step.budget - used, step.pool - reserved)


def test_the_review_is_solved_by_its_solution_and_by_no_half_of_it():
    [path] = [path for path in notebooks("notebooks") if path.name == "05-review.ipynb"]
    [text] = [c["source"] for c in cells(path, "markdown") if "class Mended" in c["source"]]
    solution = re.search(r"```python\n(class Mended.*?)```", text, re.DOTALL)[1]
    half = solution.replace("        if request in self.running:\n    ", "")
    assert half != solution
    code = [cell["source"] for cell in cells(path, "code") if "setup" not in cell["metadata"].get("tags", ())]
    verdicts = []
    for mended in (solution, half, None):
        said = []
        space = {"__name__": "__main__", "print": lambda *words, said=said: said.append(" ".join(map(str, words)))}
        for source in code:
            exec(mended if mended and source.startswith("class Mended") else source, space)
        verdicts.append(said[-1])
    assert verdicts[0].startswith("✓ mended") and all(v.startswith("✗ not yet") for v in verdicts[1:]), verdicts


def test_solution_stands_alone():
    used = {source for source in find_answers(SOLUTION).sources.values() if "mini_vllm" in source}
    assert len(used) == 1 and "from mini_vllm.grading import my_stage" in used.pop()
