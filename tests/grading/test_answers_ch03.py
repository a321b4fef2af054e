"""Chapter 3's references are the chapter's own policies, and the numbers on its page are right. Knows both."""

import re
from collections import Counter

from mini_vllm.grading.bank import chapter_module
from mini_vllm.grading.overlay import find_answers, source_of
from mini_vllm.grading.reference import ch03 as reference
from mini_vllm.grading.reference import ch03_variants as variants
from mini_vllm.os_sched import CPU, SRTF, Job, RoundRobin

from .conftest import notebook, verdict_of

EXERCISES = {exercise.exercise_id: exercise for exercise in chapter_module("ch03").EXERCISES}
SOLUTION, BLANK = notebook("solutions", "ch03"), notebook("exercises", "ch03")
TEXT = "\n".join(source_of(cell) for cell in BLANK["cells"])


def test_finish_by_hand_and_by_machine():
    assert reference.finish() == {
        "srtf": {"A": 16, "B": 7, "C": 4, "D": 11},
        "rr": {"A": 15, "B": 14, "C": 7, "D": 16},
    }
    rows = re.findall(r"^\| ([A-D]) \| (\d+) \| (\d+) \|$", TEXT, re.MULTILINE)
    assert {name: (int(arrives), int(needs)) for name, arrives, needs in rows} == chapter_module("ch03").BOARD
    for policy, title in ((SRTF(), "SRTF"), (RoundRobin(2), "round robin")):
        jobs = [Job("P", 0, 4), Job("Q", 1, 2), Job("R", 2, 2)]
        turns = CPU(policy).run(jobs)
        units = [turn.job.name for turn in turns for _ in range(int(turn.end - turn.start))]
        assert f"| {title} | {' | '.join(units)} |" in TEXT
        finish = ", ".join(f'"{job.name}": {job.finish:g}' for job in jobs)
        assert f'"{"srtf" if title == "SRTF" else "rr"}": {{{finish}}}' in TEXT


def test_a_wrong_finish_is_told_which_and_never_how_much():
    right = find_answers(SOLUTION).sources["c03-e1"]
    for old, new in (('"A": 16', '"A": 15'), ('"C": 7', '"C": 8'), ('"D": 11', '"D": 12')):
        message = verdict_of("c03-e1", right.replace(old, new)).message
        told = message.splitlines()[2]
        assert old[1] in told or "the last is done at 16" in told
        if old != '"A": 16':
            assert re.search(r"\d", told) is None


def test_stride_and_door_are_the_chapters_own_and_agree_with_plain_loops():
    for seed in range(20):
        for exercise_id, plain in (("c03-e2", variants.stride_with), ("c03-e3", variants.door_with)):
            exercise = EXERCISES[exercise_id]
            for case in exercise.cases(seed):
                arguments = exercise.arguments(case)
                assert reference.ANSWERS[exercise_id](*arguments) == plain(*arguments), case


def test_worked_examples():
    """The examples worked by hand, as the page prints them."""
    ten = reference.stride([("A", 2, 0), ("B", 1, 0), ("C", 1, 4)], 10)
    assert ten == list("ABAABCAABC") and str(ten).replace("'", '"') in TEXT
    assert ten[2:].count("A") == 4 and "of the last eight slices A, with half of the tickets, has four" in TEXT
    requests = [("a1", "ann", 0, 3), ("a2", "ann", 0, 3), ("b1", "bob", 1, 2)]
    eight = reference.fair_door(requests, 1)
    assert eight == [["a1"]] * 3 + [["b1"]] * 2 + [["a2"]] * 3 and str(eight).replace("'", '"') in TEXT
    lifted = reference.fair_door([("a1", "ann", 0, 4), ("a2", "ann", 0, 2), ("b1", "bob", 4, 2)], 1)
    assert lifted == [["a1"]] * 4 + [["a2"]] * 2 + [["b1"]] * 2
    unlifted = variants.door_with(
        [("a1", "ann", 0, 4), ("a2", "ann", 0, 2), ("b1", "bob", 4, 2)], 1, lift=lambda own, _: own
    )
    assert unlifted[4] == ["b1"]


