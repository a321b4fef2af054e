"""Chapter 5's answers as plain loops, each with switches for a mistake. Knows no message. Chapter 5."""

from collections import Counter
from collections.abc import Callable

from mini_vllm.request import RUNNING
from mini_vllm.stages.ch05_two_budgets import Scheduler as TwoBudgets


def plan_with(
    running: list[tuple],
    waiting: list[tuple],
    limits: dict[str, int],
    *,
    decode_tokens: int = 1,
    less: int = 1,
    rounds_down: bool = False,
    reserves_output: bool = True,
    reserves_running: bool = True,
    slots_of: Callable[[int, int], int] = lambda num_planned, num_running: num_planned + 1,
    has_token_budget: bool = True,
    passes_over: bool = False,
    cuts: bool = False,
    blocks_first: bool = False,
    spare_seat: int = 0,
    slots_in_token_budget: bool = False,
    newcomers_reserve_output: bool = True,
    may_fill_pool: bool = True,
    rounds_the_sum: bool = False,
    full_is_a_reason: bool = False,
    adds_up: bool = False,
) -> list:
    """[plan, reason]; by default without a mistake. Requests are (id, prompt_len, max_tokens).

    less: tokens of a request whose KV is never there. slots_of: the number of requests whose draft slots a newcomer
    must leave free, when so many are planned and so many of them run. adds_up: give the tokens used and the blocks
    reserved as well.
    """

    def reservation(request: tuple, has_output: bool = True) -> float:
        _, prompt_len, max_tokens = request
        tokens = prompt_len + (max_tokens - less if reserves_output and has_output else 0)
        if rounds_the_sum:
            return tokens / limits["block_size"]
        return tokens // limits["block_size"] if rounds_down else -(-tokens // limits["block_size"])

    plan = [[request[0], 1] for request in running]
    used = decode_tokens * len(running)
    reserved = sum(map(reservation, running)) if reserves_running else 0
    first_reason = None
    for request in waiting:
        name, prompt_len, _ = request
        slots = limits["draft_slots"] * slots_of(len(plan), len(running))
        rooms = [limits["input_budget"] - used - slots]
        rooms += [limits["token_budget"] - used] if has_token_budget else []
        if slots_in_token_budget:
            rooms = [limits["token_budget"] - used - slots]
        need = reservation(request, newcomers_reserve_output)
        tokens = min([prompt_len, *rooms]) if cuts and min(rooms) > 0 else prompt_len
        tests = [
            ("max_num_seqs", len(plan) >= limits["max_num_seqs"] + spare_seat),
            ("token_budget", tokens > min(rooms)),
            ("kv_reservation", reserved + need > limits["num_blocks"] - (not may_fill_pool)),
        ]
        if blocks_first:
            tests[1:] = tests[:0:-1]
        reason = next((reason for reason, fails in tests if fails), None)
        if reason is None:
            plan.append([name, tokens])
            used += tokens
            reserved += need
            continue
        first_reason = first_reason or reason
        if not passes_over or reason == "max_num_seqs":
            break
    if full_is_a_reason and len(plan) >= limits["max_num_seqs"]:
        first_reason = first_reason or "max_num_seqs"
    return [plan, first_reason, used, reserved] if adds_up else [plan, first_reason]


def running_with(
    running: list[dict],
    budget: int,
    free: int,
    block_size: int,
    *,
    out_of_plan: bool = True,
    gives_back: Callable[[int], int] = lambda planned: planned,
    shifts: str = "before",
    measures_again: bool = False,
    spares_planned: bool = False,
) -> list:
    """[plan, budget, evicted]; by default without a mistake.

    shifts: which victims move the index: those "before" it, those before it "if planned", those "up to" it, "any",
    or "none".
    """
    plan: dict[str, int] = {}
    evicted: list[str] = []
    index = 0
    while -len(running) <= index < len(running) and budget > 0:
        request = running[index]
        open_tokens = request["known"] - request["computed"]
        n = min(open_tokens, budget)
        if n == 0:
            index += 1
            continue
        while (need := -(-(request["computed"] + n) // block_size) - request["blocks"]) > free:
            spared = plan if spares_planned else ()
            victim = max((r for r in running if r["id"] not in spared), key=lambda r: r["priority"])
            at = running.index(victim)
            del running[at]
            free += victim["blocks"]
            evicted.append(victim["id"])
            before = at < index
            moves = {"before": before, "if planned": before and victim["id"] in plan, "up to": at <= index, "any": True}
            index -= moves.get(shifts, False)
            if victim is request:
                break
            if victim["id"] in plan:
                budget += gives_back(plan[victim["id"]])
                if out_of_plan:
                    del plan[victim["id"]]
            if measures_again:
                n = min(open_tokens, budget)
        else:
            free -= need
            request["blocks"] += need
            plan[request["id"]] = n
            budget -= n
            index += 1
    return [plan, budget, evicted]


class Passing(TwoBudgets):
    """Small ones may pass the head of the line, `most_passed` of them at most; the other attributes are mistakes."""

    most_passed = 0
    stops_at: tuple[str, ...] = ("max_num_seqs",)
    one_more = 0
    counts = "requests"  # or "steps", or "every step anew"
    forgets = True  # the head that has entered takes its count along
    tells = "head"  # or "last": whose reason is given
    tests_once = False  # most_passed, when the head is found
    one_a_step = False
    reverses = False  # the order of those who were asked and wait
    blocks_first = False

    def __init__(self, config):
        super().__init__(config)
        self.passed: Counter[str] = Counter()

    def start(self, request):
        self.waiting.remove(request)
        request.transition_to(RUNNING)
        self.running.append(request)

    def admit(self, request):
        reserved = sum(map(self.blocks_to_reserve, [*self.running, request]))
        has_seat = len(self.running) < self.config.max_num_seqs
        if self.blocks_first and has_seat and reserved > self.config.num_gpu_blocks:
            return "kv_reservation"
        return super().admit(request)

    def schedule_waiting(self):
        head, reasons, passed, aside = None, [], 0, []
        if self.counts == "every step anew":
            self.passed.clear()
        for request in list(self.waiting):
            key = head.request_id if head and self.forgets else ""
            before = passed if self.tests_once else 0
            if head and self.passed[key] - before >= self.most_passed + self.one_more:
                break
            if reason := self.admit(request):
                head, reasons = head or request, [*reasons, reason]
                if reason in self.stops_at:
                    break
                aside.append(request)
            elif head:
                passed += 1
                self.passed[key] += self.counts != "steps" or passed == 1
                if self.one_a_step:
                    break
        for request in aside if self.reverses else ():
            self.waiting.remove(request)
            self.waiting.put_back(request)
        return reasons[0 if self.tells == "head" else -1] if reasons else None
