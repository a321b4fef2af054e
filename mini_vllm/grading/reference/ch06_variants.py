"""Chapter 6's answers as plain code, each with switches for a mistake. Knows no message. Chapter 6."""

from collections.abc import Callable
from typing import Any

from mini_vllm.config import SchedulerConfig
from mini_vllm.core.kv_cache_manager import KVCacheManager
from mini_vllm.grading.bank.ch06 import ASKED, BLOCK_SIZE, EVENTS, POOL_BLOCKS
from mini_vllm.request import Request
from mini_vllm.stages.ch06_blocks import Scheduler as Stage6


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


def pool(
    manager_cls: type[KVCacheManager] = KVCacheManager,
    slot: str = "right",
    table: Callable[[list[int]], list[int]] = list,
    queue: Callable[[list[int]], list[int]] = list,
) -> dict[str, Any]:
    """The events on a real manager.

    slot: or "block from 0", "token", "token from 1", "first block", "entry from 1". table, queue: what is made of D's
    table and of the free queue at the end.
    """
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
    blocks = table(manager.get_block_ids("D"))
    entry, offset = divmod(9, BLOCK_SIZE)
    slots = {
        "right": blocks[entry] * BLOCK_SIZE + offset,
        "block from 0": (blocks[entry] - 1) * BLOCK_SIZE + offset,
        "token": 9,
        "token from 1": blocks[entry] * BLOCK_SIZE + offset - 1,
        "first block": blocks[0] * BLOCK_SIZE + 9,
        "entry from 1": blocks[entry - 1] * BLOCK_SIZE + offset,
    }
    return dict(zip(ASKED, (blocks, queue(manager.block_pool.free_queue()), slots[slot]), strict=True))


