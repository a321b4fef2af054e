"""The KV blocks: which are free, how many requests share each, and what is cached in them. Knows block ids and hashes;
knows nothing of requests or tokens. Opened in chapter 6; hashes in chapter 7.
"""

from collections.abc import Iterable, Sequence

NULL_BLOCK = 0


class BlockPool:
    """Blocks 1..num_gpu_blocks; block 0 is the null block, which no request owns and nobody writes.

    Free blocks stand in a ring, linked both ways so that a cached block can be taken out of its middle at once:

        0 (null) -> next to be taken -> … -> last to be taken -> 0
        head: freed blocks without a hash            tail: freed blocks with a hash, least recently freed first

    So what is worthless is reused first, and of the cached blocks the one that has been idle the longest. A block
    that is taken loses its hash there and then: this is the eviction.
    """

    def __init__(self, num_gpu_blocks: int):
        self.num_gpu_blocks = num_gpu_blocks
        self.num_free_blocks = num_gpu_blocks
        self.ref_count = [0] * (num_gpu_blocks + 1)
        self.hash_of: list[bytes | None] = [None] * (num_gpu_blocks + 1)
        self.cached: dict[bytes, int] = {}  # hash -> the block that was registered first under it
        # Identical blocks are not merged: hash -> all that hold it, in the order of registration, if several do.
        self.twins: dict[bytes, dict[int, None]] = {}
        # The null block is the ring's fixed point: the queue starts after it and ends before it.
        self._next = [*range(1, num_gpu_blocks + 1), NULL_BLOCK]
        self._prev = [num_gpu_blocks, *range(num_gpu_blocks)]

    def free_queue(self) -> list[int]:
        """Free block ids in the order in which they will be taken."""
        queue, block = [], self._next[NULL_BLOCK]
        while block != NULL_BLOCK:
            queue.append(block)
            block = self._next[block]
        return queue

    def take(self, num_blocks: int) -> list[int]:
        """`num_blocks` blocks from the head, each now owned once; the caller has checked that they are there."""
        taken = []
        block, following = self._next[NULL_BLOCK], self._next
        for _ in range(num_blocks):
            if self.hash_of[block] is not None:
                self.forget_hash(block)
            self.ref_count[block] = 1
            taken.append(block)
            block = following[block]
        # The ring closes behind the taken ones: `block` is the new head (or the null block, if none is left).
        following[NULL_BLOCK], self._prev[block] = block, NULL_BLOCK
        self.num_free_blocks -= num_blocks
        return taken

    def touch(self, blocks: Iterable[int]) -> None:
        """One owner more for each of these cached blocks; an idle one leaves the free queue."""
        for block in blocks:
            if block != NULL_BLOCK:
                if self.ref_count[block] == 0:
                    self._unlink(block)
                self.ref_count[block] += 1

    def free(self, blocks: Sequence[int]) -> None:
        """One owner less, in the order given (tail of a request first); without an owner a block is free."""
        idle = []
        for block in blocks:
            if block != NULL_BLOCK:
                self.ref_count[block] -= 1
                if self.ref_count[block] == 0:
                    idle.append(block)
        for block in idle:
            if self.hash_of[block] is not None:
                self._link(self._prev[NULL_BLOCK], block)
        for block in reversed([b for b in idle if self.hash_of[b] is None]):
            self._link(NULL_BLOCK, block)

    def num_idle(self, blocks: Iterable[int]) -> int:
        """How many of these blocks stand in the free queue."""
        return sum(self.ref_count[block] == 0 for block in blocks if block != NULL_BLOCK)

    def register(self, block: int, block_hash: bytes) -> None:
        """From now on `find(block_hash)` may answer `block`."""
        self.hash_of[block] = block_hash
        first = self.cached.setdefault(block_hash, block)
        if first != block:
            self.twins.setdefault(block_hash, {first: None})[block] = None

    def find(self, block_hash: bytes) -> int | None:
        """The block that was registered first under this hash and still holds it, or None."""
        return self.cached.get(block_hash)

    def forget_hash(self, block: int) -> None:
        """What this cached block holds cannot be found any more."""
        block_hash = self.hash_of[block]
        assert block_hash is not None
        self.hash_of[block] = None
        twins = self.twins.get(block_hash)
        if twins is None:
            del self.cached[block_hash]
            return
        del twins[block]
        self.cached[block_hash] = next(iter(twins))
        if len(twins) == 1:
            del self.twins[block_hash]

    def _link(self, before: int, block: int) -> None:
        """Put a block into the ring, right after `before`."""
        after = self._next[before]
        self._next[before] = self._prev[after] = block
        self._prev[block], self._next[block] = before, after
        self.num_free_blocks += 1

    def _unlink(self, block: int) -> None:
        before, after = self._prev[block], self._next[block]
        self._next[before], self._prev[after] = after, before
        self.num_free_blocks -= 1

    def check_integrity(self, owners: Iterable[int]) -> None:
        """Raise AssertionError unless the pool's books agree with `owners`, all block table entries there are."""
        counts = [0] * (self.num_gpu_blocks + 1)
        for block in owners:
            counts[block] += block != NULL_BLOCK
        queue = self.free_queue()
        assert counts == self.ref_count, f"block tables count {counts}, the pool {self.ref_count}"
        assert len(queue) == len(set(queue)) == self.num_free_blocks, (
            f"free queue {queue}, count {self.num_free_blocks}"
        )
        assert [self._prev[self._next[b]] for b in [NULL_BLOCK, *queue]] == [NULL_BLOCK, *queue], "a back link is wrong"
        idle = {block for block in range(1, self.num_gpu_blocks + 1) if counts[block] == 0}
        assert set(queue) == idle, f"free queue {sorted(queue)}, blocks without an owner {sorted(idle)}"
        for h, twins in self.twins.items():
            assert len(twins) > 1 and self.cached[h] == next(iter(twins)), f"twins {list(twins)}, of which one is found"
        registered = {(block, h) for h, first in self.cached.items() for block in self.twins.get(h, [first])}
        held = {(block, h) for block, h in enumerate(self.hash_of) if h is not None}
        assert registered == held, f"the index and the blocks disagree on {registered ^ held}"
