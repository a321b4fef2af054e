"""Questions about one step of the five requests, each from a run of the real scheduler. Knows step records. Chapter 4.

The five stay; tokens a step, blocks and the rule of admission change from question to question.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass, replace

from mini_vllm.config import SchedulerConfig
from mini_vllm.grading.quizzes.question import Option, Question, multiple_choice
from mini_vllm.sim.driver import simulate
from mini_vllm.sim.examples import five_requests
from mini_vllm.trace.recorder import Trace

ENTERS = {True: "all its known tokens must fit into the free blocks", False: "its next piece must fit"}


@dataclass
class State:
    """One request before a step."""

    name: str
    known: int
    computed: int
    blocks: int

    @property
    def new(self) -> int:
        return self.known - self.computed


@dataclass
class Moment:
    """The five before step `index` of a run: `running` and `line` in the scheduler's order."""

    config: SchedulerConfig
    trace: Trace
    index: int
    running: list[State]
    line: list[State]
    free: int

    @property
    def record(self) -> dict:
        return self.trace.steps[self.index]

    def text(self) -> str:
        budget, blocks = self.config.token_budget, self.config.num_gpu_blocks
        lines = [
            f"{budget} tokens a step, {blocks} blocks of {self.config.block_size}, a seat for everybody.",
            f"To enter, {ENTERS[self.config.reserve_full_isl]}.",
            "",
            f"Before step {self.index}:",
        ]
        lines += [f"  runs   {s.name}  known {s.known:2}  computed {s.computed:2}  blocks {s.blocks}"
                  for s in self.running]  # fmt: skip
        lines += [f"  waits  {s.name}  known {s.known:2}  computed {s.computed:2}" for s in self.line]
        return "\n".join([*lines, f"  free   blocks {self.free}"])


def draw_moment(rng: random.Random, wanted: Callable[[dict], bool]) -> Moment | None:
    """A random moment whose step is `wanted`; None if the run has none."""
    requests, config = five_requests(rng.choice(["full", "full", "chunk"]))
    config = replace(config, max_num_batched_tokens=rng.randint(8, 12), num_gpu_blocks=rng.randint(6, 8))
    trace = simulate(requests, config)
    steps = [i for i, record in enumerate(trace.steps) if len(record["scheduled"]) > 1 and wanted(record)]
    return moment(config, trace, rng.choice(steps), requests) if steps else None


def moment(config: SchedulerConfig, trace: Trace, index: int, requests: list) -> Moment:
    known = {r.request_id: r.prompt_len for r in requests}
    computed, blocks = dict.fromkeys(known, 0), dict.fromkeys(known, 0)
    for past in trace.steps[:index]:
        for name in past["sampled"]:
            known[name] += 1
        for name, (_, after) in past["computed"].items():
            computed[name] = after
        blocks = {name: len(past["blocks"].get(name, ())) for name in known}
    record = trace.steps[index]
    running, line = (
        [State(name, known[name], computed[name], blocks[name]) for name in record[queue]]
        for queue in ("running_before", "waiting_before")
    )
    return Moment(config, trace, index, running, line, record["free_before"])


def draw(rng: random.Random) -> Question | None:
    return rng.choice([ask_plan, ask_plan_of_an_eviction, ask_free, ask_after])(rng)


def as_text(pieces: list) -> str:
    return "  ".join(f"{name}:{tokens}" for name, tokens in pieces) or "nobody"


def cut(order: list[State], budget: int) -> str:
    """Everybody in this order as far as the budget reaches, whatever the blocks say."""
    pieces: list[tuple[str, int]] = []
    for state in order:
        tokens = min(state.new, budget - sum(n for _, n in pieces))
        pieces += [(state.name, tokens)] if tokens else []
    return as_text(pieces)


def ask_plan(rng: random.Random) -> Question | None:
    now = draw_moment(rng, lambda record: bool(record["waiting_before"]) and not record["preempted"])
    if now is None:
        return None
    budget, entered = now.config.token_budget, now.record["running"][len(now.running) :]
    why = f"{', '.join(entered)} fits, and enters" if entered else "nobody can enter"
    right = Option(
        as_text(now.record["scheduled"]),
        f"those who run take their new tokens first, in the order of admission; then {why}; {budget} is all there is.",
    )
    wrong = [
        Option(cut([*now.line, *now.running], budget), "that serves the line before those who run."),
        Option(cut(now.running, budget), "that lets nobody in, though the head of the line can have what is left."),
        Option(cut([*now.running, *now.line], budget), "that does not ask whether the head of the line finds blocks."),
        Option(as_text([(s.name, s.new) for s in [*now.running, *now.line[:1]]]), "that hands out more than the step "
               "has, or does not ask for blocks."),
        Option(as_text([(s.name, 1) for s in [*now.running, *now.line]][:budget]), "that gives everybody one token, "
               "whether they read or write."),
    ]  # fmt: skip
    return multiple_choice(rng, now.text(), f"What is the plan of step {now.index}?", right, wrong)


