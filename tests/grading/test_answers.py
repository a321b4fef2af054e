"""Every chapter: blanks fail, all right answers pass, mutants fail and are told why. Knows no answer."""

import time

import pytest

from mini_vllm.grading.bank import chapter_module, chapter_of, chapters, find_exercise, hidden_modules
from mini_vllm.grading.overlay import code_cells, find_answers, source_of
from mini_vllm.grading.reference import answer, mistakes

from .conftest import load, notebook, unwrapped, verdict_of

EXERCISES = {e.exercise_id: e for chapter in chapters() for e in chapter_module(chapter).EXERCISES}


def of_all_chapters(folder: str, name: str) -> dict:
    loaded = {chapter: load(folder, chapter, name) for chapter in chapters()}
    return {f"{chapter} {key}": value for chapter, found in loaded.items() for key, value in found.items()}


MUTANTS = of_all_chapters("mutants", "MUTANTS")
ALTERNATIVES = of_all_chapters("alternatives", "ALTERNATIVES")
ALL = pytest.mark.parametrize("exercise_id", EXERCISES)


def source_in(folder: str, exercise_id: str) -> str:
    return find_answers(notebook(folder, chapter_of(exercise_id))).sources[exercise_id]


def text_of(folder: str, chapter: str) -> str:
    return "\n".join(source_of(cell) for cell in notebook(folder, chapter)["cells"])


@ALL
def test_solution_passes_on_many_seeds(exercise_id):
    for seed in range(20):
        verdict = verdict_of(exercise_id, source_in("solutions", exercise_id), seed)
        assert verdict.status == "pass", verdict.message


@ALL
def test_blank_fails(exercise_id):
    verdict = verdict_of(exercise_id, source_in("exercises", exercise_id))
    if EXERCISES[exercise_id].kind == "bug hunt":
        assert verdict.status == "wrong" and "the function as given" in verdict.message
    else:
        assert verdict.status == "missing" and "not started yet" in verdict.message


@pytest.mark.parametrize("name", MUTANTS)
def test_mutant_fails_and_is_told_its_mistake(name):
    mutant = MUTANTS[name]
    for seed in range(5):
        verdict = verdict_of(mutant.exercise_id, mutant.source, seed)
        assert verdict.status in ("wrong", "error"), verdict
        assert mutant.says in unwrapped(verdict.message), verdict.message
        assert EXERCISES[mutant.exercise_id].function in verdict.message  # the smallest failing case


@pytest.mark.parametrize("name", ALTERNATIVES)
def test_alternative_passes(name):
    exercise_id, _, source = ALTERNATIVES[name]
    for seed in range(5):
        verdict = verdict_of(exercise_id, source, seed)
        assert verdict.status == "pass", verdict.message


@ALL
def test_easy_wrong_answers_fail(exercise_id):
    """The input given back, constants, nothing, and objects that equal everything."""
    name, takes_value = EXERCISES[exercise_id].function, EXERCISES[exercise_id].takes_value
    yes = "class Yes:\n    __eq__ = lambda *a: True\n    __hash__ = None\n"
    for value in ("arguments[0]", "0", "None", "[]", "{}", "Yes()", "float('nan')"):
        if takes_value and value == "arguments[0]":
            continue
        body = f"{name} = {value}\n" if takes_value else f"def {name}(*arguments):\n    return {value}\n"
        verdict = verdict_of(exercise_id, yes + body)
        assert verdict.status in ("wrong", "error"), (value, verdict)


@ALL
def test_c06_enough_mutants_and_alternatives(exercise_id):
    assert sum(mutant.exercise_id == exercise_id for mutant in MUTANTS.values()) >= 5
    others = sum(alternative[0] == exercise_id for alternative in ALTERNATIVES.values())
    assert others >= (0 if EXERCISES[exercise_id].takes_value else 2)


def test_judging_takes_a_tenth_of_a_second():
    """Blanks, solutions, mutants, alternatives: seconds of CPU, each the better of two runs."""
    to_judge = [(i, source_in(folder, i)) for i in EXERCISES for folder in ("solutions", "exercises")]
    to_judge += [(mutant.exercise_id, mutant.source) for mutant in MUTANTS.values()]
    to_judge += [(exercise_id, source) for exercise_id, _, source in ALTERNATIVES.values()]
    taken: dict[float, str] = {}
    for exercise_id, source in to_judge:
        runs = []
        for _ in range(2):
            start = time.process_time()
            verdict_of(exercise_id, source)
            runs.append(time.process_time() - start)
        taken[min(runs)] = exercise_id
    slowest = max(taken)
    print(f"slowest: {taken[slowest]}, {slowest:.3f} s of CPU")
    assert slowest < 0.5, "an answer takes many times its 0.1 s: does it draw too many or too large cases?"


@ALL
def test_known_mistakes_are_wrong_and_differ_from_each_other(exercise_id):
    exercise = find_exercise(exercise_id)
    cases, given = exercise.cases(7), []
    for _, function in [("right", answer(exercise_id)), *mistakes(exercise_id)]:
        given.append([exercise.essence(case, function(*exercise.arguments(case))) for case in cases])
    assert all(a != b for i, a in enumerate(given) for b in given[:i])


@pytest.mark.parametrize("chapter", chapters())
def test_page_and_chapter_show_the_same_line_sums_and_first_hints(chapter):
    page, rows = text_of("exercises", chapter), text_of("notebooks", chapter).splitlines()
    exercises = [e for i, e in EXERCISES.items() if chapter_of(i) == chapter]
    for exercise in exercises:
        assert f"{exercise.title}\n{exercise.label}\n" in page
        assert exercise.hints[0] in page
        [row] = [line for line in rows if line.startswith(f"| {exercise.exercise_id} |")]
        assert row.endswith(f"| {exercise.label} |")
    minutes, points = sum(e.minutes for e in exercises), sum(e.points for e in exercises)
    assert f"About {minutes} minutes, {points} points" in page
    assert not [c for c in code_cells(notebook("exercises", chapter)) if "SOLUTION" in source_of(c)]
    assert any(e.stars == 3 for e in exercises) and any(e.kind == "bug hunt" for e in exercises)


@ALL
def test_solution_uses_nothing_that_graded_runs_hide(exercise_id):
    source = source_in("solutions", exercise_id)
    assert not [module for module in hidden_modules([exercise_id]) if module in source]
