"""Right answers and known mistakes of chapter 5. Never importable in a graded kernel. Chapter 5."""

from collections.abc import Callable
from typing import Any

from mini_vllm.grading.bank.ch05 import BLOCK_SIZE, BOARD, POOLS, SEATS, TOKEN_BUDGET
from mini_vllm.grading.passing_runs import run_passing
from mini_vllm.grading.reference.ch05_variants import Passing, plan_with, running_with

# --- e1 -------------------------------------------------------------------------------------------------------


def step_with(**slips: Any) -> dict[str, dict]:
    """What happens on the board, in each pool; by default without a mistake. slips: of `plan_with`."""
    running, waiting = ([tuple(request) for request in BOARD[line]] for line in ("running", "waiting"))
    found = {}
    for pool, num_blocks in POOLS.items():
        limits = {"max_num_seqs": SEATS, "token_budget": TOKEN_BUDGET, "input_budget": TOKEN_BUDGET, "draft_slots": 0}
        limits |= {"num_blocks": num_blocks, "block_size": BLOCK_SIZE}
        plan, reason, used, reserved = plan_with(running, waiting, limits, adds_up=True, **slips)
        found[pool] = {
            "enter": [name for name, _ in plan[len(running) :]],
            "tokens_left": TOKEN_BUDGET - used,
            "blocks_reserved": reserved,
            "stopped_by": reason,
        }
    return found


def step() -> dict[str, dict]:
    return step_with()


def blocks_told(as_told: Callable[[int, int], int]) -> dict[str, dict]:
    """The right step with another number: of the blocks of the pool and those reserved."""
    return {pool: of | {"blocks_reserved": as_told(POOLS[pool], of["blocks_reserved"])} for pool, of in step().items()}


