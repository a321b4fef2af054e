"""Which tile a shape gets on a card, and why. Knows cards and sizes; knows no kernel and no torch. Chapter 13.

Three things limit a tile. Shared memory holds the K and V that are on their way. Registers, 65,536 a multiprocessor
and at most 255 a thread, hold the sums; what does not fit "spills" to slow memory. And enough bytes must be under way
at any moment to cover the latency of memory, about 700 ns: on an H200 4.8 TB/s x 700 ns / 132 multiprocessors = 25 KB
each, on an A100 13 KB, on a T4 6 KB, on an L4 4 KB.

`num_stages` counts the steps that overlap. The look-up in the block table and the load of K and V behind it are two, so
5 stages keep (5 - 1) // 2 = 2 tiles of K and V under way, and 3 stages one. crosscompile.py checks that every choice
here compiles without a spill with the Triton that the tests pin. Which of two clean tiles is faster only a measurement
on the card can say.
"""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Card:
    """What a GPU offers one program. shared_bytes: the most shared memory that one program may ask for."""

    name: str
    capability: tuple[int, int]
    shared_bytes: int
    num_sms: int  # streaming multiprocessors


@dataclass(frozen=True)
class DecodeTile:
    """block_n: cached tokens read at a time. use_dot: tl.dot, else multiply and sum."""

    block_n: int
    num_warps: int
    num_stages: int
    use_dot: bool
    reason: str


@dataclass(frozen=True)
class PrefillTile:
    """block_m: packed query rows of a program; block_n: cached tokens read at a time."""

    block_m: int
    block_n: int
    num_warps: int
    num_stages: int
    reason: str


@dataclass(frozen=True)
class Routed:
    """No clean tile: torch's attention takes this shape on this card."""

    reason: str


CARDS = {
    card.capability: card
    for card in (
        Card("T4", (7, 5), 65_536, 40),
        Card("A100", (8, 0), 166_912, 108),
        Card("A10", (8, 6), 101_376, 72),
        Card("L4", (8, 9), 101_376, 58),
        Card("H200", (9, 0), 232_448, 132),
        Card("B200", (10, 0), 232_448, 148),
        Card("RTX 5090", (12, 0), 101_376, 170),
    )
}
INTERPRETER_DECODE = DecodeTile(16, 4, 1, True, "small: a test's context on a CPU has more than one tile")
INTERPRETER_PREFILL = PrefillTile(16, 16, 4, 1, "small: a test's context on a CPU has more than one tile")

# Prefill by family (its oldest capability) and padded head_dim: block_m, block_n, num_warps, num_stages, best first.
_PREFILL = {
    (8, 0): {64: [(128, 64, 8, 5)], 128: [(128, 32, 8, 5)], 256: [(64, 32, 8, 5), (64, 32, 8, 3)]},
    (9, 0): {64: [(128, 64, 8, 2)], 128: [(128, 64, 8, 5)], 256: [(128, 32, 8, 5)]},
    (10, 0): {64: [(128, 64, 8, 5)], 128: [(128, 64, 8, 5)], 256: [(64, 32, 8, 5)]},
    (12, 0): {64: [(128, 64, 8, 5)], 128: [(64, 64, 8, 5)], 256: [(64, 32, 8, 3)]},
}
_PREFILL_REASON = {
    (8, 0): "mma.sync multiplies out of registers: 8 warps share the sums, and more tokens at a time would spill",
    (9, 0): "wgmma multiplies out of shared memory: 4 warps for each 64 rows, and 128 rows share a read of K and V; "
    "heads of 64 with 2 stages need few enough registers for two programs a multiprocessor, which cover each other",
    (10, 0): "tcgen05 multiplies out of shared memory and keeps its sums in tensor memory",
    (12, 0): "mma.sync multiplies out of registers, and shared memory is 99 KB: 64 rows where 128 would spill",
}
# Prefill where tl.dot is one multiply-add after the other, by bytes of a number and padded head_dim.
_PLAIN_PREFILL = {
    2: {64: (64, 32, 8, 1), 128: (64, 16, 8, 1), 256: (32, 16, 8, 1)},
    4: {64: (32, 32, 4, 1), 128: (16, 16, 4, 1), 256: (16, 16, 4, 1)},
}


def card_of(device: Any) -> Card:
    """The card that `device` (a torch.device or its name) is. Raises what torch raises where there is none."""
    import torch

    props = torch.cuda.get_device_properties(device)
    known = CARDS.get((props.major, props.minor))
    shared = getattr(props, "shared_memory_per_block_optin", known.shared_bytes if known else 65_536)
    return Card(props.name, (props.major, props.minor), shared, props.multi_processor_count)


