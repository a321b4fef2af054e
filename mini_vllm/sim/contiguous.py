"""KV memory in one piece a request, as before paging, and in blocks. Knows lengths and slots; no budget. Chapter 6.

Whoever has entered computes its prompt at once, then one token a step, so that only memory decides who is in.
"""

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol

from mini_vllm.config import SchedulerConfig
from mini_vllm.core.kv_cache_manager import KVCacheManager
from mini_vllm.errors import KVPoolTooSmallError
from mini_vllm.request import Request

FREE, EMPTY, TOKEN = range(3)  # nobody's slot; somebody's without a token; with one


class Memory(Protocol):
    num_slots: int

    def slots_for(self, num_tokens: int, last: int) -> int:
        """How many slots it takes to enter."""

    def enter(self, name: str, num_tokens: int, last: int) -> bool:
        """Room for `num_tokens` tokens, which will become `last`; False: not now."""

    def grow(self, name: str) -> bool:
        """Room for one token more; False: not now."""

    def leave(self, name: str) -> None: ...

    def tables(self) -> Iterator[tuple[list[range], int]]:
        """Of everybody inside: the slots, in the order of its tokens, and how many tokens lie in them."""


class OnePiece:
    """First fit: a request takes the start of the first hole that is large enough, and never moves.

        |== A ==|..|==== B ====|......|= C =|.........|
                 ^^             ^^^^^^ holes; two of them do not make one

    longest: slots that everybody gets; None is exactly what the request will need, which no server knows beforehand.
    """

    def __init__(self, num_slots: int, longest: int | None = None):
        self.num_slots = num_slots
        self.longest = longest
        self.holes = [range(num_slots)]
        self.pieces: dict[str, range] = {}
        self.num_tokens: dict[str, int] = {}

    def slots_for(self, num_tokens: int, last: int) -> int:
        return self.longest or last

    def enter(self, name: str, num_tokens: int, last: int) -> bool:
        need = self.slots_for(num_tokens, last)
        for i, hole in enumerate(self.holes):
            if len(hole) >= need:
                self.pieces[name], rest = hole[:need], hole[need:]
                self.holes[i : i + 1] = [rest] if rest else []
                self.num_tokens[name] = num_tokens
                return True
        return False

    def grow(self, name: str) -> bool:
        self.num_tokens[name] += 1
        return True

    def leave(self, name: str) -> None:
        del self.num_tokens[name]
        holes = sorted([*self.holes, self.pieces.pop(name)], key=lambda hole: hole.start)
        self.holes = holes[:1]
        for hole in holes[1:]:  # neighbours become one
            if self.holes[-1].stop == hole.start:
                self.holes[-1] = range(self.holes[-1].start, hole.stop)
            else:
                self.holes.append(hole)

    def tables(self) -> Iterator[tuple[list[range], int]]:
        return (([piece], self.num_tokens[name]) for name, piece in self.pieces.items())


class InBlocks:
    """The course's own KVCacheManager: a request has the blocks of its tokens, wherever they lie, and nothing more."""

    def __init__(self, num_slots: int, block_size: int = 16):
        self.num_slots = num_slots
        self.block_size = block_size
        self.manager = KVCacheManager(
            SchedulerConfig(num_gpu_blocks=num_slots // block_size, block_size=block_size, max_model_len=num_slots)
        )
        self.requests: dict[str, Request] = {}

    def slots_for(self, num_tokens: int, last: int) -> int:
        return self.manager.config.blocks_for(num_tokens) * self.block_size

    def enter(self, name: str, num_tokens: int, last: int) -> bool:
        self.requests[name] = Request(name, [0] * num_tokens)
        if not self._allocate(name, num_tokens):
            del self.requests[name]
            return False
        return True

    def grow(self, name: str) -> bool:
        return self._allocate(name, 1)

    def _allocate(self, name: str, num_new_tokens: int) -> bool:
        request = self.requests[name]
        if self.manager.allocate_slots(request, num_new_tokens) is None:
            return False
        request.num_computed_tokens += num_new_tokens
        return True

    def leave(self, name: str) -> None:
        self.manager.free(self.requests.pop(name))

    def tables(self) -> Iterator[tuple[list[range], int]]:
        size = self.block_size
        for name, request in self.requests.items():
            blocks = self.manager.get_block_ids(name)
            yield [range((b - 1) * size, b * size) for b in blocks], request.num_computed_tokens


@dataclass(frozen=True)
class Moment:
    """One step, when everybody who can enter has entered. Counts of slots, and of requests.

    has_room_in_pieces: the first in the line waits, though as many slots are free as it needs.
    """

    num_residents: int
    num_waiting: int
    num_evicted: int  # so far
    num_held: int
    num_tokens: int
    has_room_in_pieces: bool


def play(memory: Memory, lengths: Iterable[tuple[int, int]]) -> Iterator[Moment]:
    """Serve (prompt, output) lengths in their order, all there from the start; a moment a step, until nobody is left.

    Raises KVPoolTooSmallError if somebody does not fit even alone. Where a token finds no room, the one that entered
    last goes back to the head of the line and computes all its tokens again.
    """
    # The KV of the last token is never computed, hence the minus one.
    waiting = deque((str(i), prompt, prompt + output - 1) for i, (prompt, output) in enumerate(lengths))
    inside: dict[str, tuple[int, int]] = {}  # name -> (tokens, tokens at its end)
    num_evicted = 0
    while waiting or inside:
        while waiting and memory.enter(*waiting[0]):
            name, num_tokens, last = waiting.popleft()
            inside[name] = (num_tokens, last)
        if not inside:
            name, _, last = waiting[0]
            raise KVPoolTooSmallError(f"request {name} of {last} tokens finds no room in all {memory.num_slots} slots")
        held = sum(len(piece) for table, _ in memory.tables() for piece in table)
        tokens = sum(num_tokens for num_tokens, _ in inside.values())
        in_pieces = bool(waiting) and memory.slots_for(*waiting[0][1:]) <= memory.num_slots - held
        yield Moment(len(inside), len(waiting), num_evicted, held, tokens, in_pieces)
        for name in [name for name, (num_tokens, last) in inside.items() if num_tokens == last]:
            memory.leave(name)
            del inside[name]
        for name in list(inside):
            while name in inside and not memory.grow(name):
                victim, (num_tokens, last) = inside.popitem()
                memory.leave(victim)
                waiting.appendleft((victim, num_tokens + 1, last))
                num_evicted += 1
            if name in inside:
                num_tokens, last = inside[name]
                inside[name] = (num_tokens + 1, last)


def picture(memory: Memory) -> list[int]:
    """Of every slot whether it is FREE, EMPTY or holds a TOKEN."""
    slots = [FREE] * memory.num_slots
    for table, num_tokens in memory.tables():
        for i, slot in enumerate(slot for piece in table for slot in piece):
            slots[slot] = TOKEN if i < num_tokens else EMPTY
    return slots
