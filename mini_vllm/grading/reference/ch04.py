"""Right answers and known mistakes of chapter 4. Never importable in a graded kernel. Chapter 4."""

from functools import partial
from typing import Any

from mini_vllm.config import SchedulerConfig
from mini_vllm.grading.bank.ch04 import BLOCK_SIZE, BOARD, BUDGET, NUM_BLOCKS
from mini_vllm.grading.event_runs import run_with_grammars
from mini_vllm.grading.reference.ch04_variants import (
    BECOMES,
    abort_with,
    lives_with,
    plans_with,
    scheduler_with,
)
from mini_vllm.sim.driver import SimRequest, simulate
from mini_vllm.viz.state_diagram import moves

# --- e1 -------------------------------------------------------------------------------------------------------


def plans() -> list[dict[str, int]]:
    """The finished scheduler on the exercise's four requests."""
    config = SchedulerConfig(
        max_num_seqs=len(BOARD),
        max_num_batched_tokens=BUDGET,
        num_gpu_blocks=NUM_BLOCKS,
        block_size=BLOCK_SIZE,
        max_model_len=32,
    )
    requests = [SimRequest(name, *lengths) for name, lengths in BOARD.items()]
    return [dict(record["scheduled"]) for record in simulate(requests, config).steps]


def by_hand(**mistake: Any) -> list[dict[str, int]]:
    return plans_with([(name, *lengths) for name, lengths in BOARD.items()], BUDGET, NUM_BLOCKS, BLOCK_SIZE, **mistake)


# --- e2 -------------------------------------------------------------------------------------------------------


def lives(records: list[dict[str, Any]]) -> dict[str, list]:
    """The chapter's own changes of state, collected by request."""
    steps = [{**record, "scheduled": [[name, 1] for name in record["scheduled"]]} for record in records]
    found: dict[str, list] = {}
    for move in moves({"header": {}, "steps": steps}):
        found.setdefault(move.request_id, []).append([move.step, move.target])
    return found


# --- e3 -------------------------------------------------------------------------------------------------------


def my_scheduler(*case: Any) -> list[dict]:
    return run_with_grammars(scheduler_with(), *case)


def scheduled_by(*case: Any, **mistake: Any) -> list[dict]:
    return run_with_grammars(scheduler_with(**mistake), *case)


# --- b1 -------------------------------------------------------------------------------------------------------


def abort(*case: Any) -> list:
    return abort_with(*case)


ANSWERS = {
    "c04-e1": plans,
    "c04-e2": lives,
    "c04-e3": my_scheduler,
    "c04-b1": abort,
}

MISTAKES: dict[str, list[tuple]] = {
    "c04-e1": [
        (
            "Whoever waits is served before those who run there. It is the other way round: first all of running.",
            partial(by_hand, newcomers_first=True),
        ),
        (
            "Prompts enter whole there, or not at all. They are cut: the head takes what is left of the budget.",
            partial(by_hand, cuts_prompts=False),
        ),
        (
            "The first of the running is evicted there. It is the last, the one that was admitted most recently.",
            partial(by_hand, victim=lambda running, needs: running[0]),
        ),
        (
            "The one who needs a block gives way itself there. The last of the running does.",
            partial(by_hand, victim=lambda running, needs: needs),
        ),
        (
            "A head that does not fit is passed over there, and somebody behind it enters. Nobody behind it is tried.",
            partial(by_hand, passes_over=True),
        ),
        (
            "Who is evicted goes to the end of the line there. It goes to the head.",
            partial(by_hand, to_the_back=True),
        ),
        (
            "Who comes back computes only its prompt there. It computes all its known tokens, its output so far too.",
            partial(by_hand, forgets_outputs=True),
        ),
        (
            "Who is evicted keeps its computed tokens there. They are 0 again: their KV is gone with its blocks.",
            partial(by_hand, keeps_kv=True),
        ),
        (
            "Whoever enters needs blocks only for its piece there. All its known tokens must fit into the free blocks.",
            partial(by_hand, piece_must_fit=True),
        ),
        (
            "A block is taken one step early there, for the token that the step samples. A sampled token is known, not "
            "computed: its KV comes with the next step.",
            partial(by_hand, slots_ahead=1),
        ),
        (
            "The end of a prompt gives no token there. The step that computes the last token of a prompt samples the "
            "first one of the output.",
            partial(by_hand, first_token_late=True),
        ),
    ],
    "c04-e2": [
        (
            "Whoever runs and is left out of a step waits there. It still runs: it keeps its seat and its blocks.",
            partial(lives_with, left_out_waits=True),
        ),
        (
            'Who is evicted is "waiting" there. It is "preempted": it stands in the same line, but had a seat before.',
            partial(lives_with, becomes=BECOMES | {"preempted": "waiting"}),
        ),
        (
            "Evictions are missing: who was preempted goes on running there.",
            partial(lives_with, becomes={k: v for k, v in BECOMES.items() if k != "preempted"}),
        ),
        (
            "Aborts are missing: whose user hung up is finished.",
            partial(lives_with, becomes={k: v for k, v in BECOMES.items() if k != "aborted"}),
        ),
        (
            "Something is written down in every step with somebody scheduled. Write only when the state changes.",
            partial(lives_with, every_event=True),
        ),
        (
            "Whoever comes back from an eviction is never running again there.",
            partial(lives_with, only_first=True),
        ),
        (
            "Who is done counts as finished one step late there. It leaves in the step of its last token.",
            partial(lives_with, next_step=("finished",)),
        ),
    ],
    "c04-e3": [
        (
            "The first who is held stops the line there: nobody behind it is looked at. It should be passed over.",
            partial(scheduled_by, door="stops"),
        ),
        (
            "Who is held enters all the same there.",
            partial(scheduled_by, door="enters"),
        ),
        (
            "Who is passed over loses its place there: it goes to the end of the line. It goes back in front.",
            partial(scheduled_by, put_back=lambda line, request: line.add(request), last_first=False),
        ),
        (
            "When several are passed over, they come back in the wrong order there. put_back puts one in front of all, "
            "so the last one must be put back first.",
            partial(scheduled_by, last_first=False),
        ),
        (
            "Only as many of the line are looked at as seats are free, and those who are held use up the looks.",
            partial(scheduled_by, looks_at=lambda self: self.config.max_num_seqs - len(self.running)),
        ),
    ],
    "c04-b1": [
        (
            "That is the function as given.",
            partial(abort_with, from_waiting=False, gives_back=lambda num_blocks: 0),
        ),
        (
            "The blocks come back now. But who waits and hangs up stays in the line: it will get a seat, and "
            "blocks, and be served for nobody.",
            partial(abort_with, from_waiting=False),
        ),
        (
            "The line is right now. But the blocks of those who ran are still nobody's: taken from the table, and "
            "never given back.",
            partial(abort_with, gives_back=lambda num_blocks: 0),
        ),
        (
            "Blocks are given back now, but they stay in the table, too: whoever hangs up twice gives them back twice.",
            partial(abort_with, forgets_blocks=False),
        ),
        (
            "One block comes back for each request there. All its blocks do.",
            partial(abort_with, gives_back=bool),
        ),
        (
            "Four blocks come back for each that ran there, as in the incident. Give back as many as it holds.",
            partial(abort_with, gives_back=lambda num_blocks: 4 * bool(num_blocks)),
        ),
        (
            "Blocks come back, but the seat does not: it stays in running.",
            partial(abort_with, from_running=False),
        ),
    ],
}
