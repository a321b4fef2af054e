"""Right answers and known mistakes of chapter 6. Never importable in a graded kernel. Chapter 6."""

from functools import partial
from typing import Any

from mini_vllm.config import SchedulerConfig
from mini_vllm.core.kv_cache_manager import KVCacheManager
from mini_vllm.grading.bank.ch06 import ASKED, BLOCK_SIZE, EVENTS, POOL_BLOCKS, use_tables
from mini_vllm.grading.reference import ch06_variants as variants
from mini_vllm.grading.step_traces import run_scheduler
from mini_vllm.request import Request
from mini_vllm.stages.ch05_two_budgets import Scheduler as Stage5

# --- e1 -------------------------------------------------------------------------------------------------------


class HeadFirst(KVCacheManager):
    """Gives a table back in its own order."""

    def free(self, request):
        self.block_pool.free(self.req_to_blocks.pop(request.request_id, []))


class ToTheBack(KVCacheManager):
    """Freed blocks go behind those that are free already."""

    def free(self, request):
        for block in self.req_to_blocks.pop(request.request_id, [])[::-1]:
            self.block_pool.ref_count[block] = 0
            self.block_pool._link(self.block_pool._prev[0], block)


class LowestFirst(KVCacheManager):
    """Takes the lowest numbers that are free."""

    def allocate_slots(self, request, num_new_tokens, **how):
        queue = sorted(self.block_pool.free_queue())
        for block in queue:
            self.block_pool._unlink(block)
        for block in reversed(queue):
            self.block_pool._link(0, block)
        return super().allocate_slots(request, num_new_tokens, **how)


class BlocksAPiece(KVCacheManager):
    """Starts a new block for every piece."""

    def allocate_slots(self, request, num_new_tokens, **how):
        new = self.block_pool.take(self.config.blocks_for(num_new_tokens))
        self.req_to_blocks.setdefault(request.request_id, []).extend(new)
        return new


def pool(manager_cls: type[KVCacheManager] = KVCacheManager, slot: str = "right") -> dict[str, Any]:
    """The events on a real manager. slot: or "block from 0", "token", "first block", "entry from 1"."""
    config = SchedulerConfig(num_gpu_blocks=POOL_BLOCKS, block_size=BLOCK_SIZE, max_model_len=64)
    manager = manager_cls(config)
    requests: dict[str, Request] = {}
    for name, num_tokens in EVENTS:
        request = requests.setdefault(name, Request(name, [1]))
        if num_tokens:
            manager.allocate_slots(request, num_tokens)
            request.num_computed_tokens += num_tokens
        else:
            manager.free(requests.pop(name))
    table = manager.get_block_ids("D")
    entry, offset = divmod(9, BLOCK_SIZE)
    slots = {
        "right": table[entry] * BLOCK_SIZE + offset,
        "block from 0": (table[entry] - 1) * BLOCK_SIZE + offset,
        "token": 9,
        "first block": table[0] * BLOCK_SIZE + 9,
        "entry from 1": table[entry - 1] * BLOCK_SIZE + offset,
    }
    return dict(zip(ASKED, (list(table), manager.block_pool.free_queue(), slots[slot]), strict=True))


# --- e2, e3, b1 -----------------------------------------------------------------------------------------------


def tables(*case: Any, **rules: Any) -> list[dict]:
    return use_tables(partial(variants.Tables, **rules), *case)


ANSWERS = {
    "c06-e1": pool,
    "c06-e2": variants.allocate_with,
    "c06-e3": partial(run_scheduler, variants.Peak),
    "c06-b1": tables,
}

MISTAKES = {
    "c06-e1": [
        (
            "A table is given back head first there. It is the other way round: its last block first, so that it is "
            "the head of the queue afterwards.",
            partial(pool, HeadFirst),
        ),
        (
            "Freed blocks go to the back of the queue there. Nothing is cached in them, so they go to the front.",
            partial(pool, ToTheBack),
        ),
        (
            "The lowest numbers are taken there. The queue knows an order, not numbers: take from its head.",
            partial(pool, LowestFirst),
        ),
        (
            "Every piece starts a block of its own there. It goes on in the last block of the table as long as that "
            "has room.",
            partial(pool, BlocksAPiece),
        ),
        (
            "The slot counts blocks from 1. Block 0 has slots too, though nobody uses them: block × 4 + offset.",
            partial(pool, slot="block from 0"),
        ),
        (
            "The slot is the token's own number: that would need blocks in one piece from slot 0 on.",
            partial(pool, slot="token"),
        ),
        (
            "The slot counts on from the first block of D, as if its blocks lay side by side. Look up the entry of "
            "the table first.",
            partial(pool, slot="first block"),
        ),
        (
            "The slot is in the wrong entry of the table: entries count from 0, and 9 // 4 is 2.",
            partial(pool, slot="entry from 1"),
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
        (
            "Blocks are rounded down there. A block that is only started is needed in full.",
            partial(variants.allocate_with, rounds_down=True),
        ),
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
        (
            "Blocks are taken from the tail of the queue. They are taken from its head.",
            partial(variants.allocate_with, from_tail=True),
        ),
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