def ask_plan_of_an_eviction(rng: random.Random) -> Question | None:
    now = draw_moment(rng, lambda record: bool(record["preempted"]))
    if now is None:
        return None
    budget, gone = now.config.token_budget, now.record["preempted"]
    right = Option(
        as_text(now.record["scheduled"]),
        f"a block is missing, so the last of the running gives way: {', '.join(gone)}. Nobody enters in such a step.",
    )
    wrong = [
        Option(cut(now.running, budget), "that needs more blocks than are free."),
        Option(cut(now.running[1:], budget), "that takes the seat of the one who came first."),
        Option(cut([s for s in now.running if s.name not in gone] + now.line, budget), "that lets somebody in, in the "
               "step in which somebody gave way."),
        Option(cut([s for s in now.running[:-1]] + now.running[-1:] + now.line, budget), "that needs more blocks than "
               "are free, and lets somebody in."),
        Option("nobody", "that stops everybody, for want of one block."),
    ]  # fmt: skip
    return multiple_choice(rng, now.text(), f"What is the plan of step {now.index}?", right, wrong)


def ask_free(rng: random.Random) -> Question | None:
    now = draw_moment(rng, lambda record: record["free"] != record["free_before"])
    if now is None:
        return None
    free, size = now.record["free"], now.config.block_size
    held = {name: len(table) for name, table in now.record["blocks"].items()}
    parts = " + ".join(f"{name} {n}" for name, n in held.items())
    right = Option(
        str(free),
        f"with the plan {as_text(now.record['scheduled'])}, {parts} = {sum(held.values())} blocks are held, of "
        f"{now.config.num_gpu_blocks}.",
    )
    tokens = now.record["budget_used"]
    wrong = [
        Option(str(now.free), "that is as many as before the plan."),
        Option(str(max(0, now.free - len(now.record["scheduled"]))), "that takes a block for everybody in the plan."),
        Option(str(max(0, now.free - -(-tokens // size))), f"that takes blocks for the {tokens} tokens of the step in "
               "one go; each request begins its own."),
        Option(str(max(0, free - 1)), "one too few: a sampled token has no KV yet, so it needs no block."),
        Option(str(free + 1), "one too many: a block that is begun counts in full."),
    ]  # fmt: skip
    asks = f"How many blocks are free when step {now.index} is planned?"
    return multiple_choice(rng, now.text(), asks, right, wrong)


def ask_after(rng: random.Random) -> Question | None:
    now = draw_moment(rng, lambda record: not record["finished"])
    if now is None:
        return None
    name, tokens = rng.choice(now.record["scheduled"])
    before = next(s for s in [*now.running, *now.line] if s.name == name)
    computed, sampled = before.computed + tokens, bool(now.record["sampled"].get(name))
    known = before.known + sampled
    reached = "it has reached its known tokens, so one is sampled" if sampled else "its prompt is not through: no token"
    right = Option(f"{known} known, {computed} computed", f"it gets {tokens}: {computed} are computed; {reached}.")
    wrong = [
        Option(f"{before.known + (not sampled)} known, {computed} computed", "a step samples a token for those, and "
               "only those, whose computed tokens reach their known ones."),
        Option(f"{before.known} known, {before.computed} computed", "that is how it was before the step."),
        Option(f"{known} known, {known} computed", "the token that a step samples is known, and its KV is not there."),
        Option(f"{before.known + tokens} known, {computed} computed", "that makes the computed tokens known anew."),
        Option(f"{known} known, {computed + 1} computed", "one too many: the plan says how many are computed."),
    ]  # fmt: skip
    asks = f"The plan of step {now.index} is {as_text(now.record['scheduled'])}. How far is {name} when it has run?"
    return multiple_choice(rng, now.text(), asks, right, wrong)
