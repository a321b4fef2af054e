"""Right answers and known mistakes of chapter 6. Never importable in a graded kernel. Chapter 6."""

from functools import partial
from typing import Any

from mini_vllm.grading.bank.ch06 import use_tables
from mini_vllm.grading.reference import ch06_variants as variants
from mini_vllm.grading.step_traces import run_scheduler
from mini_vllm.stages.ch05_two_budgets import Scheduler as Stage5


def tables(*case: Any, **rules: Any) -> list[dict]:
    return use_tables(partial(variants.Tables, **rules), *case)


C_BEHIND = "All is right but C's blocks: they are put behind the free ones there, and they go to the front."
ROUNDED_DOWN = "Blocks are rounded down there. A block that is only started is needed in full."
ALL_ARE_ENOUGH = (
    "The new tokens are asked for on top of all known ones there. They are among them: a newcomer needs the blocks of "
    "num_known, not more."
)
FROM_THE_TAIL = "Blocks are taken from the tail of the queue. They are taken from its head."
NOT_NUMBERS = "The lowest numbers are taken there. The queue knows an order, not numbers: take from its head."
ONLY_GUARDS = (
    "Nothing is dropped below 0 now. That hides the fault: the fork and the end still count other blocks than those in "
    "the window, so a block is lost, or freed while somebody looks at it."
)
ONE_LIST = "Both answers have one and the same list there: what one appends stands in the table of the other. Copy it."
END_AS_OFTEN = (
    "The end drops a block as often as it stands in the table there, also where it was written over or given back long "
    "ago. An answer looks at a block once, and only at those in its window."
)

ANSWERS = {
    "c06-e1": variants.pool,
    "c06-e2": variants.allocate_with,
    "c06-e3": partial(run_scheduler, variants.Peak),
    "c06-b1": tables,
}

