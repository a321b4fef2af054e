"""Chapter 1: blanks fail, the solution and every other right answer pass, every mutant fails and is told why."""

import re
import time
from pathlib import Path

import pytest

from mini_vllm.grading.bank import chapter_module
from mini_vllm.grading.overlay import code_cells, find_answers, read_notebook, source_of
from mini_vllm.grading.reference import ch01 as reference

from .conftest import ROOT, load, unwrapped, verdict_of

EXERCISES = {exercise.exercise_id: exercise for exercise in chapter_module("ch01").EXERCISES}
SOLUTION = read_notebook(ROOT / "solutions" / "01-static-batching.ipynb")
BLANK = read_notebook(ROOT / "exercises" / "01-static-batching.ipynb")
MUTANTS = load("mutants", "ch01", "MUTANTS")
ALTERNATIVES = load("alternatives", "ch01", "ALTERNATIVES")


@pytest.mark.parametrize("exercise_id", EXERCISES)
def test_solution_passes_on_many_seeds(exercise_id):
    source = find_answers(SOLUTION).sources[exercise_id]
    for seed in range(20):
        verdict = verdict_of(exercise_id, source, seed)
        assert verdict.status == "pass", verdict.message


@pytest.mark.parametrize("exercise_id", EXERCISES)
def test_blank_fails(exercise_id):
    verdict = verdict_of(exercise_id, find_answers(BLANK).sources[exercise_id])
    if EXERCISES[exercise_id].kind == "bug hunt":
        assert verdict.status == "wrong" and "the function as given" in verdict.message
    else:
        assert verdict.status == "missing" and "not started yet" in verdict.message


@pytest.mark.parametrize("name", MUTANTS)
def test_mutant_fails_and_is_told_its_mistake(name):
    mutant = MUTANTS[name]
    for seed in range(5):
        verdict = verdict_of(mutant.exercise_id, mutant.source, seed)
        assert verdict.status == "wrong"
        assert mutant.says in unwrapped(verdict.message), verdict.message
        assert EXERCISES[mutant.exercise_id].function + "(" in verdict.message  # the smallest failing case


@pytest.mark.parametrize("name", ALTERNATIVES)
def test_alternative_passes(name):
    exercise_id, _, source = ALTERNATIVES[name]
    for seed in range(5):
        verdict = verdict_of(exercise_id, source, seed)
        assert verdict.status == "pass", verdict.message


@pytest.mark.parametrize("exercise_id", EXERCISES)
def test_easy_wrong_answers_fail(exercise_id):
    """The input given back, constants, nothing, and objects that equal everything."""
    function = EXERCISES[exercise_id].function
    yes = "class Yes:\n    __eq__ = lambda *a: True\n    __hash__ = None\n"
    for body in ("return arguments[0]", "return 0", "return None", "return []", "return {}", "return Yes()"):
        verdict = verdict_of(exercise_id, f"{yes}def {function}(*arguments):\n    {body}\n")
        assert verdict.status == "wrong", (body, verdict)


def test_every_exercise_has_two_mutants_and_an_alternative():
    for exercise_id in EXERCISES:
        assert sum(mutant.exercise_id == exercise_id for mutant in MUTANTS.values()) >= 2
        assert any(alternative[0] == exercise_id for alternative in ALTERNATIVES.values())


def test_judging_is_fast():
    source = find_answers(SOLUTION).sources
    for exercise_id in EXERCISES:
        start = time.process_time()
        verdict_of(exercise_id, source[exercise_id])
        assert time.process_time() - start < 0.5


def test_known_mistakes_are_wrong_and_differ_from_each_other():
    for exercise_id, exercise in EXERCISES.items():
        cases = exercise.cases(7)
        given = []
        for _, mistake in [("right", reference.ANSWERS[exercise_id]), *reference.MISTAKES[exercise_id]]:
            given.append([exercise.essence(case, mistake(*exercise.arguments(case))) for case in cases])
        assert all(a != b for i, a in enumerate(given) for b in given[:i])


