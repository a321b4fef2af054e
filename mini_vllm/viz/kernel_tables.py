"""Tables about the kernels: tiles per card, what the proofs wrote. Knows two result files, measures nothing. Ch. 13."""

from collections.abc import Mapping, Sequence
from typing import Any

from mini_vllm.kernels.tiles import CARDS, DecodeTile, PrefillTile, Routed, decode_tile, prefill_tile
from mini_vllm.viz.stored_results import ResultTable

MOST_REGISTERS = 255  # of a thread, on every card


def tiles_table(capabilities: Sequence[tuple[int, int]], *, head_dim: int, group: int, dtype_name: str) -> ResultTable:
    """What `kernels/tiles.py` chooses for these cards, and why."""
    rows = []
    for capability in capabilities:
        card = CARDS[capability]
        for kernel, choose in (("decode", decode_tile), ("prefill", prefill_tile)):
            chosen = choose(card, head_dim, group, dtype_name)
            rows.append((card.name, kernel, *_tile(chosen), chosen.reason))
    note = f"Heads of {head_dim}, {group} query heads a KV head, {dtype_name}."
    return ResultTable(["card", "kernel", "tile", "warps", "stages", "why"], rows, align="lllrrl", note=note)


def _tile(tile: DecodeTile | PrefillTile | Routed) -> tuple[str, Any, Any]:
    if isinstance(tile, Routed):
        return "torch's attention", "", ""
    rows = f"{tile.block_m} rows × " if isinstance(tile, PrefillTile) else ""
    return f"{rows}{tile.block_n} tokens", tile.num_warps, tile.num_stages


def crosscompile_table(result: Mapping[str, Any]) -> ResultTable:
    """Of each card: how many kernels were compiled, the most that any of them needs, and what was not clean."""
    kernels, routed = result["kernels"], result["routed"]
    rows = []
    for capability in sorted({tuple(row["capability"]) for row in kernels}):
        card = CARDS[capability]
        mine = [row for row in kernels if tuple(row["capability"]) == capability]
        shared = max(row["shared_bytes"] for row in mine)
        rows.append(
            (
                f"{card.name}, {capability[0]}.{capability[1]}",
                len(mine),
                f"{max(row['registers'] for row in mine)} of {MOST_REGISTERS}",
                sum(row["spill_bytes"] for row in mine),
                f"{shared / 1024:.0f} of {card.shared_bytes / 1024:.0f} KB",
                _instructions(mine),
                sum(tuple(row["capability"]) == capability for row in routed),
                sum(len(row["problems"]) for row in mine),
            )
        )
    header = ["card", "kernels", "registers", "spilled", "shared memory", "products in 16 bits", "to torch", "problems"]
    note = f"Compiled by Triton {result['triton']}; registers of a thread, spilled bytes, and shared memory: the most."
    return ResultTable(header, rows, align="lrrrrlrr", note=note)


def _instructions(rows: Sequence[Mapping[str, Any]]) -> str:
    """The tensor-core instructions of attention in 16 bits; decode with few rows may take another than prefill."""
    attention = [
        row for row in rows if row["launch"] in ("paged_decode", "paged_prefill") and row["dtype"] != "float32"
    ]
    names = sorted({row["mma"].partition(".")[0] for row in attention} - {"none"})
    return ", ".join(names) or "multiply and add"


def interpreter_table(result: Mapping[str, Any]) -> ResultTable:
    """The worst error of each kernel in each dtype, beside its limit."""
    cases = result["cases"]
    dtypes = list(dict.fromkeys(case["dtype"] for case in cases))
    rows = [
        (kernel, *(_worst([c for c in cases if (c["kernel"], c["dtype"]) == (kernel, dtype)]) for dtype in dtypes))
        for kernel in dict.fromkeys(case["kernel"] for case in cases)
    ]
    versions = ", ".join(f"{name} {version}" for name, version in result["versions"].items())
    note = f"The worst error of {len(cases)} cases in Triton's interpreter ({versions}), and the limit."
    return ResultTable(["kernel", *dtypes], rows, note=note)


def _worst(cases: Sequence[Mapping[str, Any]]) -> str:
    if not cases:
        return "not run"
    worst, limit = max(case["error"] for case in cases), cases[0]["tolerance"]
    if worst > limit:
        return f"{_short(worst)} > {_short(limit)}: WRONG"
    return "exact" if worst == 0 else f"{_short(worst)} ≤ {_short(limit)}"


def _short(error: float) -> str:
    """Two digits: "2.1e-7"."""
    digits, exponent = f"{error:.1e}".split("e")
    return f"{float(digits):g}e{int(exponent)}"