RUNNING_RESERVES = sum(-(-(prompt + max_tokens - 1) // BLOCK_SIZE) for _, prompt, max_tokens in BOARD["running"])

# --- e2 -------------------------------------------------------------------------------------------------------


def plan_step(running: list[tuple], waiting: list[tuple], limits: dict[str, int]) -> list:
    return plan_with(running, waiting, limits)


# --- e3 -------------------------------------------------------------------------------------------------------


def pass_with(**slips: Any):
    """The run of the scheduler with these class attributes in place of its own."""
    scheduler_cls = type("Scheduler", (Passing,), slips)
    return lambda requests, config, most_passed: run_passing(scheduler_cls, requests, config, most_passed)


# --- b1 -------------------------------------------------------------------------------------------------------


def plan_running(running: list[dict], budget: int, free: int, block_size: int) -> list:
    return running_with(running, budget, free, block_size)


ANSWERS = {
    "c05-e1": step,
    "c05-e2": plan_step,
    "c05-e3": pass_with(),
    "c05-b1": plan_running,
}

WORST_CASE = "A worst case is prompt + max_tokens − 1 tokens: the KV of the last token that is written is never read."
ROUNDED = "A started block counts in full: blocks are rounded up."
BOTH = "Those who run hold their reservation until they are done; it counts before anybody new is let in."
STRICT = "Nobody is passed over: where the head of the line does not fit, those behind it wait."
WHOLE = "Nothing is cut into pieces before chapter 9: a prompt that is over what is left of the step waits."

MISTAKES = {
    "c05-e1": [
        (
            "Those who run take a token each, before anybody is let in; you have left out their three.",
            lambda: step_with(decode_tokens=0),
        ),
        (f"Your reservations are a token too long. {WORST_CASE}", lambda: step_with(less=0)),
        (ROUNDED, lambda: step_with(rounds_down=True)),
        (
            "You have reserved the prompts only. Here everything is reserved, the output as well.",
            lambda: step_with(reserves_output=False),
        ),
        (BOTH, lambda: step_with(reserves_running=False)),
        (STRICT, lambda: step_with(passes_over=True)),
        (WHOLE, lambda: step_with(cuts=True)),
        (
            "A reservation that takes the pool's last block is turned away there. It fits: the pool may be full.",
            lambda: step_with(may_fill_pool=False),
        ),
        (
            "You have given the blocks that are left. Asked for are those that are reserved.",
            lambda: blocks_told(lambda pool, reserved: pool - reserved),
        ),
        (
            "You have added up the reservations of those who enter. Those who run keep theirs: add them.",
            lambda: blocks_told(lambda pool, reserved: reserved - RUNNING_RESERVES),
        ),
    ],
    "c05-e2": [
        (
            "The draft slots are missing: the input budget must hold the tokens *and* draft_slots for every request "
            "of the plan.",
            lambda *case: plan_with(*case, slots_of=lambda num_planned, num_running: 0),
        ),
        (
            "The newcomer's own draft slots are missing: it takes some too, beside those of the requests planned "
            "before it.",
            lambda *case: plan_with(*case, slots_of=lambda num_planned, num_running: num_planned),
        ),
        (
            "The draft slots are taken once a step. Every request of the plan takes its own.",
            lambda *case: plan_with(*case, slots_of=lambda num_planned, num_running: 1),
        ),
        (
            "Draft slots are counted for newcomers only. Those who run take theirs as well.",
            lambda *case: plan_with(*case, slots_of=lambda num_planned, num_running: num_planned + 1 - num_running),
        ),
        (
            "Draft slots are counted only for those who run. Every request of the plan takes its own, newcomers too.",
            lambda *case: plan_with(*case, slots_of=lambda num_planned, num_running: num_running),
        ),
        (
            "The token budget is not tested. There are two: tokens against token_budget, tokens and draft slots "
            "against input_budget.",
            lambda *case: plan_with(*case, has_token_budget=False),
        ),
        (
            "The draft slots are taken off the token budget, and the input budget is not tested. They stand in the "
            "input beside the tokens: it is the input budget that must hold both.",
            lambda *case: plan_with(*case, slots_in_token_budget=True),
        ),
        (
            "Those who run take a token each of this step, before anybody is let in.",
            lambda *case: plan_with(*case, decode_tokens=0),
        ),
        (f"Reserved is a token too much. {WORST_CASE}", lambda *case: plan_with(*case, less=0)),
        (f"Reserved is a token too little. {WORST_CASE}", lambda *case: plan_with(*case, less=2)),
        (
            "Tokens are added up before they are rounded there. A block belongs to one request: round up one by one.",
            lambda *case: plan_with(*case, rounds_the_sum=True),
        ),
        (
            "A reservation that takes the pool's last block is turned away there. It fits: the pool may be full.",
            lambda *case: plan_with(*case, may_fill_pool=False),
        ),
        (ROUNDED, lambda *case: plan_with(*case, rounds_down=True)),
        (
            "Only prompts are reserved there. Reserve the output as well.",
            lambda *case: plan_with(*case, reserves_output=False),
        ),
        (
            "Of newcomers only the prompt is reserved there. Reserve their output as well, as of those who run.",
            lambda *case: plan_with(*case, newcomers_reserve_output=False),
        ),
        (BOTH, lambda *case: plan_with(*case, reserves_running=False)),
        (STRICT, lambda *case: plan_with(*case, passes_over=True)),
        (WHOLE, lambda *case: plan_with(*case, cuts=True)),
        (
            "A reason is given where nobody is left in the line: all have entered, and the last seat is taken. Then it "
            "is None.",
            lambda *case: plan_with(*case, full_is_a_reason=True),
        ),
        (
            "The plan is right, and so is it that somebody waits; but blocks are looked at before tokens there. The "
            "order is seats, tokens, blocks.",
            lambda *case: plan_with(*case, blocks_first=True),
        ),
        (
            "One request too many: with max_num_seqs of them in the plan nobody enters.",
            lambda *case: plan_with(*case, spare_seat=1),
        ),
    ],
    "c05-e3": [
        (
            "Nobody passes: that is the chapter's scheduler, first come, first served, whatever most_passed says.",
            pass_with(one_more=-99),
        ),
        (
            "There is no end to passing: the head can be passed for ever. Count who passes, and stop at most_passed.",
            pass_with(one_more=10**9),
        ),
        ("One too many passes: where most_passed is reached, nobody else may.", pass_with(one_more=1)),
        (
            "You count the steps in which somebody passes, not those who pass.",
            pass_with(counts="steps"),
        ),
        (
            "The count begins anew in every step, so over many steps there is no bound. It belongs to the head, until "
            "that enters.",
            pass_with(counts="every step anew"),
        ),
        (
            "The count goes on when the head has entered: the next head starts with the passes of the one before. "
            "Every request has a count of its own.",
            pass_with(forgets=False),
        ),
        (
            "Whoever lacks KV stops the walk there: only a head that is too long for the token budget is passed. Both "
            "budgets let those behind pass.",
            pass_with(stops_at=("max_num_seqs", "kv_reservation")),
        ),
        (
            "Whoever is too long for the token budget stops the walk there: only a head that lacks KV is passed. Both "
            "budgets let those behind pass.",
            pass_with(stops_at=("max_num_seqs", "token_budget")),
        ),
        (
            "The reason given is that of the last one looked at. Give the reason of the head, the first who had to "
            "wait.",
            pass_with(tells="last"),
        ),
        (
            "Those who were asked and must wait go back in the wrong order there. put_back puts one in front of all, "
            "so the last one must go back first.",
            pass_with(reverses=True),
        ),
        (
            "most_passed is tested once a step there, and then everybody behind may pass. Test it after each one.",
            pass_with(tests_once=True),
        ),
        (
            "One passes in each step there, and nobody else is asked. Go on as long as most_passed is not reached.",
            pass_with(one_a_step=True),
        ),
        (
            "Blocks are looked at before tokens there. The order of the reasons is seat, tokens, blocks.",
            pass_with(blocks_first=True),
        ),
        (
            f"Reserved is a token too much. {WORST_CASE}",
            pass_with(tokens_to_reserve=lambda self, request: min(request.longest, self.config.max_model_len)),
        ),
        (
            "max_model_len is missing in the reservation: no request grows beyond it, whatever its max_tokens.",
            pass_with(tokens_to_reserve=lambda self, request: request.longest - 1),
        ),
    ],
    "c05-b1": [
        (
            "That is the function as given.",
            lambda *case: running_with(*case, out_of_plan=False, gives_back=lambda planned: 0, shifts="none"),
        ),
        (
            "The victim is out of the plan now, and somebody is still skipped; its tokens are lost, too: what it was "
            "given goes back to the budget.",
            lambda *case: running_with(*case, gives_back=lambda planned: 0, shifts="none"),
        ),
        (
            "Plan and budget are right now, but somebody is skipped: with a victim from before the index, everybody "
            "moves up by one, and the index does not.",
            lambda *case: running_with(*case, shifts="none"),
        ),
        (
            "Nearly. The index moves only if the victim was in the plan. One that had nothing to compute stood before "
            "it as well, and everybody behind moves up all the same.",
            lambda *case: running_with(*case, shifts="if planned"),
        ),
        (
            "Nobody is skipped any more, but the victim is still in the plan, and its tokens are spent.",
            lambda *case: running_with(*case, out_of_plan=False, gives_back=lambda planned: 0),
        ),
        (
            "The victim is gone without a trace but for its tokens: they go back to the budget.",
            lambda *case: running_with(*case, gives_back=lambda planned: 0),
        ),
        (
            "The tokens go back to the budget, but the victim is still in the plan: it would be computed, in blocks "
            "that are somebody else's by now.",
            lambda *case: running_with(*case, out_of_plan=False),
        ),
        (
            "The index moves there for every victim: by one, for a victim that stood before it, and for no other.",
            lambda *case: running_with(*case, shifts="any"),
        ),
        (
            "The index moves there also when the asking one is the victim itself, and the one before it is planned "
            "twice. What stood behind the victim moves up to its place, and the index is right as it is.",
            lambda *case: running_with(*case, shifts="up to"),
        ),
        (
            "Whoever is in the plan is spared there, and another one is evicted. Whom it evicts must stay as it was.",
            lambda *case: running_with(*case, spares_planned=True),
        ),
        (
            "The victim gives one token back. It gives back what it was given: in mid-prompt that is more.",
            lambda *case: running_with(*case, gives_back=lambda planned: 1),
        ),
        (
            "The request for which room is made is measured again with the tokens that came back. It keeps its piece; "
            "those behind it find the larger budget.",
            lambda *case: running_with(*case, measures_again=True),
        ),
    ],
}
