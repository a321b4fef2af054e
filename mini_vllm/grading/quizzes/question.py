"""A question with one right option, and what each wrong one comes from. Knows no topic. All chapters."""

import html
import random
from collections.abc import Iterable
from dataclasses import dataclass

MOST_OPTIONS, FEWEST_OPTIONS = 4, 3
LETTERS = "abcd"


@dataclass(frozen=True)
class Option:
    """`why`: of the right option, how one gets there; of a wrong one, what somebody did who took it."""

    text: str
    why: str


@dataclass(frozen=True)
class Question:
    """What is given, what is asked, and the options in the order in which they are shown."""

    situation: str
    asks: str
    options: tuple[Option, ...]
    right: int

    def text(self, head: str, foot: str) -> str:
        """For a terminal, and wherever HTML is not shown."""
        options = [f"  {letter}) {option.text}" for letter, option in zip(LETTERS, self.options, strict=False)]
        return "\n".join([head, "", self.situation, "", self.asks, "", *options, "", foot])

    def html(self, head: str, foot: str) -> str:
        """The same, and each option opens to say whether it is right and why: it works without a kernel."""
        options = "".join(
            f"<details><summary>{letter}) {html.escape(option.text)}</summary>"
            f"<p>{'✓' if i == self.right else '✗'} {html.escape(option.why)}</p></details>"
            for i, (letter, option) in enumerate(zip(LETTERS, self.options, strict=False))
        )
        return (
            f'<div class="quiz-question"><p><strong>{html.escape(head)}</strong></p>'
            f'<pre style="white-space:pre-wrap">{html.escape(self.situation)}</pre>'
            f"<p>{html.escape(self.asks)}</p>{options}<p><small>{html.escape(foot)}</small></p></div>"
        )


def multiple_choice(
    rng: random.Random, situation: str, asks: str, right: Option, wrong: Iterable[Option]
) -> Question | None:
    """A question, or None where too many wrong ways happen to give the right answer: then draw another situation."""
    different = {right.text: right}
    for option in wrong:
        different.setdefault(option.text, option)
    options = list(different.values())
    chosen = [right, *rng.sample(options[1:], min(len(options), MOST_OPTIONS) - 1)]
    rng.shuffle(chosen)
    if len(chosen) < FEWEST_OPTIONS:
        return None
    return Question(situation, asks, tuple(chosen), chosen.index(right))