def test_numbers_of_the_stories():
    owned = variants.stride_with([("old", 1, 0), ("new", 4, 100)], 501, start=lambda passes: 0.0)
    assert owned[:100] == ["old"] * 100 and owned[100:] == ["new"] * 400 + ["old"]
    ann = [(f"a{i}", "ann", 0, 50) for i in range(20)]
    requests = [*ann, ("b1", "bob", 1, 5)]
    come, fair = (
        next(step for step, ids in enumerate(schedule) if "b1" in ids)
        for schedule in (variants.door_with(requests, 4, first_come=True), reference.fair_door(requests, 4))
    )
    assert (come, fair) == (250, 50)
    for shown in ("**400 slices in a row**", "at step **250**", "at step **50**", "at step 250, a door"):
        assert shown in TEXT


def serve(boost, arrivals, start, next_boost, until):
    """The machine of the bug hunt: (turns, boosts); a turn is (time, name, level after it)."""
    line, turns, boosts, now, arrivals = [], [], [], start, list(arrivals)
    while now < until:
        while arrivals and arrivals[0][1] <= now:
            line.append({"name": arrivals.pop(0)[0], "level": 0, "used": 0, "served": 0})
        line, due = boost(now, next_boost, 1000, line)
        if due != next_boost:
            boosts.append((now, due, [dict(job) for job in line]))
            next_boost = due
        job = min(line, key=lambda job: job["level"])
        job["used"], job["served"] = job["used"] + 50, job["served"] + 50
        job["level"] = min(job["used"] // 200, 2)
        line = [other for other in line if other is not job] + [job]
        turns.append((now, job["name"], job["level"]))
        now += 50
    return turns, boosts


GIVEN = dict(reference.MISTAKES["c03-b1"])["That is the function as given."]
THREE = (("A", 0), ("B", 0), ("N", 950))


def test_incident_dashboard_is_what_the_machine_does():
    counted = []
    for boost in (GIVEN, reference.boost):
        turns, _ = serve(boost, THREE, 0, 1000, 2000)
        counted.append(Counter(name for now, name, _ in turns if 1000 <= now < 1450))
    given, meant = ([str(counts[name]) for name in "ABN"] for counts in counted)
    assert f"| turns | {' | '.join(given)} |\n| as it was meant | {' | '.join(meant)} |" in TEXT
    assert (given, meant) == (["1", "1", "7"], ["3", "3", "3"])

    night = 36_000_000
    _, boosts = serve(GIVEN, [("A", night), ("B", night)], night, 1000, night + 33 * 60_000)
    of_minute = [
        sum(night + m * 60_000 <= now < night + (m + 1) * 60_000 for now, _, _ in boosts) for m in (0, 30, 31, 32)
    ]
    _, evening = serve(GIVEN, [("A", 0)], 0, 0, 60_000)
    cells = " | ".join(f"{n:,}" for n in (len(evening), *of_minute))
    assert f"| after a night without requests | {cells} |" in TEXT
    assert [(now, due) for now, due, _ in boosts[:3]] == [
        (int(now), int(due))
        for now, due in re.findall(r"^(36\d+)  BOOST, the next one is due at (\d+)$", TEXT, re.MULTILINE)
    ]
    _, mended = serve(reference.boost, [("A", night), ("B", night)], night, 1000, night + 60_000)
    assert len(mended) == 60


def test_incident_log_is_what_the_given_function_does():
    turns, boosts = serve(GIVEN, THREE, 0, 1000, 1500)
    [(at, _, after)] = boosts
    assert at == 1000
    shown = re.findall(r"^\| ([ABN]) \| (\d) → (\d) \| (\d+) → (\d+) \| (\d+) → (\d+) \|$", TEXT, re.MULTILINE)
    had = Counter(name for now, name, _ in turns if now < 1000)
    levels = {name: level for now, name, level in turns if now < 1000}
    assert shown == [
        (name, *map(str, (levels[name], level, 50 * had[name], used, 50 * had[name], served)))
        for name, level, used, served in (job.values() for job in after)
    ]
    levels |= {job["name"]: job["level"] for job in after}
    lines = []
    for now, name, level in turns:
        if 950 <= now <= 1450:
            mark = "" if levels[name] == level or now < 1000 else f"   to level {level} ◀"
            lines.append(f"{now:4}  turn of {name}{mark}")
            levels[name] = level
    assert lines[0] == " 950  turn of N"
    lines[:1] = [" 950  N comes", " 950  turn of N", "1000  BOOST, see the table"]
    assert "```text\n" + "\n".join(lines) + "\n```" in TEXT


def test_solution_stands_alone():
    assert not [source for source in find_answers(SOLUTION).sources.values() if "mini_vllm" in source]
