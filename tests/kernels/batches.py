"""Random ragged batches with the traps built in, for the tests of all attention kernels. Knows no kernel.

Blocks are handed out in random order. Every slot that no request may read is NaN: other blocks, the free end of a
request's last block, and what has left its sliding window. A kernel that reads one of them shows NaN in its output.
"""

from dataclasses import dataclass
from itertools import pairwise

import torch

GUARD_ROWS = 3  # rows behind the output that a kernel must leave alone


@dataclass
class Batch:
    """One layer's inputs of a step. All are rounded to the kernel's dtype: the oracle sees the same numbers."""

    q: torch.Tensor  # [T, num_heads, head_dim]
    kv_cache: torch.Tensor  # [2, num_blocks, block_size, num_kv_heads, head_dim]
    query_start_loc: torch.Tensor  # [R + 1] int32
    seq_lens: torch.Tensor  # [R] int32
    block_table: torch.Tensor  # [R, max_blocks] int32
    slot_mapping: torch.Tensor  # [T] int64
    sliding_window: int | None

    @property
    def query_lens(self) -> list[int]:
        return [end - start for start, end in pairwise(self.query_start_loc.tolist())]

    @property
    def inputs(self) -> tuple[torch.Tensor, ...]:
        """In the order in which reference and kernels take them."""
        return self.q, self.kv_cache, self.query_start_loc, self.seq_lens, self.block_table

    def reference(self, scale: float | None = None) -> torch.Tensor:
        """What every kernel must give, in float64, from the same rounded inputs: [T, num_heads, head_dim]."""
        from mini_vllm.kernels.reference import paged_attention

        q, kv_cache, *rest = self.inputs
        return paged_attention(q.double(), kv_cache.double(), *rest, sliding_window=self.sliding_window, scale=scale)

    def poisoned_out(self) -> tuple[torch.Tensor, torch.Tensor]:
        """An output full of NaN, and the guard rows behind it in memory (full of 7)."""
        num_tokens = len(self.q)
        whole = torch.full((num_tokens + GUARD_ROWS, *self.q.shape[1:]), 7.0, dtype=self.q.dtype)
        whole[:num_tokens] = float("nan")
        return whole[:num_tokens], whole[num_tokens:]


def random_batch(
    seed: int,
    *,
    seq_lens: list[int],
    query_lens: list[int] | None = None,
    num_heads: int = 4,
    num_kv_heads: int = 2,
    head_dim: int = 64,
    block_size: int = 16,
    dtype: torch.dtype = torch.float32,
    sliding_window: int | None = None,
    q_scale: float = 1.0,
) -> Batch:
    """A batch of len(seq_lens) requests; query_lens: tokens of each in this step, 1 each if None (0 is allowed).

    q_scale: size of the queries; large ones make the softmax sharp.
    """
    rng = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=rng)

    query_lens = [1] * len(seq_lens) if query_lens is None else query_lens
    num_tokens = sum(query_lens)
    needed = [-(-n // block_size) for n in seq_lens]  # blocks of each request
    num_blocks = 1 + sum(needed) + 2  # the null block, everybody's, and two that nobody owns
    ids = (torch.randperm(num_blocks - 1, generator=rng) + 1).tolist()  # never the null block
    block_table = torch.zeros(len(seq_lens), max([1, *needed]) + 1, dtype=torch.int32)  # padded with the null block
    kv_cache = torch.full((2, num_blocks, block_size, num_kv_heads, head_dim), float("nan"), dtype=dtype)
    flat = kv_cache.view(2, -1, num_kv_heads, head_dim)
    slot_mapping = torch.empty(num_tokens, dtype=torch.int64)
    row = 0
    for request, (seq_len, n) in enumerate(zip(seq_lens, query_lens, strict=True)):
        mine = torch.tensor([ids.pop() for _ in range(needed[request])], dtype=torch.int32)
        block_table[request, : len(mine)] = mine
        first_seen = 0 if sliding_window is None else max(0, seq_len - n - sliding_window + 1)
        positions = torch.arange(seq_len)
        slots = mine.long()[positions // block_size] * block_size + positions % block_size
        flat[:, slots[first_seen:]] = normal(2, seq_len - first_seen, num_kv_heads, head_dim).to(dtype)
        slot_mapping[row : row + n] = slots[seq_len - n :] if n <= seq_len else -1
        row += n
    return Batch(
        q=(q_scale * normal(num_tokens, num_heads, head_dim)).to(dtype),
        kv_cache=kv_cache,
        query_start_loc=torch.tensor([0, *query_lens]).cumsum(0).to(torch.int32),
        seq_lens=torch.tensor(seq_lens, dtype=torch.int32),
        block_table=block_table,
        slot_mapping=slot_mapping,
        sliding_window=sliding_window,
    )
