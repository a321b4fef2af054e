"""`quiz(7)` asks, `quiz(7, "b")` answers. Knows topics by name and draws nothing itself. All chapters.

A seed gives the same question on every machine. The question shows as HTML whose options open (JupyterLab, Colab, and
the built book, without a kernel), and as plain text everywhere else.
"""

import random
import textwrap
from dataclasses import dataclass
from importlib import import_module

from mini_vllm.grading import progress_file
from mini_vllm.grading.quizzes.question import LETTERS, Question

# topic -> module with draw(rng) -> Question | None
TOPICS = {
    "schedules": "schedules",
    "block tables": "block_tables",
    "roofline": "roofline",
    "five requests": "five_requests",
    "two budgets": "two_budgets",
    "prefix cache": "prefix_cache",
}
BY_SEED = ("schedules", "block tables", "roofline")  # never longer, or quiz(7) would become another question
MOST_TRIES = 1000
WIDTH = 82


@dataclass(frozen=True)
class Asked:
    """A question that is waiting for its answer."""

    question: Question
    call: str  # what asks it again, less the closing bracket

    @property
    def _head(self) -> str:
        return f"{self.call})"

    def __repr__(self) -> str:
        first, *others = list(LETTERS)[: len(self.question.options)]
        return self.question.text(self._head, f"Your answer: {_call(self.call, first)}, or {', '.join(others)}.")

    def _repr_html_(self) -> str:
        foot = f"Open the option that you would choose. To have it counted: {_call(self.call, 'a')}."
        return self.question.html(self._head, foot)


def quiz(seed: int | None = None, answer: str | None = None, *, topic: str | None = None) -> Asked | None:
    """Ask a question: quiz(7). Answer it: quiz(7, "b"). The same seed asks the same question everywhere.

    seed: any whole number; without one a new question is drawn, and it shows its seed.
    topic: "schedules", "block tables", "roofline", "five requests", "two budgets" or "prefix cache"; by default the
        seed chooses one of the first three.
    """
    if seed is None:
        if answer is not None:
            raise ValueError(f"quiz(answer={answer!r}) lacks the seed of the question: write quiz(7, {answer!r})")
        seed = random.SystemRandom().randrange(1000, 10_000)
    if type(seed) is not int:
        raise ValueError(f"quiz({seed!r}) takes a whole number as its seed, for instance quiz(7)")
    if topic is not None and topic not in TOPICS:
        raise ValueError(f"there is no topic {topic!r}; there are {', '.join(map(repr, TOPICS))}")
    chosen = topic or BY_SEED[seed % len(BY_SEED)]
    call = f"quiz({seed}" if topic is None else f'quiz({seed}, topic="{topic}"'
    question = draw(chosen, seed)
    if answer is None:
        return Asked(question, call)
    number = _number(answer, question)
    progress_file.note_quiz(chosen, seed, number == question.right)
    print(_verdict(question, number, call, seed))
    return None


def draw(topic: str, seed: int) -> Question:
    """The question of a seed."""
    module = import_module(f"{__package__}.{TOPICS[topic]}")
    rng = random.Random(f"{topic}/{seed}")  # a text: seeded alike by every Python 3, whatever the hash seed
    questions = (module.draw(rng) for _ in range(MOST_TRIES))
    return next(question for question in questions if question)


def _call(call: str, letter: str) -> str:
    """quiz(7, "b"), or quiz(7, "b", topic="roofline") where the topic was chosen."""
    head, comma, rest = call.partition(", topic=")
    return f'{head}, "{letter}"{comma}{rest})'


def _number(answer: str, question: Question) -> int:
    """Which option is meant, by its letter or by its text."""
    said = str(answer).strip().rstrip(").").lower()
    texts = [option.text.lower() for option in question.options]
    letters = list(LETTERS[: len(texts)])
    for names in (letters, texts):
        if said in names:
            return names.index(said)
    raise ValueError(f"{answer!r} is none of the options; answer with {', '.join(letters[:-1])} or {letters[-1]}")


def _verdict(question: Question, number: int, call: str, seed: int) -> str:
    chosen = question.options[number]
    if number != question.right:
        lines = [_wrapped(f"✗ {LETTERS[number]}) {chosen.text}: {chosen.why}"), f"Another try: {_call(call, '…')}"]
        return "\n".join(lines)
    lines = [_wrapped(f"✓ {LETTERS[number]}) {chosen.text}: {chosen.why}"), "Why not the others:"]
    others = [(letter, o) for letter, o in zip(LETTERS, question.options, strict=False) if o is not chosen]
    lines += [_wrapped(f"  {letter}) {option.text}: {option.why}", "     ") for letter, option in others]
    following = call.replace(str(seed), str(seed + 1), 1)
    return "\n".join([*lines, f"Next: {following})"])


def _wrapped(text: str, indent: str = "  ") -> str:
    return textwrap.fill(text, WIDTH, subsequent_indent=indent, break_on_hyphens=False)
