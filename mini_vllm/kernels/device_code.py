"""What the attention kernels share on the device. Knows block tables; knows no query. Chapter 13."""

import triton
import triton.language as tl


@triton.jit
def loop_bound(count, INTERPRET: tl.constexpr):
    """`count` for `range`: the interpreter of Triton before 3.7 cannot turn a loaded number into one (NumPy 2.4).

    Not a `while`: Triton overlaps the loads of one round with the sums of the last only in a `for`.
    """
    if INTERPRET:
        return count.handle.data.item()
    else:
        return count


@triton.jit
def cache_slots(table_row, positions, wanted, BLOCK_SIZE: tl.constexpr):
    """[N] int64: in which slot of the cache each position lies. A position that is not `wanted` gives block 0.

    64 bits: with 16 tokens of 8 heads of 128 a block, the offset of block 131,072 is 2**31.
    """
    blocks = tl.load(table_row + positions // BLOCK_SIZE, mask=wanted, other=0)
    return blocks.to(tl.int64) * BLOCK_SIZE + positions % BLOCK_SIZE
