"""Chapter 4's answers as plain loops, each with switches for a mistake. Knows no message. Chapter 4."""

from collections.abc import Callable
from typing import Any

from mini_vllm.stages.ch04_admit_retire import Scheduler


def plans_with(
    requests: list[tuple],
    budget: int,
    num_blocks: int,
    block_size: int,
    *,
    newcomers_first: bool = False,
    cuts_prompts: bool = True,
    victim: Callable[[list[str], str], str] = lambda running, needs: running[-1],
    passes_over: bool = False,
    to_the_back: bool = False,
    forgets_outputs: bool = False,
    keeps_kv: bool = False,
    piece_must_fit: bool = False,
    slots_ahead: int = 0,
    first_token_late: bool = False,
) -> list[dict[str, int]]:
    """Who gets how many tokens in each step; by default without a mistake. requests: (name, prompt, output)."""
    prompt = {name: prompt for name, prompt, _ in requests}
    known, length = dict(prompt), {name: prompt + output for name, prompt, output in requests}
    computed, owned = dict.fromkeys(known, 0), dict.fromkeys(known, 0)
    waiting, running, plans = list(known), list[str](), list[dict[str, int]]()

    def lacks(name: str, tokens: int) -> int:
        return max(0, -(-(tokens + slots_ahead) // block_size) - owned[name])

    def fits(name: str, tokens: int) -> bool:
        return lacks(name, tokens) <= num_blocks - sum(owned.values())

    def give(name: str, piece: int) -> None:
        owned[name] += lacks(name, computed[name] + piece)
        plan[name] = piece

    def admit() -> None:
        for name in list(waiting):
            left, new = budget - sum(plan.values()), known[name] - computed[name]
            if left <= 0 or evicted or (new > left and not cuts_prompts):
                return
            if fits(name, min(new, left) if piece_must_fit else known[name]):
                waiting.remove(name)
                running.append(name)
                give(name, min(new, left))
            elif not passes_over:
                return

    def evict(name: str) -> None:
        running.remove(name)
        owned[name] = 0
        plan.pop(name, None)
        computed[name] *= keeps_kv
        known[name] = prompt[name] if forgets_outputs else known[name]
        waiting.insert(len(waiting) if to_the_back else 0, name)
        evicted.append(name)

    while waiting or running:
        plan, evicted = dict[str, int](), list[str]()
        if newcomers_first:
            admit()
        for name in [name for name in running if name not in plan]:
            piece = min(known[name] - computed[name], budget - sum(plan.values()))
            while piece > 0 and name in running and not fits(name, computed[name] + piece):
                evict(victim(running, name))
            if piece > 0 and name in running:
                give(name, piece)
        if not newcomers_first:
            admit()
        for name, piece in plan.items():
            was_prompt = computed[name] < prompt[name]
            computed[name] += piece
            if computed[name] == known[name]:
                known[name] += 1
                length[name] += first_token_late and was_prompt and known[name] == prompt[name] + 1
                if known[name] == length[name]:
                    running.remove(name)
                    owned[name] = 0
        plans.append(plan)
    return plans


BECOMES = {
    "arrivals": "waiting",
    "aborted": "finished",
    "preempted": "preempted",
    "scheduled": "running",
    "finished": "finished",
}


def lives_with(
    records: list[dict[str, Any]],
    *,
    becomes: dict[str, str] = BECOMES,
    left_out_waits: bool = False,
    next_step: tuple[str, ...] = (),
    every_event: bool = False,
    only_first: bool = False,
) -> dict[str, list]:
    """[step, state] at each change of state, by id; by default without a mistake. An event not in `becomes` is
    passed over."""
    lives: dict[str, list] = {}
    for record in records:
        for event, state in becomes.items():
            for name in record[event]:
                life = lives.setdefault(name, [])
                latest = life[-1][1] if life else None
                if every_event or (latest != state and not (only_first and [s for _, s in life if s == state])):
                    life.append([record["step"] + (event in next_step), state])
        for name, life in lives.items() if left_out_waits else ():
            if life[-1][1] == "running" and name not in record["scheduled"]:
                life.append([record["step"], "waiting"])
    return lives


def scheduler_with(
    *,
    door: str = "",
    put_back: Callable[[Any, Any], None] | None = None,
    last_first: bool = True,
    looks_at: Callable[[Any], int] | None = None,
) -> type[Scheduler]:
    """A scheduler that passes over whoever is held; by default without a mistake.

    door: what a held head does: "" is passed over, "stops" blocks the line, "enters" is let in all the same.
    looks_at: how many of the line are looked at, at most.
    """

    class Passing(Scheduler):
        held: frozenset[str] = frozenset()

        def hold(self, request_id: str) -> None:
            self.held |= {request_id}

        def grammar_ready(self, request_id: str) -> None:
            self.held -= {request_id}

        def schedule_waiting(self) -> str | None:
            passed_over, reason, looked = [], None, 0
            most = looks_at(self) if looks_at else len(self.waiting)
            while len(self.waiting) and reason is None and looked < most:
                looked += 1
                head = self.waiting.peek()
                if head.request_id not in self.held or door == "enters":
                    reason = self.admit(head)
                elif door == "stops":
                    reason = "grammar"
                else:
                    passed_over.append(self.waiting.pop())
            for request in passed_over[:: -1 if last_first else 1]:
                (put_back or (lambda line, rest: line.put_back(rest)))(self.waiting, request)
            return reason

    return Passing


def abort_with(
    gone: list[str],
    waiting: list[str],
    running: list[str],
    blocks: dict[str, int],
    num_free: int,
    *,
    from_waiting: bool = True,
    from_running: bool = True,
    gives_back: Callable[[int], int] = lambda num_blocks: num_blocks,
    forgets_blocks: bool = True,
) -> list:
    """[waiting, running, blocks, num_free]; by default without a mistake."""
    for name in gone:
        if not from_waiting and name in waiting:
            continue
        num_free += gives_back(blocks.get(name, 0))
        if forgets_blocks:
            blocks = {other: held for other, held in blocks.items() if other != name}
        waiting = [other for other in waiting if other != name]
        running = [other for other in running if other != name or not from_running]
    return [waiting, running, blocks, num_free]