def decode_tile(card: Card, head_dim: int, group: int, dtype_name: str, max_query_len: int = 1) -> DecodeTile | Routed:
    """The tile for requests of up to max_query_len query tokens, with `group` query heads to a KV head, or Routed.

    dtype_name: "float16", "bfloat16" or "float32". Raises KeyError for another dtype.
    """
    if refusal := _refusal(card, head_dim, dtype_name):
        return refusal
    block_d, item = _block_d(head_dim), _ITEM_BYTES[dtype_name]
    if reason := _no_tensor_cores(card, dtype_name):
        # Found by compiling: float32 heads of 64 spill with 2 warps; those of 128 with 4 on a B200, elsewhere with 8.
        block_n, num_warps = 16, max(1, block_d // 32)
        if (item, block_d) == (4, 64):
            block_n, num_warps = 32, 8
        elif card.capability[0] == 10:
            num_warps = 8
        return DecodeTile(
            block_n=block_n,
            num_warps=num_warps,
            num_stages=1,
            use_dot=False,
            reason=f"{reason}: multiply and sum, for decoding waits for memory anyway. K and V of {block_n} tokens are "
            f"{2 * block_n * block_d * item // 1024} KB under way a program of {num_warps} warps, and spill on no card",
        )
    rows = group * max_query_len
    most_rows = min(64, 8192 // block_d, 1 << (max(16, rows) - 1).bit_length())  # of one program
    tile_kb = 32 if card.shared_bytes > 160_000 or block_d == 256 else 16
    if most_rows > 32:
        tile_kb //= 2  # their scores and sums need the registers
    block_n = max(16, tile_kb * 1024 // (2 * block_d * item))
    under_way_kb = 2 * 2 * block_n * block_d * item // 1024
    needed = _shared_bound(card, most_rows, block_n, 5, block_d, item)
    if needed > card.shared_bytes:
        return _too_large(card, needed)
    return DecodeTile(
        block_n=block_n,
        num_warps=4,
        num_stages=5,
        use_dot=True,
        reason=f"two tiles of {block_n} tokens are {under_way_kb} KB of K and V under way a program, and "
        f"{card.shared_bytes // needed} programs fit a multiprocessor's shared memory",
    )


def prefill_tile(card: Card, head_dim: int, group: int, dtype_name: str) -> PrefillTile | Routed:
    """The tile for pieces of any number of query tokens, or Routed. The rows are packed, so `group` changes nothing."""
    if refusal := _refusal(card, head_dim, dtype_name):
        return refusal
    block_d, item = _block_d(head_dim), _ITEM_BYTES[dtype_name]
    if reason := _no_tensor_cores(card, dtype_name):
        if card.capability < (8, 0) and (item, block_d) == (4, 256):
            return Routed("16 rows x 16 tokens of float32 spill on 7.5: 32 bytes a thread with 4 warps, 12 with 8")
        candidates = [_PLAIN_PREFILL[item][max(64, block_d)]]
        reason += ": tl.dot is one multiply-add after the other, and small tiles keep it in registers"
    else:
        family = max(oldest for oldest in _PREFILL if oldest <= card.capability)
        candidates, reason = _PREFILL[family][max(64, block_d)], _PREFILL_REASON[family]
    for block_m, block_n, num_warps, num_stages in candidates:
        needed = _shared_bound(card, block_m, block_n, num_stages, block_d, item)
        if needed <= card.shared_bytes:
            return PrefillTile(block_m, block_n, num_warps, num_stages, reason)
    return _too_large(card, needed)


_ITEM_BYTES = {"float16": 2, "bfloat16": 2, "float32": 4}


def _block_d(head_dim: int) -> int:
    """A range of Triton has a power of two as its length; the lanes beyond head_dim are masked."""
    return max(16, 1 << (head_dim - 1).bit_length())


def _refusal(card: Card, head_dim: int, dtype_name: str) -> Routed | None:
    if card.capability < (7, 5):
        return Routed(
            f"compute capability {card.capability[0]}.{card.capability[1]} is below 7.5, the oldest compiled for"
        )
    if dtype_name == "bfloat16" and card.capability < (8, 0):
        return Routed("no bfloat16 below compute capability 8.0: use float16")
    if head_dim > 256:
        return Routed(f"head_dim={head_dim} is over 256")
    return None


def _no_tensor_cores(card: Card, dtype_name: str) -> str:
    """Why tl.dot would not run on tensor cores; empty where it does."""
    if card.capability < (8, 0):
        return "Triton uses tensor cores from compute capability 8.0 on"
    if dtype_name == "float32":
        return "tensor cores round float32 to tf32, wrong from the fourth digit on"
    return ""


def _shared_bound(card: Card, rows: int, block_n: int, num_stages: int, block_d: int, item: int) -> int:
    """At most so many bytes of shared memory does a program ask for (the compiled kernels are held to it)."""
    tiles = max(1, (num_stages - 1) // 2)
    if (9, 0) <= card.capability < (12, 0) and rows >= 64:
        tiles += 1  # the one that is being multiplied lies there too
    q, k_and_v = rows * block_d * item, 2 * block_n * block_d * item
    if num_stages == 1:  # nothing is loaded ahead, and then the sums change hands between threads there
        return q + max(k_and_v, rows * block_d * 4)
    return q + tiles * k_and_v + rows * block_n * item + 2048  # the weights, and entries of the block table


def _too_large(card: Card, needed: int) -> Routed:
    return Routed(f"up to {needed} bytes of shared memory a program, and {card.name} has {card.shared_bytes}")
