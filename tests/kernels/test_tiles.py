"""Tiles for every card and shape: they fit, they are plain, and what has none is routed with a reason."""

import dataclasses
import json
import subprocess
import sys
from pathlib import Path

import pytest

from mini_vllm.kernels import tiles
from mini_vllm.kernels.tiles import CARDS, Card, DecodeTile, PrefillTile, Routed, decode_tile, prefill_tile
from mini_vllm.kernels.variants import DECODE_ROWS, DTYPES, all_routed, all_variants

ROOT = Path(__file__).resolve().parents[2]
GROUPS = (1, 3, 4, 7, 8, 16, 32)
HEAD_DIMS = (64, 80, 96, 128, 256)
SIMULATED = {65_536: (7, 5), 101_376: (8, 9), 232_448: (9, 0)}


def stored() -> list[dict]:
    """The kernels of the committed cross-compile table."""
    return json.loads((ROOT / "benchmarks/results/crosscompile.json").read_text())["kernels"]


def least_shared_bytes(tile: DecodeTile | PrefillTile, head_dim: int, item: int) -> int:
    """K and V that are under way, and the queries of a prefill: what must fit, whatever the compiler adds."""
    row = head_dim * item
    ahead = max(1, (tile.num_stages - 1) // 2) if tile.num_stages > 1 else 0
    return ahead * 2 * tile.block_n * row + getattr(tile, "block_m", 0) * row


@pytest.mark.parametrize("shared_bytes", SIMULATED)
@pytest.mark.parametrize("head_dim", [64, 128, 256])
@pytest.mark.parametrize(("dtype", "item"), [("float16", 2), ("float32", 4)])
def test_b01_tiles_fit_the_shared_memory_of_the_device(shared_bytes, head_dim, dtype, item):
    card = Card("simulated", SIMULATED[shared_bytes], shared_bytes, 40)
    for group in GROUPS:
        for max_query_len in (1, 8):
            chosen = decode_tile(card, head_dim, group, dtype, max_query_len)
            assert isinstance(chosen, DecodeTile)
            assert least_shared_bytes(chosen, head_dim, item) <= shared_bytes
    chosen = prefill_tile(card, head_dim, 4, dtype)
    if (card.capability, head_dim, dtype) == ((7, 5), 256, "float32"):
        assert isinstance(chosen, Routed) and "spill" in chosen.reason
    else:
        assert isinstance(chosen, PrefillTile)
        assert least_shared_bytes(chosen, head_dim, item) <= shared_bytes


@pytest.mark.parametrize("shared_bytes", SIMULATED)
def test_b01_compiled_kernels_fit_the_shared_memory_of_the_device(shared_bytes):
    """Not an estimate: what the compiler said, for heads of 64, 128 and 256 in float16 and float32."""
    mine = [row for row in stored() if tuple(row["capability"]) == SIMULATED[shared_bytes]]
    assert {(row["width"], row["dtype"]) for row in mine} >= {
        (d, t) for d in (64, 128, 256) for t in ("float16", "float32")
    }
    assert max(row["shared_bytes"] for row in mine) <= shared_bytes


def test_b01_a_device_with_too_little_is_told_so():
    small = Card("small", (9, 0), 16_384, 10)
    for chosen in (decode_tile(small, 128, 4, "float16"), prefill_tile(small, 128, 4, "float16")):
        assert isinstance(chosen, Routed)
        assert "16384" in chosen.reason and "small" in chosen.reason


def test_the_bound_on_shared_memory_holds_for_each_compiled_kernel():
    checked = 0
    for row in stored():
        tile = row["tile"]
        if not tile or row["kernel"] == "_merge_splits" or tile.get("use_dot") is False:
            continue
        item, block_d = tiles._ITEM_BYTES[row["dtype"]], tiles._block_d(row["width"])
        rows = tile.get("block_m", min(64, 8192 // block_d, max(16, row["group"] * row["max_query_len"])))
        card = CARDS[tuple(row["capability"])]
        bound = tiles._shared_bound(card, rows, tile["block_n"], tile["num_stages"], block_d, item)
        assert row["shared_bytes"] <= bound <= card.shared_bytes, row
        checked += 1
    assert checked > 100


@pytest.mark.parametrize("card", CARDS.values(), ids=lambda card: card.name)
def test_every_shape_has_a_tile_or_a_reason(card):
    for dtype in DTYPES:
        for head_dim in HEAD_DIMS:
            chosen = [decode_tile(card, head_dim, g, dtype, n) for g in GROUPS for n in (1, 2, 4, 8)]
            chosen.append(prefill_tile(card, head_dim, 4, dtype))
            for tile in chosen:
                assert tile.reason
                if not isinstance(tile, Routed):
                    assert tile.num_warps in (1, 2, 4, 8)
                    assert tile.block_n in (16, 32, 64, 128)  # tl.dot wants 16, Triton powers of two


def test_cards_of_one_kind_differ_only_where_their_memory_does():
    """A card that we do not know, such as compute capability 8.7, gets the tiles of the one below it."""
    jetson = Card("Orin", (8, 7), 166_912, 16)
    assert decode_tile(jetson, 128, 4, "bfloat16") == decode_tile(CARDS[8, 0], 128, 4, "bfloat16")
    assert prefill_tile(jetson, 128, 4, "bfloat16") == prefill_tile(CARDS[8, 0], 128, 4, "bfloat16")
    spark = Card("GB10", (12, 1), 101_376, 48)
    assert prefill_tile(spark, 80, 7, "float16") == prefill_tile(CARDS[12, 0], 80, 7, "float16")


def test_a_t4_has_no_bfloat16_and_no_tensor_cores():
    t4 = CARDS[7, 5]
    for chosen in (decode_tile(t4, 64, 3, "bfloat16"), prefill_tile(t4, 64, 3, "bfloat16")):
        assert isinstance(chosen, Routed) and "float16" in chosen.reason
    assert decode_tile(t4, 64, 3, "float16").use_dot is False
    assert decode_tile(CARDS[8, 0], 64, 3, "float16").use_dot is True
    assert decode_tile(CARDS[8, 0], 64, 3, "float32").use_dot is False  # tf32 would miss the tolerance


def test_an_older_card_and_a_larger_head_are_routed():
    assert "7.0" in decode_tile(Card("V100", (7, 0), 98_304, 80), 64, 3, "float16").reason
    assert "300" in prefill_tile(CARDS[9, 0], 300, 3, "float16").reason
    with pytest.raises(KeyError):
        decode_tile(CARDS[9, 0], 64, 3, "float64")


@pytest.mark.parametrize("capability", [(8, 0), (9, 0), (10, 0)])
@pytest.mark.parametrize("head_dim", [64, 128, 256])
def test_enough_bytes_are_under_way_to_fill_the_memory_of_a_large_card(capability, head_dim):
    """Little's law: bandwidth x 700 ns of latency, a multiprocessor's share of it, by one program alone."""
    bytes_per_ns = {(8, 0): 2039, (9, 0): 4800, (10, 0): 8000}[capability]
    card = CARDS[capability]
    tile = decode_tile(card, head_dim, 4, "bfloat16")
    under_way = (tile.num_stages - 1) // 2 * 2 * tile.block_n * head_dim * 2
    assert under_way >= bytes_per_ns * 700 / card.num_sms
    assert str(under_way // 1024) in tile.reason


def test_the_matrix_names_each_variant_once():
    variants = list(all_variants())
    assert len({str(variant) for variant in variants}) == len(variants) > 300
    assert {variant.dtype for variant in variants if variant.capability == (7, 5)} == {"float16", "float32"}
    rows = {(variant.group, variant.max_query_len) for variant in variants if variant.launch == "paged_decode"}
    assert rows == set(DECODE_ROWS)


def test_other_groups_of_the_promise_get_the_tile_that_was_compiled():
    """The matrix compiles 7, 32 and 8 x 8 rows: every other count must get the tile of one of them."""

    def numbers(card: Card, head_dim: int, group: int, max_query_len: int) -> dict:
        tile = dataclasses.asdict(decode_tile(card, head_dim, group, "float16", max_query_len))
        return tile | {"reason": ""}

    for card in CARDS.values():
        for head_dim in HEAD_DIMS:
            compiled = [numbers(card, head_dim, *rows) for rows in DECODE_ROWS]
            for group in GROUPS:
                for max_query_len in (1, 2, 4, 8):
                    assert numbers(card, head_dim, group, max_query_len) in compiled


def test_what_is_routed_is_listed_with_its_reason():
    routed = list(all_routed())
    assert all(entry["reason"] for entry in routed)
    assert {entry["dtype"] for entry in routed if entry["capability"] == [7, 5]} == {"bfloat16", "float32"}
    assert not [entry for entry in routed if entry["capability"] != [7, 5]]


def test_tiles_need_only_the_standard_library():
    code = "import sys, mini_vllm.kernels.variants; sys.exit(bool({'torch', 'triton', 'numpy'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0


def test_a_tile_cannot_be_changed():
    with pytest.raises(dataclasses.FrozenInstanceError):
        decode_tile(CARDS[9, 0], 64, 3, "float16").block_n = 1