def allocate_with(
    free_queue: list[int],
    num_owned: int,
    num_computed: int,
    num_new: int,
    block_size: int,
    num_known: int | None,
    watermark: int,
    *,
    full: bool = True,
    takes_all: bool = False,
    rounding: tuple[str, str] = ("up", "up"),
    at_least_0: bool = False,
    own_room: bool = True,
    counts_owned: bool = True,
    head_room: str = "all",
    strict: bool = False,
    order: str = "head",
    adds_piece: str = "",
    takes_what_is_there: bool = False,
    needs_a_block: bool = False,
    takes_watermark: bool = False,
) -> list:
    """[blocks or None, the queue]; by default without a mistake.

    rounding: of what is taken and of what must be free, "up", "down" or "plus one". head_room: beside "all", the
    "piece" or "none". order: from the "head", "tail", "tail in order", "minus take", "sorted" or "lowest" first.
    adds_piece: the new tokens on top of all known ones, as "blocks" or as "tokens".
    """

    def blocks(num_tokens: int, how: str) -> int:
        whole = num_tokens // block_size
        return {"up": -(-num_tokens // block_size), "down": whole, "plus one": whole + 1}[how]

    take = blocks(num_computed + num_new, rounding[0]) - (num_owned if counts_owned else 0)
    if not own_room:
        take = blocks(num_new, rounding[0])
    take = max(0, take) if at_least_0 else take
    whole = take
    if num_known is not None and full:
        whole = blocks(num_known + (num_new if adds_piece == "tokens" else 0), rounding[1])
        whole = whole + take if adds_piece == "blocks" else max(take, whole)
    asked = [take + (watermark if head_room != "none" else 0), whole + (watermark if head_room == "all" else 0)]
    free = len(free_queue)
    if max(asked) > free or (strict and max(asked) == free) or (needs_a_block and not free):
        return [list(free_queue), []] if takes_what_is_there else [None, free_queue]
    take = whole if takes_all else take
    take += watermark if takes_watermark else 0
    return split(free_queue, take, order)


def split(queue: list[int], take: int, order: str) -> list[list[int]]:
    """What is taken and what is left, in one of `allocate_with`'s orders."""
    end, rising = len(queue) - take, sorted(queue)
    return {
        "head": [queue[:take], queue[take:]],
        "tail": [queue[::-1][:take], queue[:end]],
        "tail in order": [queue[end:], queue[:end]],
        "minus take": [queue[-take:], queue[:-take]],
        "sorted": [rising[:take], rising[take:]],
        "lowest": [rising[:take], [block for block in queue if block not in rising[:take]]],
    }[order]


class Peak(Stage6):
    """Admits whoever will find its blocks to the end, if everybody writes as much as they may."""

    def admit(self, request):
        if len(self.running) >= self.config.max_num_seqs:
            return "max_num_seqs"
        if request.num_new_tokens > self.budget:
            return "token_budget"
        if self.peak_blocks([*self.running, request]) > self.config.num_gpu_blocks:
            return "kv_reservation"
        self.start(request)
        self.advance(request, request.num_new_tokens)
        return None

    def peak_blocks(self, requests):
        steps = range(max(self.end(r) - r.num_tokens for r in requests))
        return max((sum(self.blocks_after(r, k) for r in requests) for k in steps), default=0)

    def end(self, request):
        return min(request.longest, self.config.max_model_len)

    def blocks_after(self, request, k):
        num_tokens = request.num_tokens + k
        return self.config.blocks_for(num_tokens) if num_tokens < self.end(request) else 0


class LastTokenToo(Peak):
    def peak_blocks(self, requests):
        steps = range(max(self.end(r) - r.num_tokens for r in requests) + 1)
        return max(sum(self.blocks_after(r, k) for r in requests) for k in steps)

    def blocks_after(self, request, k):
        num_tokens = request.num_tokens + k
        return self.config.blocks_for(num_tokens) if num_tokens <= self.end(request) else 0


class ModelLengthForgotten(Peak):
    def end(self, request):
        return request.longest


class PassesOver(Peak):
    """Looks behind a head that does not fit."""

    def schedule_waiting(self):
        reason = None
        for request in list(self.waiting):
            self.waiting.remove(request)
            self.waiting.put_back(request)  # it is the head now, for admit and start
            why = self.admit(request)
            reason = reason or why
        order = sorted(self.waiting, key=lambda r: (r.arrival_time, r.request_id))
        for request in order:
            self.waiting.remove(request)
        for request in order:
            self.waiting.add(request)
        return reason


class Tables:
    """Block tables of answers that share blocks; `rules` of the mistakes, or none.

    fork: which blocks get one look more, "held" (right), "entries" or "table". end: which are dropped, "held" (right),
    "entries", "table" or "nothing". at_copy: the block that was copied is dropped (right), or not. guard: a block that
    nobody looks at is not dropped again. shares: both answers of a fork have one list.
    """

    def __init__(
        self,
        num_blocks: int,
        window: int,
        fork: str = "held",
        end: str = "held",
        at_copy: bool = True,
        guard: bool = False,
        shares: bool = False,
    ):
        self.window, self.rules, self.at_copy = window, {"fork": fork, "end": end}, at_copy
        self.guard, self.shares = guard, shares
        self.free = list(range(1, num_blocks + 1))
        self.refs = [0] * (num_blocks + 1)
        self.tables: dict[str, list[int]] = {}

    def _blocks(self, name, what):
        table = self.tables[name]
        return {
            "held": sorted(set(table[-self.window :])),
            "table": sorted(set(table)),
            "entries": table,
            "nothing": [],
        }[self.rules[what]]

    def take(self):
        block = min(self.free)
        self.free.remove(block)
        self.refs[block] = 1
        return block

    def drop(self, block):
        if self.guard and self.refs[block] == 0:
            return
        self.refs[block] -= 1
        if self.refs[block] == 0:
            self.free.append(block)

    def start(self, name):
        self.tables[name] = []

    def grow(self, name):
        table = self.tables[name]
        if len(table) < self.window:
            table.append(self.take())
            return
        oldest = table[-self.window]
        if self.refs[oldest] == 1:
            table.append(oldest)
            return
        table.append(self.take())
        if self.at_copy:
            self.drop(oldest)

    def fork(self, parent, child):
        for block in self._blocks(parent, "fork"):
            self.refs[block] += 1
        self.tables[child] = self.tables[parent] if self.shares else list(self.tables[parent])

    def end(self, name):
        for block in self._blocks(name, "end"):
            self.drop(block)
        del self.tables[name]
