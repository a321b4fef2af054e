"""Every kernel launch that tiles.py chooses for the shapes that we promise. Knows tiles; knows no Triton. Chapter 13.

A compiled kernel depends on more than its tile: on dtype, head_dim, rows and window. Some shapes stand for others that
compile to the same code with another constant: a group of 7 for all groups of up to 16 (one tile of 16 rows, and not a
power of two), heads of 80 for those of 96 (both padded to 128).
"""

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

from mini_vllm.kernels.tiles import CARDS, Card, DecodeTile, PrefillTile, Routed, decode_tile, prefill_tile

DTYPES = ("float16", "bfloat16", "float32")
HEAD_DIMS = (64, 80, 128, 256)
# (query heads to a KV head, most query tokens): rows of up to 16, 32, and 64 with 8 drafts.
DECODE_ROWS = ((7, 1), (32, 1), (8, 8))
# Kernels without a tile, and the width of a row: the hidden size and MLP of Llama 3 8B, heads of 64 and 128.
UNTILED = (
    ("store_kv", 64),
    ("store_kv", 128),
    ("rms_norm", 4096),
    ("add_rms_norm", 4096),
    ("rotate", 128),
    ("silu_and_mul", 14336),
)


@dataclass(frozen=True)
class Variant:
    """One launch to compile. width: head_dim, or the numbers of a row of a fused kernel."""

    launch: str
    capability: tuple[int, int]
    dtype: str
    width: int
    group: int = 1
    max_query_len: int = 1
    windowed: bool = False
    tile: DecodeTile | PrefillTile | None = None

    def __str__(self) -> str:
        tile = self.tile_numbers()
        return (
            f"{self.launch} sm_{self.capability[0]}{self.capability[1]} {self.dtype} width {self.width} "
            f"group {self.group} x {self.max_query_len}"
            + (" window" if self.windowed else "")
            + (f" {tile}" if tile else "")
        )

    def tile_numbers(self) -> dict[str, int]:
        """The tile without its reason; {} for a kernel without one."""
        numbers: dict[str, Any] = asdict(self.tile) if self.tile else {}
        numbers.pop("reason", None)
        return numbers


def all_variants(cards: Iterable[Card] = tuple(CARDS.values())) -> Iterator[Variant]:
    """The whole matrix for these cards. A shape that is routed to torch gives none: see `all_routed`."""
    for card in cards:
        cc = card.capability
        for dtype in DTYPES:
            if dtype == "bfloat16" and cc < (8, 0):
                continue
            for launch, width in UNTILED:
                yield Variant(launch, cc, dtype, width)
            for head_dim in HEAD_DIMS:
                for group, max_query_len in DECODE_ROWS:
                    tile = decode_tile(card, head_dim, group, dtype, max_query_len)
                    if isinstance(tile, DecodeTile):
                        yield Variant("paged_decode", cc, dtype, head_dim, group, max_query_len, False, tile)
                        if group == 7 and head_dim == 128:
                            yield Variant("paged_decode", cc, dtype, head_dim, group, max_query_len, True, tile)
                        if group == 7:
                            yield Variant("paged_decode_split", cc, dtype, head_dim, group, max_query_len, False, tile)
                prefill = prefill_tile(card, head_dim, 7, dtype)
                if isinstance(prefill, PrefillTile):
                    yield Variant("paged_prefill", cc, dtype, head_dim, 7, tile=prefill)


def quick_variants(cards: Iterable[Card]) -> Iterator[Variant]:
    """What every run of the tests can afford: heads of 64 and 128, and bfloat16 left out (the tiles of float16)."""
    for variant in all_variants(cards):
        if variant.dtype != "bfloat16" and variant.width in (64, 128, 4096, 14336):
            yield variant


def all_routed(cards: Iterable[Card] = tuple(CARDS.values())) -> Iterator[dict[str, Any]]:
    """What goes to torch's attention instead, and why: card, kernel, dtype, head_dim, rows, reason."""
    for card in cards:
        for dtype in DTYPES:
            for head_dim in HEAD_DIMS:
                for group, max_query_len in DECODE_ROWS:
                    if isinstance(tile := decode_tile(card, head_dim, group, dtype, max_query_len), Routed):
                        yield _routed("paged_decode", card, dtype, head_dim, group * max_query_len, tile)
                if isinstance(prefill := prefill_tile(card, head_dim, 7, dtype), Routed):
                    yield _routed("paged_prefill", card, dtype, head_dim, None, prefill)


def _routed(launch: str, card: Card, dtype: str, head_dim: int, rows: int | None, routed: Routed) -> dict[str, Any]:
    return {
        "launch": launch,
        "capability": list(card.capability),
        "dtype": dtype,
        "width": head_dim,
        "rows": rows,
        "reason": routed.reason,
    }
