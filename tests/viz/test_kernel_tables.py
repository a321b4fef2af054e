"""Tables about the kernels: a row says what tiles.py chooses, or what the file's rows add up to. Knows made-up rows."""

from mini_vllm.kernels.tiles import CARDS, Routed, decode_tile
from mini_vllm.viz.kernel_tables import crosscompile_table, interpreter_table, tiles_table

ROW = {
    "launch": "paged_prefill", "kernel": "_paged_prefill", "capability": [8, 0], "dtype": "float16", "registers": 120,
    "spill_bytes": 0, "shared_bytes": 65_536, "mma": "mma.sync", "problems": [],
}  # fmt: skip


def test_the_tiles_are_those_that_the_engine_would_take():
    table = tiles_table([(7, 5), (9, 0)], head_dim=128, group=4, dtype_name="float16")
    assert [row[:2] for row in table.rows] == [[c, k] for c in ("T4", "H200") for k in ("decode", "prefill")]
    chosen = decode_tile(CARDS[9, 0], 128, 4, "float16")
    expected = [f"{chosen.block_n} tokens", str(chosen.num_warps), str(chosen.num_stages), chosen.reason]
    assert table.rows[2][2:] == expected and "rows ×" in table.rows[3][2]


def test_a_shape_without_a_tile_says_where_it_goes():
    assert isinstance(decode_tile(CARDS[7, 5], 128, 4, "bfloat16"), Routed)
    row = tiles_table([(7, 5)], head_dim=128, group=4, dtype_name="bfloat16").rows[0]
    assert row[2] == "torch's attention" and "use float16" in row[5]


def test_a_card_is_as_bad_as_its_worst_kernel():
    rows = [
        ROW,
        {**ROW, "registers": 200, "shared_bytes": 1024, "launch": "paged_decode", "mma": "wgmma.mma_async"},
        {**ROW, "spill_bytes": 8, "problems": ["spills 8 bytes"], "dtype": "float32", "mma": "none"},
        {**ROW, "capability": [7, 5], "mma": "none"},
    ]
    routed = [{"capability": [7, 5], "launch": "paged_decode", "reason": "no bfloat16"}]
    table = crosscompile_table({"triton": "3.7.1", "kernels": rows, "routed": routed})
    assert table.rows == [
        ["T4, 7.5", "1", "120 of 255", "0", "64 of 64 KB", "multiply and add", "1", "0"],
        ["A100, 8.0", "3", "200 of 255", "8", "64 of 163 KB", "mma, wgmma", "0", "1"],
    ]
    assert "Triton 3.7.1" in table.note


def test_the_worst_case_of_a_kernel_is_what_counts():
    case = {"kernel": "paged_decode", "dtype": "float32", "error": 2e-7, "tolerance": 1e-5}
    cases = [
        case,
        {**case, "error": 3e-7},
        {**case, "dtype": "float16", "error": 3.14e-3, "tolerance": 2e-3},
        {**case, "kernel": "store_kv", "error": 0.0, "tolerance": 0.0},
    ]
    table = interpreter_table({"versions": {"triton": "3.7.1", "numpy": "2.4.6"}, "cases": cases})
    assert table.header == ["kernel", "float32", "float16"]
    assert table.rows == [
        ["paged_decode", "3e-7 ≤ 1e-5", "3.1e-3 > 2e-3: WRONG"],
        ["store_kv", "exact", "not run"],
    ]
    assert (
        table.note == "The worst error of 4 cases in Triton's interpreter (triton 3.7.1, numpy 2.4.6), and the limit."
    )