MISTAKES = {
    "c06-e1": [
        (
            "A table is given back head first there. It is the other way round: its last block first, so that it is "
            "the head of the queue afterwards.",
            partial(variants.pool, variants.HeadFirst),
        ),
        (
            "Freed blocks go to the back of the queue there. Nothing is cached in them, so they go to the front.",
            partial(variants.pool, variants.ToTheBack),
        ),
        (NOT_NUMBERS, partial(variants.pool, variants.LowestFirst)),
        (
            "D's blocks are put into the order of their numbers there. A table keeps the order in which its blocks "
            "were taken.",
            partial(variants.pool, table=sorted),
        ),
        (
            "D and the free queue are in the order of their numbers there. The queue knows an order, not numbers.",
            partial(variants.pool, table=sorted, queue=sorted),
        ),
        (
            "All is right but C's blocks: they are given back first block first there. The last one goes back first.",
            partial(variants.pool, queue=sorted),
        ),
        (C_BEHIND, partial(variants.pool, queue=lambda queue: [*queue[2:], *queue[:2]])),
        (C_BEHIND, partial(variants.pool, queue=lambda queue: [*queue[2:], *queue[1::-1]])),
        (
            "Every piece starts a block of its own there. It goes on in the last block of the table as long as that "
            "has room.",
            partial(variants.pool, variants.BlocksAPiece),
        ),
        (
            "The slot counts blocks from 1. Block 0 has slots too, though nobody uses them: block × 4 + offset.",
            partial(variants.pool, slot="block from 0"),
        ),
        (
            "The slot is the token's own number: that would need blocks in one piece from slot 0 on.",
            partial(variants.pool, slot="token"),
        ),
        (
            "The slot is the first of its block there. Tokens count from 0: token 9 is the tenth, and 9 % 4 is 1.",
            partial(variants.pool, slot="token from 1"),
        ),
        (
            "The slot counts on from the first block of D, as if its blocks lay side by side. Look up the entry of "
            "the table first.",
            partial(variants.pool, slot="first block"),
        ),
        (
            "The slot is in the wrong entry of the table: entries count from 0, and 9 // 4 is 2.",
            partial(variants.pool, slot="entry from 1"),
        ),
    ],
    "c06-e2": [
        (
            "Only the tokens of this step are asked for: a newcomer enters with room for its first few, and may find "
            "none for the others. All num_known tokens must fit.",
            partial(variants.allocate_with, full=False),
        ),
        (
            "A newcomer takes the blocks of all its known tokens at once. They must be free; taken are only those of "
            "num_new.",
            partial(variants.allocate_with, takes_all=True),
        ),
        (ROUNDED_DOWN, partial(variants.allocate_with, rounding=("down", "down"))),
        (ROUNDED_DOWN, partial(variants.allocate_with, rounding=("down", "down"), at_least_0=True)),
        (ROUNDED_DOWN, partial(variants.allocate_with, rounding=("down", "up"))),
        (ROUNDED_DOWN, partial(variants.allocate_with, rounding=("down", "up"), at_least_0=True)),
        (
            "The blocks of all known tokens are rounded down there. A block that is only started is needed in full.",
            partial(variants.allocate_with, rounding=("up", "down")),
        ),
        (
            "Dividing down and adding 1 is one too many where the tokens just fill their blocks: 8 tokens are two "
            "blocks of 4.",
            partial(variants.allocate_with, rounding=("plus one", "plus one")),
        ),
        (ALL_ARE_ENOUGH, partial(variants.allocate_with, adds_piece="blocks")),
        (ALL_ARE_ENOUGH, partial(variants.allocate_with, adds_piece="tokens")),
        (
            "The new tokens are counted by themselves, as if the last block were full. Count the blocks of computed "
            "and new tokens together, less those it has.",
            partial(variants.allocate_with, own_room=False),
        ),
        (
            "The blocks it has are forgotten: a running request gets all its blocks again.",
            partial(variants.allocate_with, counts_owned=False),
        ),
        (
            "The watermark is ignored there. So many blocks must be left over.",
            partial(variants.allocate_with, head_room="none"),
        ),
        (
            "The watermark is asked for beside num_new only. It must be left over beside all known tokens too.",
            partial(variants.allocate_with, head_room="piece"),
        ),
        (
            "Exactly enough is refused there: if as many blocks are free as it takes, it fits.",
            partial(variants.allocate_with, strict=True),
        ),
        (FROM_THE_TAIL, partial(variants.allocate_with, order="tail")),
        (FROM_THE_TAIL, partial(variants.allocate_with, order="tail in order")),
        (
            f"{FROM_THE_TAIL} (And where none is taken, queue[-0:] is the whole queue.)",
            partial(variants.allocate_with, order="minus take"),
        ),
        (NOT_NUMBERS, partial(variants.allocate_with, order="sorted")),
        (NOT_NUMBERS, partial(variants.allocate_with, order="lowest")),
        (
            "Where it does not fit, it gets what there is. It gets None, and nothing has changed.",
            partial(variants.allocate_with, takes_what_is_there=True),
        ),
        (
            "An empty queue is refused even where no block is needed. The last block still has room: the answer is an "
            "empty list, not None.",
            partial(variants.allocate_with, needs_a_block=True),
        ),
        (
            "The watermark's blocks are taken as well. They stay free.",
            partial(variants.allocate_with, takes_watermark=True),
        ),
    ],
    "c06-e3": [
        (
            "That is stage 5: it reserves the worst case of everybody, as if all were at their longest at once. Some "
            "will be gone by then.",
            partial(run_scheduler, Stage5),
        ),
        (
            "The last token counts there too. Its KV is never computed: a request lies in KV as long as t + k is "
            "below its longest.",
            partial(run_scheduler, variants.LastTokenToo),
        ),
        (
            "max_model_len is forgotten there: an output ends with it too, whatever max_tokens says. A request's "
            "longest is the smaller of request.longest and max_model_len.",
            partial(run_scheduler, variants.ModelLengthForgotten),
        ),
        (
            "Those behind a head that does not fit are let in. The head blocks the line.",
            partial(run_scheduler, variants.PassesOver),
        ),
    ],
    "c06-b1": [
        ("That is the function as given.", partial(tables, fork="entries", end="table")),
        (
            "The fork is right now. But the end still drops every block of the table, also one that was copied and "
            "given back long ago: it is freed while somebody else looks at it.",
            partial(tables, end="table"),
        ),
        (
            "The end is right now. But the fork still counts every entry, so a block that stands in a table twice is "
            "counted twice, and dropped once: it never comes back.",
            partial(tables, fork="entries"),
        ),
        (
            "No block is counted twice now, and the end drops what is in the window. But the fork counts all blocks "
            "of the table, also those that the parent has given back: they never come back.",
            partial(tables, fork="table"),
        ),
        (
            "Fork and end agree now, but on the whole table: whoever has copied a block still has the old one in its "
            "table, and drops it again at its end.",
            partial(tables, fork="table", end="table"),
        ),
        *((END_AS_OFTEN, partial(tables, fork=fork, end="entries")) for fork in ("held", "entries", "table")),
        *(
            (ONLY_GUARDS, partial(tables, fork=fork, end=end, guard=True))
            for fork in ("held", "entries", "table")
            for end in ("entries", "table")
        ),
        (ONE_LIST, partial(tables, shares=True)),
        (ONE_LIST, partial(tables, fork="entries", end="table", shares=True)),
        (
            "Nothing is freed twice now, because nothing is freed at the end.",
            partial(tables, end="nothing"),
        ),
        (
            "The copy keeps its look at the old block there, and nobody will ever drop it: it has left the window.",
            partial(tables, at_copy=False),
        ),
    ],
}
