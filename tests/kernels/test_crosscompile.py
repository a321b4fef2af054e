"""The cross-compile table: complete, clean, and of these sources; and what the command says about an unclean kernel."""

import json
import os
import shutil
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from mini_vllm.kernels import crosscompile
from mini_vllm.kernels.crosscompile import problems, sources_hash, variant_columns
from mini_vllm.kernels.tiles import CARDS
from mini_vllm.kernels.variants import all_routed, all_variants

ROOT = Path(__file__).resolve().parents[2]
TABLE = ROOT / "benchmarks" / "results" / "crosscompile.json"


@pytest.fixture(scope="module")
def table() -> dict:
    return json.loads(TABLE.read_text())


def command(*arguments: str, script: Path | None = None, **env: str) -> subprocess.CompletedProcess:
    """The command in its own process, where Triton compiles."""
    start = [str(script)] if script else ["-m", "mini_vllm.kernels.crosscompile"]
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    return subprocess.run(
        [sys.executable, *start, *arguments], cwd=ROOT, env=environment | {"PYTHONPATH": str(ROOT)} | env,
        capture_output=True, text=True, check=False,
    )  # fmt: skip


def key(columns: dict) -> str:
    return json.dumps({name: columns[name] for name in variant_columns(next(all_variants()))})


# The stored table.


def test_the_table_covers_exactly_what_the_tiles_select(table):
    stored = {key(row) for row in table["kernels"]}
    selected = {key(variant_columns(variant)) for variant in all_variants()}
    assert stored == selected, f"way out: python -m mini_vllm.kernels.crosscompile --all --json {TABLE}"
    assert table["routed"] == list(all_routed())


def test_every_kernel_of_the_table_is_clean(table):
    assert [problem for row in table["kernels"] for problem in problems(row)] == []
    assert {tuple(row["capability"]) for row in table["kernels"]} == set(CARDS)


def test_the_instructions_are_those_of_the_card(table):
    def instructions(capability: list[int], dtype: str) -> set[str]:
        rows = [row for row in table["kernels"] if (row["capability"], row["dtype"]) == (capability, dtype)]
        return {row["mma"] for row in rows if row["kernel"] == "_paged_prefill"}

    assert instructions([7, 5], "float16") == {"none"}  # why a T4 multiplies and sums
    assert instructions([8, 0], "bfloat16") == {"mma.sync"}
    assert instructions([9, 0], "bfloat16") == {"wgmma.mma_async"}
    assert instructions([10, 0], "float16") == {"tcgen05.mma"}
    assert instructions([9, 0], "float32") == {"none"}  # tf32 would miss the tolerance


def test_the_table_is_of_these_sources(table, tmp_path):
    """Up to date: five variants, compiled now, are as stored. Out of date: the quick ones must at least be clean."""
    launches = {variant.launch for variant in all_variants()}
    current = {"triton": version("triton"), "sources": {launch: sources_hash(launch) for launch in launches}}
    if {name: table[name] for name in current} != current:
        finished = command()
        assert finished.returncode == 0, finished.stderr
        return
    script = tmp_path / "few.py"
    script.write_text(
        "import sys\n"
        "from mini_vllm.kernels import crosscompile\n"
        "from mini_vllm.kernels.variants import all_variants\n"
        "def few(cards):\n"
        "    wanted = ('paged_decode', 'paged_decode_split', 'paged_prefill', 'store_kv', 'rms_norm')\n"
        "    found = {v.launch: v for v in all_variants(cards) if v.dtype == 'bfloat16' and v.width in (128, 4096)}\n"
        "    return [found[launch] for launch in wanted]\n"
        "crosscompile.quick_variants = few\n"
        "if __name__ == '__main__':\n"
        "    sys.exit(crosscompile.main(sys.argv[1:]))\n"
    )
    written = tmp_path / "few.json"
    finished = command("--cc", "90", "--json", str(written), script=script, MINI_VLLM_CACHE=str(tmp_path))
    assert finished.returncode == 0, finished.stderr
    assert finished.stdout.splitlines()[0].split()[:3] == ["kernel", "cc", "dtype"]
    assert "6 kernels, 0 problems" in finished.stdout  # a split is merged by one more
    stored = {(key(row), row["kernel"]): row for row in table["kernels"]}
    for row in json.loads(written.read_text())["kernels"]:
        assert row == stored[key(row), row["kernel"]]


# Kernels that are not clean.

