"""`progress()`: what is done and what comes next, as a table. Knows exercises and points; no answers. All chapters."""

import textwrap
from pathlib import Path

from mini_vllm.grading import progress_file
from mini_vllm.grading.bank import chapter_module, chapters
from mini_vllm.grading.exercise import Exercise

BAR = 20  # characters
PASTE_WIDTH = 76


def progress() -> None:
    """Print what is passed, by chapter, with points, predictions and quiz; and what comes next."""
    state = progress_file.known()
    passed = set(state["passed"])
    exercises = [(chapter, e) for chapter in chapters() for e in chapter_module(chapter).EXERCISES]
    for chapter in chapters():
        mine = [e for c, e in exercises if c == chapter]
        print(_bar(f"chapter {int(chapter[2:])}", mine, passed))
        for exercise in mine:
            done = exercise.exercise_id in passed
            effort = "" if done else f"   {'★' * exercise.stars}, {exercise.minutes} minutes"
            points = f"{exercise.points:>3} points"
            print(f"  {'✓' if done else '·'} {exercise.exercise_id}  {points}  {exercise.title}{effort}")
    unknown = sorted(passed - {e.exercise_id for _, e in exercises})
    if unknown:
        print(f"passed elsewhere, not known to this mini_vllm: {', '.join(unknown)}")
    if len(chapters()) > 1:
        print(_bar("in all", [e for _, e in exercises], passed))
    if state["predictions"]:
        print(f"predictions made: {len(state['predictions'])}")
    if state["quiz"]:
        print(f"quiz: {_quiz(state['quiz'])}")
    following = next((e for _, e in exercises if e.exercise_id not in passed), None)
    if not passed:
        print("Nothing passed yet. A check that says ✓ is noted here.")
    elif following:
        print(f"next: {following.exercise_id}, {following.title} ({following.label})")
    else:
        print("All of them passed.")


def _bar(name: str, exercises: list[Exercise], passed: set[str]) -> str:
    done = [e for e in exercises if e.exercise_id in passed]
    points, out_of = (sum(e.points for e in some) for some in (done, exercises))
    filled = BAR * points // out_of
    bar = "█" * filled + "░" * (BAR - filled)
    return f"{name:<10} {bar} {len(done)} of {len(exercises)} passed, {points} of {out_of} points"


def _quiz(answers: dict[str, bool]) -> str:
    """ "block tables 3 of 4, schedules 1 of 1 right at the first try" """
    topics: dict[str, list[bool]] = {}
    for key, right in sorted(answers.items()):
        topics.setdefault(key.rpartition(" ")[0], []).append(right)
    told = (f"{topic} {sum(tries)} of {len(tries)}" for topic, tries in topics.items())
    return f"{', '.join(told)} right at the first try"


def save_progress(path: str | Path = "progress.json") -> None:
    """Write the progress to a file of yours, and print it as a text to paste. A Colab machine forgets both."""
    progress_file.known()
    try:
        progress_file.write(Path(path).expanduser())
    except OSError as error:
        raise OSError(f"cannot write {path} ({error.strerror}); choose a folder that you may write to") from error
    text = progress_file.as_text()
    lines = "\n".join(textwrap.wrap(text, PASTE_WIDTH, break_on_hyphens=False))
    print(f"{len(progress_file.known()['passed'])} passed, saved to {path}.")
    print("On another machine, give load_progress that file, or paste:")
    print(f'load_progress("""{lines}""")')


def load_progress(source: str | Path = "progress.json") -> None:
    """Add what `save_progress` wrote to a file, or printed as a text; then print the progress."""
    progress_file.load(source)
    progress()
