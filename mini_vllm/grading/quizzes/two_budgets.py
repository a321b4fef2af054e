"""Questions about one step under a token budget and a KV budget, by reservation. Knows no scheduler. Chapter 5."""

import random
from dataclasses import dataclass

from mini_vllm.grading.quizzes.question import Option, Question, multiple_choice

BLOCK_SIZE = 16
RULE = "A prompt enters whole; everything is reserved: prompt + max_tokens − 1."
GATES = {
    "tokens": "its prompt is over what is left of the token budget",
    "blocks": "its reservation is over what is left of the pool",
}


@dataclass(frozen=True)
class Asking:
    """A request that runs or waits."""

    name: str
    prompt: int
    max_tokens: int

    def blocks(self, output: bool = True) -> int:
        """Its reservation, with its output or, by mistake, without."""
        return -(-(self.prompt + (self.max_tokens - 1 if output else 0)) // BLOCK_SIZE)


@dataclass(frozen=True)
class Step:
    """Who runs, who waits, and what a step may hand out."""

    running: list[Asking]
    waiting: list[Asking]
    budget: int
    pool: int

    def entering(self, output: bool = True) -> list[tuple[Asking, int, int]]:
        """Who enters, each with the tokens and the blocks that were left before it."""
        tokens, blocks = self.budget - len(self.running), self.pool - sum(r.blocks(output) for r in self.running)
        found = []
        for r in self.waiting:
            if r.prompt > tokens or r.blocks(output) > blocks:
                break
            found.append((r, tokens, blocks))
            tokens, blocks = tokens - r.prompt, blocks - r.blocks(output)
        return found

    def left(self) -> tuple[int, int]:
        """Tokens and blocks in the end."""
        entered = [r for r, _, _ in self.entering()]
        tokens = self.budget - len(self.running) - sum(r.prompt for r in entered)
        return tokens, self.pool - sum(r.blocks() for r in [*self.running, *entered])

    def text(self) -> str:
        rows = [("runs", r) for r in self.running] + [("waits", r) for r in self.waiting]
        table = [f"  {word:<6} {r.name}   {r.prompt:>6,}   {r.max_tokens:>10,}" for word, r in rows]
        limits = f"{self.budget:,} tokens a step, {self.pool} blocks of {BLOCK_SIZE}, seats enough."
        return "\n".join(
            [limits, RULE, "Those who run have read their prompts.", "", "             prompt   max_tokens", *table]
        )


def draw(rng: random.Random) -> Question | None:
    return rng.choice([ask_who, ask_left, ask_gate, ask_steps])(rng)


def draw_step(rng: random.Random) -> Step:
    sizes = [(rng.randint(4, 240) * 10, rng.randint(2, 60) * 10) for _ in range(rng.randint(4, 6))]
    requests = [Asking(name, *size) for name, size in zip("ABCDEF", sizes, strict=False)]
    running, waiting = requests[:2], requests[2:]
    carried = rng.randint(1, len(waiting))  # about so many fit
    budget = sum(r.prompt for r in waiting[:carried]) + rng.choice([-1, 1, 2, 40, 300])
    pool = sum(r.blocks() for r in [*running, *waiting[:carried]]) + rng.choice([-3, 0, 1, 30])
    return Step(running, waiting, max(budget, *(r.prompt for r in waiting)), pool)


def _names(requests: list[Asking]) -> str:
    return " ".join(r.name for r in requests) or "nobody"


def ask_who(rng: random.Random) -> Question | None:
    step = draw_step(rng)
    entered = [r for r, _, _ in step.entering()]
    right = Option(
        _names(entered),
        "those who run take a token each and their reservations; then the line, from its head, until one fails: its "
        "prompt against the tokens left, its reservation against the blocks left.",
    )
    tokens, blocks = step.left()
    behind = [r for r in step.waiting[len(entered) + 1 :] if r.prompt <= tokens and r.blocks() <= blocks]
    alone = Step([], step.waiting, step.budget, step.pool)
    wrong = [
        Option(_names([*entered, *behind[:1]]), "that passes over the head of the line; where it must wait, all wait."),
        Option(_names([r for r, _, _ in alone.entering()]), "that forgets those who run, and what they have reserved."),
        Option(_names([r for r, _, _ in step.entering(output=False)]), "that reserves prompts only."),
        Option(_names(step.waiting), "that looks at no budget."),
        Option(_names(step.waiting[: len(entered) + 1]), "that lets one too many in: it is tested before, not after."),
        Option("nobody", "that waits until nobody runs."),
    ]
    return multiple_choice(rng, step.text(), "Who enters in this step?", right, wrong)


def ask_left(rng: random.Random) -> Question | None:
    step = draw_step(rng)
    entered = step.entering()
    if len(entered) < 2:
        return None
    (before, _, _), (last, tokens, blocks) = entered[-2:]

    def pair(some_tokens: int, some_blocks: int, why: str) -> Option:
        return Option(f"{some_tokens:,} tokens, {some_blocks} blocks", why)

    right = pair(tokens, blocks, "all who run and all who entered before it are taken off, and it is not itself.")
    wrong = [
        pair(tokens - last.prompt, blocks - last.blocks(), f"that is what is left after {last.name} has entered."),
        pair(tokens + before.prompt, blocks + before.blocks(), f"that is what was left before {before.name} entered."),
        pair(tokens + len(step.running), blocks, "those who run take a token each of the step."),
        pair(tokens, blocks + sum(r.blocks() for r in step.running), "those who run have their reservations."),
    ]
    asks = f"What is left of the two budgets when {last.name} is looked at?"
    return multiple_choice(rng, step.text(), asks, right, wrong)


def ask_gate(rng: random.Random) -> Question | None:
    step = draw_step(rng)
    entered = step.entering()
    if len(entered) == len(step.waiting):
        return None
    head, (tokens, blocks) = step.waiting[len(entered)], step.left()
    said = {
        "tokens": f"{head.name}'s prompt is {head.prompt:,}, {tokens:,} tokens are left.",
        "blocks": f"{head.name} would reserve {head.blocks()} blocks, {blocks} are left.",
    }
    gate = "tokens" if head.prompt > tokens else "blocks"
    other = "blocks" if gate == "tokens" else "tokens"
    late = "tokens are tested first. " if gate == "tokens" and head.blocks() > blocks else ""
    right = Option(GATES[gate], f"{said[gate]} Seats, tokens, blocks: the first gate that is shut is the one named.")
    wrong = [
        Option(GATES[other], f"{late}{said[other]}"),
        Option("there is no seat", "there are seats enough."),
        Option("somebody behind it would fit better", "nobody behind the head of the line is asked."),
    ]
    return multiple_choice(rng, step.text(), f"{head.name} does not enter in this step. Why?", right, wrong)


def ask_steps(rng: random.Random) -> Question | None:
    budget = rng.choice([256, 512, 1024, 2048])
    prompt, output = rng.randint(1, 4 * budget), rng.randint(2, 400)
    chunks = -(-prompt // budget)
    right = Option(f"{chunks + output - 1:,}", f"{chunks} for the prompt, the last of which gives the first token; "
                   f"{output - 1} more for the other tokens.")  # fmt: skip
    wrong = [
        Option(f"{chunks + output:,}", "one too many: the step that reads the end of the prompt writes already."),
        Option(f"{prompt + output:,}", "that reads a prompt token by token; a step reads as many as the budget has."),
        Option(f"{output:,}", "that reads the prompt in a single step, whatever the budget."),
        Option(f"{-(-(prompt + output) // budget):,}", "that writes many tokens in one step; they come one by one."),
    ]
    situation = (
        f"{budget:,} tokens a step. A prompt that is longer is read in pieces of {budget:,}.\nNobody else is there."
    )
    asks = f"How many steps does a request take with {prompt:,} prompt tokens and an answer of {output:,} tokens?"
    return multiple_choice(rng, situation, asks, right, wrong)
