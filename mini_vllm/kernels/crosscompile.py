"""Compiles every chosen kernel for GPUs that are not there, and says what came out. Knows no algorithm. Chapter 13.

    python -m mini_vllm.kernels.crosscompile                   what the tests compile: heads of 64 and 128, four cards
    python -m mini_vllm.kernels.crosscompile --all --json F    the whole matrix, written to F

No GPU is needed: Triton's wheel brings NVIDIA's assembler along. A clean kernel is not yet a right or a fast one; but
one that spills or asks for more shared memory than the card has is slow, or fails at its first launch.
Exit status 1 if any kernel is not clean. Results are kept on disk by a hash of kernel sources, Triton and variant.
"""

import argparse
import ast
import hashlib
import json
import multiprocessing
import os
import sys
import time
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

from mini_vllm.errors import MiniVLLMError
from mini_vllm.kernels.mode import require_triton
from mini_vllm.kernels.tiles import CARDS
from mini_vllm.kernels.variants import Variant, all_routed, all_variants, quick_variants
from mini_vllm.loaders.cache_folder import default_cache_folder, make_folder

TEST_CAPABILITIES = ((7, 5), (8, 0), (8, 9), (9, 0))
# The files whose change changes a compiled kernel.
_SOURCES = {
    "paged_decode": ("paged_decode", "device_code"),
    "paged_decode_split": ("split_kv", "paged_decode", "device_code"),
    "paged_prefill": ("paged_prefill", "device_code"),
    "store_kv": ("kv_store",),
}
COLUMNS = ("kernel", "cc", "dtype", "width", "rows", "tile", "registers", "spills", "shared", "mma", "ahead")


def rows_of(variants: Iterable[Variant], *, processes: int, progress: bool = False) -> list[dict[str, Any]]:
    """One row for each kernel of each variant, out of the cache or compiled now, in the order of the variants.

    A row holds the variant, what the compiler said (see `Compiled`), and "problems", empty for a clean kernel.
    """
    variants = list(variants)
    folder = make_folder(default_cache_folder() / "crosscompile")
    files = {variant: folder / f"{_key(variant)}.json" for variant in variants}
    missing = [variant for variant in variants if not files[variant].exists()]
    started = time.monotonic()
    # Spawned, not forked: a child must import triton for itself, to compile and not to interpret.
    with ProcessPoolExecutor(processes, multiprocessing.get_context("spawn")) as pool:
        jobs = [pool.submit(_compile_to, variant, files[variant]) for variant in missing]
        for done, job in enumerate(as_completed(jobs), start=1):
            job.result()
            if progress and (done % 25 == 0 or done == len(jobs)):
                print(
                    f"  {done} of {len(jobs)} compiled, {time.monotonic() - started:.0f} s", file=sys.stderr, flush=True
                )
    rows = [row for variant in variants for row in json.loads(files[variant].read_text())]
    return [{**row, "problems": problems(row)} for row in rows]


def problems(row: dict[str, Any]) -> list[str]:
    """What must not be in a compiled kernel, each with value, limit and way out. Empty for a clean one."""
    card, tile = CARDS[tuple(row["capability"])], row["tile"]
    where = "{kernel} ({launch}, {dtype}, width {width}, rows {group} x {max_query_len}, tile {tile})".format(**row)
    way_out = "Way out: another tile in tiles.py (fewer rows or tokens, more warps), or Routed(reason)."
    found = []
    if row["spill_bytes"]:
        found.append(f"spills {row['spill_bytes']} bytes a thread, and 0 are allowed. {way_out}")
    if row["shared_bytes"] > card.shared_bytes:
        found.append(f"asks for {row['shared_bytes']} bytes of shared memory of {card.shared_bytes}. {way_out}")
    attends = bool(tile) and row["kernel"] != "_merge_splits"
    if attends and card.capability >= (8, 0) and row["dtype"] != "float32" and row["mma"] == "none":
        found.append(f"has no tensor-core instruction in its PTX, and one is expected. {way_out}")
    ahead = (tile.get("num_stages", 1) - 1) // 2
    if attends and row["buffers"] < ahead:
        found.append(
            f"loads {row['buffers']} tiles of K and V ahead, and num_stages promises {ahead}. Way out: look at the "
            "loop. Triton overlaps loads only in a `for`, and only those that do not hang on one another."
        )
    return [f"{where} on {card.name}: {problem}" for problem in found]


@cache
def sources_hash(launch: str, folder: Path = Path(__file__).parent) -> str:
    """Of the code that a launch compiles; comments and docstrings do not count."""
    digest = hashlib.sha256()
    for name in (*_SOURCES.get(launch, ("fused",)), "compiled_variant"):
        tree = ast.parse((folder / f"{name}.py").read_text())
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.Module) and ast.get_docstring(node) is not None:
                node.body = node.body[1:]
        digest.update(ast.dump(tree).encode())
    return digest.hexdigest()[:16]