BAD = """
import sys
from mini_vllm.kernels import crosscompile
from mini_vllm.kernels.tiles import PrefillTile
from mini_vllm.kernels.variants import Variant
spills = Variant("paged_prefill", (7, 5), "float16", 64, 7, tile=PrefillTile(64, 32, 4, 1, ""))
too_large = Variant("paged_prefill", (8, 9), "float16", 256, 7, tile=PrefillTile(64, 32, 8, 5, ""))
crosscompile.quick_variants = lambda cards: [spills, too_large]
if __name__ == "__main__":
    sys.exit(crosscompile.main(sys.argv[1:]))
"""


def test_spills_and_too_much_shared_memory_fail_and_are_kept(tmp_path):
    """Two tiles that were tried and left: real kernels, really compiled; the second run takes them from the disk."""
    script = tmp_path / "bad.py"
    script.write_text(BAD)
    first = command(script=script, MINI_VLLM_CACHE=str(tmp_path))
    again = command(script=script, MINI_VLLM_CACHE=str(tmp_path))
    assert "2 of 2 compiled" in first.stderr and "compiled" not in again.stderr
    for finished in (first, again):
        assert finished.returncode == 1
        assert "2 kernels, 2 problems" in finished.stdout
        spilling, large = (line for line in finished.stderr.splitlines() if "Way out" in line)
        assert "_paged_prefill" in spilling and "on T4: spills" in spilling and "0 are allowed" in spilling
        assert "on L4: asks for 102656 bytes of shared memory of 101376" in large


CLEAN = {
    "launch": "paged_decode", "kernel": "_paged_decode", "capability": [9, 0], "dtype": "bfloat16", "width": 128,
    "group": 4, "max_query_len": 1, "windowed": False, "tile": {"block_n": 64, "num_stages": 5, "use_dot": True},
    "registers": 124, "spill_bytes": 0, "shared_bytes": 72_192, "mma": "mma.sync", "buffers": 2,
}  # fmt: skip


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({}, None),
        ({"spill_bytes": 4}, "spills 4 bytes a thread, and 0 are allowed"),
        ({"shared_bytes": 232_448}, None),
        ({"shared_bytes": 232_449}, "asks for 232449 bytes of shared memory of 232448"),
        ({"mma": "none"}, "no tensor-core instruction"),
        ({"mma": "none", "dtype": "float32"}, None),
        ({"buffers": 1}, "loads 1 tiles of K and V ahead, and num_stages promises 2"),
        ({"buffers": 1, "kernel": "_merge_splits", "mma": "none"}, None),  # reads no K and V
    ],
)
def test_each_problem_by_itself(changed, said):
    found = problems(CLEAN | changed)
    assert len(found) == (said is not None)
    if said:
        assert said in found[0] and "H200" in found[0] and "Way out" in found[0]


# The command and the cache.


def test_comments_and_docstrings_do_not_count_as_sources_and_code_does(tmp_path):
    for name in ("paged_prefill", "device_code", "compiled_variant"):
        shutil.copy(ROOT / "mini_vllm" / "kernels" / f"{name}.py", tmp_path)
    assert sources_hash("paged_prefill", tmp_path) == sources_hash("paged_prefill")
    kernel = tmp_path / "paged_prefill.py"
    source = kernel.read_text()
    changes = {
        ("# [M, D]", "# [M, D]: q"): False,
        ('"""One KV tile: ', '"""A tile of K and V: '): False,
        ("tl.exp2(max_score", "tl.exp2(2 * max_score"): True,
    }
    for change, counts in changes.items():
        assert change[0] in source
        kernel.write_text(source.replace(*change))
        sources_hash.cache_clear()
        assert (sources_hash("paged_prefill", tmp_path) != sources_hash("paged_prefill")) is counts


def test_each_launch_knows_its_sources():
    for variant in all_variants():
        assert sources_hash(variant.launch)
    assert sources_hash("paged_decode") != sources_hash("paged_decode_split") != sources_hash("paged_prefill")


def test_another_dtype_or_tile_is_another_entry_of_the_cache():
    keys = {crosscompile._key(variant) for variant in all_variants()}
    assert len(keys) == len(list(all_variants()))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [(["--cc", "74"], "invalid choice: 74"), (["--processes", "0"], "--processes 0 must be at least 1")],
)
def test_what_the_command_refuses(arguments, said, capsys):
    with pytest.raises(SystemExit) as stopped:
        crosscompile.main(arguments)
    assert stopped.value.code == 2
    assert said in capsys.readouterr().err