def test_bucket_reference_is_optimal():
    """Against every grouping of up to six requests."""

    def fewest(left: tuple[int, ...], batch_size: int) -> int:
        if not left:
            return 0
        head, rest = left[0], left[1:]  # longest first: somebody must be the first's company
        best = head + fewest(rest, batch_size)
        for size in range(1, batch_size):
            for chosen in combinations(range(len(rest)), size):
                others = tuple(x for i, x in enumerate(rest) if i not in chosen)
                best = min(best, max(head, *(rest[i] for i in chosen)) + fewest(others, batch_size))
        return best

    from itertools import combinations, product

    for lengths in product((1, 2, 5), repeat=5):
        for batch_size in (1, 2, 3):
            mine = sum(max(lengths[i] for i in batch) for batch in reference.bucket(list(lengths), batch_size))
            assert mine == fewest(lengths, batch_size)


def test_schedule_reference_is_the_real_batcher_and_agrees_with_the_plain_loop():
    exercise = EXERCISES["c01-e3"]
    for seed in range(20):
        for case in exercise.cases(seed):
            arguments = exercise.arguments(case)
            assert reference.continuous_schedule(*arguments) == reference.schedule_with(*arguments)


def test_numbers_on_the_page_are_right():
    """The examples worked by hand, as the page prints them."""
    assert reference.static_waste([4, 1, 1, 1], 2) == pytest.approx(0.3)
    assert reference.static_waste([5], 4) == 0.75
    assert reference.bucket([1, 5, 2], 2) == [[1, 2], [0]]
    three = [("A", 0, 3), ("B", 0, 1), ("C", 0, 2)]
    assert reference.continuous_schedule(three, 2) == [["A", "B"], ["A", "C"], ["A", "C"]]
    assert len(reference.schedule_with(three, 2, door=True)) == 5
    assert reference.continuous_schedule([("A", 0, 1), ("B", 3, 1)], 1) == [["A"], [], [], ["B"]]
    text = "\n".join(source_of(cell) for cell in BLANK["cells"])
    for shown in ("the waste is 0.3", "waste 0.75", "`[[1, 2], [0]]`", '`[["A"], [], [], ["B"]]`', "takes 5 steps"):
        assert shown in text


def test_incident_log_is_what_the_given_function_does():
    text = "\n".join(source_of(cell) for cell in BLANK["cells"])
    pattern = r"plan +([A-Z ]+?) {2,}rows +([A-Z ]+?) {2,}prompt_left +(.+)\n +sampled +([\d ]+?) {2,}sent +(.+)"
    steps = re.findall(pattern, text)
    assert len(steps) == 3
    for plan, rows, left, sampled, sent in steps:
        prompt_left = {name: int(n) for name, n in (pair.split(":") for pair in left.split())}
        arguments = plan.split(), rows.split(), list(map(int, sampled.split())), prompt_left
        given = reference.deliver_as_given(*arguments)
        assert " ".join(f"{name}:{token}" for name, token in given.items()) == sent.split("  ")[0].strip()
    assert reference.deliver(*arguments) == {"D": 871, "B": 457, "C": 504}


def test_labels_and_sums_on_the_page_match_the_bank():
    text = "\n".join(source_of(cell) for cell in BLANK["cells"])
    for exercise in EXERCISES.values():
        assert f"{exercise.title}\n{exercise.label}\n" in text
        assert exercise.hints[0] in text
    minutes = sum(exercise.minutes for exercise in EXERCISES.values())
    points = sum(exercise.points for exercise in EXERCISES.values())
    assert f"About {minutes} minutes, {points} points" in text
    assert not [c for c in code_cells(BLANK) if "SOLUTION" in source_of(c)]


def test_solution_does_not_use_the_package():
    for source in find_answers(SOLUTION).sources.values():
        assert "mini_vllm" not in source
    assert "solutions" not in {p.name for p in (Path(ROOT) / "mini_vllm").iterdir()}