def _key(variant: Variant) -> str:
    text = f"{variant} {sources_hash(variant.launch)} {version('triton')}"
    return hashlib.sha256(text.encode()).hexdigest()[:24]


def _compile_to(variant: Variant, file: Path) -> None:
    """In a process of its own: compiles, and leaves the rows in `file`, whole or not at all."""
    from mini_vllm.kernels.compiled_variant import compile_variant

    rows = [{**variant_columns(variant), **asdict(kernel)} for kernel in compile_variant(variant)]
    unfinished = file.with_suffix(f".{os.getpid()}")
    unfinished.write_text(json.dumps(rows))
    unfinished.replace(file)


def variant_columns(variant: Variant) -> dict[str, Any]:
    """What tells one row of the table from another, as plain data."""
    return {
        "launch": variant.launch,
        "capability": list(variant.capability),
        "dtype": variant.dtype,
        "width": variant.width,
        "group": variant.group,
        "max_query_len": variant.max_query_len,
        "windowed": variant.windowed,
        "tile": variant.tile_numbers(),
    }


def as_table(rows: list[dict[str, Any]]) -> str:
    """The rows as a text table. spills and shared: bytes; ahead: tiles of K and V that are loaded ahead."""
    lines = [COLUMNS]
    for row in rows:
        tile = row["tile"]
        sizes = [tile[name] for name in ("block_m", "block_n", "num_warps", "num_stages") if name in tile]
        lines.append(
            (
                row["kernel"].strip("_") + (" (window)" if row["windowed"] else ""),
                "sm_{}{}".format(*row["capability"]),
                row["dtype"],
                str(row["width"]),
                str(row["group"] * row["max_query_len"]),
                "x".join(map(str, sizes)),
                str(row["registers"]),
                str(row["spill_bytes"]),
                str(row["shared_bytes"]),
                row["mma"],
                str(row["buffers"]),
            )
        )
    widths = [max(len(line[column]) for line in lines) for column in range(len(COLUMNS))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines
    )


def as_json(rows: list[dict[str, Any]], routed: list[dict[str, Any]]) -> str:
    """A file of the table: versions, then one row a line."""
    head = {
        "triton": version("triton"),
        "sources": {launch: sources_hash(launch) for launch in dict.fromkeys(row["launch"] for row in rows)},
    }
    lines = [json.dumps(head)[:-1] + ',\n"kernels": [', ",\n".join(map(json.dumps, rows)), '],\n"routed": [']
    return "\n".join([*lines, ",\n".join(map(json.dumps, routed)), "]}"]) + "\n"


def main(arguments: list[str] | None = None) -> int:
    """The command. Returns its exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    known = {10 * major + minor: (major, minor) for major, minor in CARDS}
    parser.add_argument("--cc", nargs="+", type=int, choices=sorted(known), help="compute capabilities, such as 75 90")
    parser.add_argument("--all", action="store_true", help="every card, dtype and head_dim (takes minutes)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the table here, too")
    parser.add_argument(
        "--processes", type=int, default=os.cpu_count() or 1, help="that compile at once (default: %(default)s)"
    )
    options = parser.parse_args(arguments)
    if options.processes < 1:
        parser.error(f"--processes {options.processes} must be at least 1")
    try:
        require_triton()
        os.environ.pop("TRITON_INTERPRET", None)  # the children are to compile
        default = tuple(CARDS) if options.all else TEST_CAPABILITIES
        cards = [CARDS[cc] for cc in ([known[cc] for cc in options.cc] if options.cc else default)]
        variants = list(all_variants(cards) if options.all else quick_variants(cards))
        print(f"{len(variants)} variants, Triton {version('triton')}, {options.processes} processes", file=sys.stderr)
        rows = rows_of(variants, processes=options.processes, progress=True)
    except MiniVLLMError as error:
        print(f"crosscompile: {error}", file=sys.stderr)
        return 1
    routed = list(all_routed(cards))
    print(as_table(rows))
    for entry in routed:
        print(
            "routed to torch: {launch} sm_{capability[0]}{capability[1]} {dtype} width {width}: {reason}".format(
                **entry
            )
        )
    if options.json:
        options.json.write_text(as_json(rows, routed))
    unclean = [problem for row in rows for problem in row["problems"]]
    print(f"{len(rows)} kernels, {len(unclean)} problems")
    for problem in unclean:
        print(problem, file=sys.stderr)
    return 1 if unclean else 0


if __name__ == "__main__":
    sys.exit(main())
