"""Chapter 1's references are right, and so are the numbers on its page. What holds everywhere: test_answers."""

import re
from itertools import combinations, product

import pytest

from mini_vllm.grading.bank import chapter_module
from mini_vllm.grading.overlay import find_answers, source_of
from mini_vllm.grading.reference import ch01 as reference

from .conftest import ROOT, notebook

EXERCISES = {exercise.exercise_id: exercise for exercise in chapter_module("ch01").EXERCISES}
SOLUTION, BLANK = notebook("solutions", "ch01"), notebook("exercises", "ch01")


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


def test_solution_stands_alone():
    assert not [source for source in find_answers(SOLUTION).sources.values() if "mini_vllm" in source]
    assert not (ROOT / "mini_vllm" / "solutions").exists()
