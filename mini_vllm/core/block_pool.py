"""The KV blocks that are free. Knows block ids only; knows nothing of requests or tokens. Opened in chapter 6."""

from collections import deque
from collections.abc import Iterable


class BlockPool:
    """A queue of free block ids 1..num_gpu_blocks; block 0 is the null block, which no request ever owns.

    Blocks are taken from the head. Freed blocks go back to the *front*, tail of the request first (without
    prefix caching nothing in them is worth keeping, so the most recently used is reused first, as in vLLM 0.33.0).
    """

    def __init__(self, num_gpu_blocks: int):
        self.num_gpu_blocks = num_gpu_blocks
        self.free_queue: deque[int] = deque(range(1, num_gpu_blocks + 1))

    @property
    def num_free_blocks(self) -> int:
        return len(self.free_queue)

    def take(self, num_blocks: int) -> list[int]:
        """`num_blocks` block ids from the head of the free queue; the caller has checked that they are there."""
        return [self.free_queue.popleft() for _ in range(num_blocks)]

    def free(self, block_ids: Iterable[int]) -> None:
        """Give blocks back; `block_ids` is in the order of the request's block table."""
        self.free_queue.extendleft(block_ids)
