"""The compiled CPU operations against the plain ones, and what happens where they cannot be had. Chapter 14."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from mini_vllm.engine.attention.backend import AttentionMetadata
from mini_vllm.engine.attention.cpu import CpuPagedAttention
from mini_vllm.engine.attention.torch import TorchPagedAttention
from mini_vllm.models import cpu_ops
from mini_vllm.models.cpu_ops import CpuOps, can_use_cpu_ops
from mini_vllm.models.ops import TorchOps
from mini_vllm.models.packed import PackedLinear
from mini_vllm.models.tiny import tiny_model

from .test_llama import random_ids
from .variants import VARIANTS

needs_compiler = pytest.mark.skipif(
    not can_use_cpu_ops(torch.bfloat16, torch.device("cpu")), reason="no C compiler here"
)
# On these the order of oneDNN's weights is known to be ours; on others either answer is right.
CPU = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
ORDER_IS_OURS = "avx512_bf16" in CPU and "amx" not in CPU
ONE_ROUNDING = 2**-7  # of a bfloat16, relative
SIZES = [(1, 1, 64), (3, 5, 80), (7, 2, 30), (33, 9, 128), (130, 1, 576)]  # tokens, heads, dim; the last uses threads


def numbers(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).bfloat16()


def assert_alike(found: torch.Tensor, expected: torch.Tensor) -> None:
    assert found.dtype == expected.dtype and found.shape == expected.shape
    torch.testing.assert_close(found.double(), expected.double(), rtol=ONE_ROUNDING, atol=1e-5)


@needs_compiler
@pytest.mark.parametrize(("tokens", "heads", "dim"), SIZES)
def test_small_operations_are_those_of_torch(tokens, heads, dim):
    plain, compiled = TorchOps(), CpuOps()
    joined = numbers(1, tokens, heads + 2, dim)
    x = joined[:, 1 : 1 + heads]  # rows that lie apart, as q in a joined qkv
    weight, cos, sin = numbers(2, dim), numbers(3, tokens, 1, dim), numbers(4, tokens, 1, dim)
    assert_alike(compiled.rms_norm(x, weight, 1e-5), plain.rms_norm(x, weight, 1e-5))

    flat, residual = numbers(5, tokens, dim), numbers(6, tokens, dim)
    expected = plain.add_rms_norm(flat, residual, weight, 1e-5)
    for found, wanted in zip(compiled.add_rms_norm(flat, residual.clone(), weight, 1e-5), expected, strict=True):
        assert_alike(found, wanted)

    gate_up = numbers(7, tokens, 2 * dim) * 8
    assert_alike(compiled.silu_and_mul(gate_up), plain.silu_and_mul(gate_up))

    before = joined.clone()
    wanted = plain.rotate(x.clone(), before[:, :1].clone(), cos, sin)
    for found, expected_rows in zip(compiled.rotate(x, joined[:, :1], cos, sin), wanted, strict=True):
        assert_alike(found, expected_rows)
    assert torch.equal(joined[:, 1 + heads :], before[:, 1 + heads :])  # the neighbours stay as they were


@needs_compiler
def test_extreme_numbers():
    """Large gates neither overflow nor vanish where torch's do not, and a NaN stays one."""
    gate = torch.tensor([-1e4, -90.0, -87.5, -30.0, -0.0, 0.0, 30.0, 88.5, 1e4, float("nan"), float("inf")]).bfloat16()
    gate_up = torch.cat((gate, torch.ones_like(gate)))[None]
    found, expected = CpuOps().silu_and_mul(gate_up), TorchOps().silu_and_mul(gate_up)
    torch.testing.assert_close(found.float(), expected.float(), rtol=ONE_ROUNDING, atol=1e-30, equal_nan=True)
    assert CpuOps().rms_norm(torch.full((1, 4), torch.nan).bfloat16(), numbers(0, 4), 1e-5).isnan().all()


@needs_compiler
@pytest.mark.parametrize("tokens", [1, 2, 3, 4, 5, 6, 7, 12, 16, 17])
@pytest.mark.parametrize(("out_features", "in_features"), [(64, 32), (192, 96), (576, 1536)])
def test_products_of_few_tokens(tokens, out_features, in_features):
    """Whole numbers, so that the sums are exact: every weight must meet its own input, in every row."""
    dice = torch.Generator().manual_seed(tokens)
    x, weight, bias = (
        torch.randint(-8, 9, shape, generator=dice).bfloat16()
        for shape in ((tokens, in_features), (out_features, in_features), (out_features,))
    )
    linear, plain = PackedLinear([weight], [bias]), PackedLinear([weight])
    assert linear.pointer is not None or not ORDER_IS_OURS
    exact = x.double() @ weight.double().T
    assert torch.equal(linear(x), (exact + bias.double()).bfloat16())
    assert torch.equal(plain(x), exact.bfloat16())


@needs_compiler
def test_an_order_that_is_not_the_expected_one_is_noticed(monkeypatch):
    weight = numbers(0, 128, 64)
    packed = torch.ops.mkldnn._reorder_linear_weight(weight, None)
    other = torch.ops.mkldnn._reorder_linear_weight(weight.roll(1, 0), None)
    assert cpu_ops.pointer_to(packed, 128, 64) == torch.ops.mkldnn.data_ptr(packed) or not ORDER_IS_OURS
    assert cpu_ops.pointer_to(packed, 100, 64) is cpu_ops.pointer_to(packed, 128, 48) is None  # sizes it cannot read
    true_pointer = torch.ops.mkldnn.data_ptr.default
    fake = SimpleNamespace(default=lambda tensor: true_pointer(other))
    monkeypatch.setattr(torch.ops.mkldnn, "data_ptr", fake)
    assert cpu_ops.pointer_to(packed, 128, 64) is None


def random_step(seed: int, group: int, kv_heads: int, dim: int, block_size: int, decodes_only: bool, window=None):
    """(q, k, v, kv_cache, metadata) of a ragged step: decodes, whole prompts, pieces.

    What no request owns is NaN, and so is what none of its rows can see any more.
    """
    dice = torch.Generator().manual_seed(seed)
    count = int(torch.randint(1, 7, (1,), generator=dice))
    context = torch.randint(1, 200, (count,), generator=dice).tolist()
    pieces = [int(torch.randint(1, n + 1, (1,), generator=dice)) for n in context]
    query = [1 if decodes_only else (1, n, pieces[i], min(n, 2))[(seed + i) % 4] for i, n in enumerate(context)]
    num_blocks = 1 + sum(-(-n // block_size) for n in context)
    free = (torch.randperm(num_blocks - 1, generator=dice) + 1).tolist()
    table = torch.zeros(count, max(-(-n // block_size) for n in context), dtype=torch.int32)
    kv_cache = torch.full((2, num_blocks, block_size, kv_heads, dim), torch.nan, dtype=torch.bfloat16)
    kv_cache[:, 0] = 0
    slots = []
    for i, n in enumerate(context):
        mine = [free.pop() for _ in range(-(-n // block_size))]
        table[i, : len(mine)] = torch.tensor(mine)
        for p in range(max(0, n - query[i] + 1 - window) if window else 0, n):
            kv_cache[:, mine[p // block_size], p % block_size] = numbers(seed * 1000 + i * 200 + p, 2, kv_heads, dim)
        slots += [mine[p // block_size] * block_size + p % block_size for p in range(n - query[i], n)]
    starts = torch.tensor([0, *query]).cumsum(0, dtype=torch.int32)
    meta = AttentionMetadata(
        starts, torch.tensor(context, dtype=torch.int32), table, torch.tensor(slots), max(query), max(context)
    )
    qkv = numbers(seed, sum(query), kv_heads * (group + 2), dim)
    q, k, v = qkv.split((kv_heads * group, kv_heads, kv_heads), dim=1)
    return q, k, v, kv_cache, meta


@needs_compiler
def test_a_negative_slot_stores_nothing():
    kv_cache, k, v = numbers(1, 2, 3, 4, 2, 16), numbers(2, 3, 2, 16), numbers(3, 3, 2, 16)
    expected = kv_cache.clone()
    expected[:, 1, 3], expected[:, 0, 0] = torch.stack((k[0], v[0])), torch.stack((k[2], v[2]))
    cpu_ops.store_kv(k, v, kv_cache, torch.tensor([7, -1, 0]))
    assert torch.equal(kv_cache, expected)


@needs_compiler
@pytest.mark.parametrize("prefills_in_c", [True, False])
@pytest.mark.parametrize("window", [None, 1, 24])
@pytest.mark.parametrize(
    ("group", "kv_heads", "dim", "block_size"),
    [(3, 3, 64, 16), (1, 2, 96, 4), (8, 1, 32, 3), (2, 1, 128, 16), (16, 1, 32, 16), (17, 2, 32, 5)],
)
def test_attention_is_that_of_float64(group, kv_heads, dim, block_size, window, prefills_in_c, monkeypatch):
    if not prefills_in_c:  # as on a CPU with narrower vectors
        monkeypatch.setattr(cpu_ops, "can_prefill", lambda *heads: False)
    for seed in range(8):
        q, k, v, kv_cache, meta = random_step(seed, group, kv_heads, dim, block_size, seed < 3, window)
        exact_cache = kv_cache.double()
        found = CpuPagedAttention(window).forward(q, k, v, kv_cache, meta)
        meta.scratch = {}
        exact = TorchPagedAttention(window).forward(q.double(), k.double(), v.double(), exact_cache, meta)
        assert torch.equal(torch.nan_to_num(kv_cache.double()), torch.nan_to_num(exact_cache))
        error = (found.double() - exact).abs().amax(-1) / exact.abs().amax(-1)
        assert error.max() < 1.5e-2, (seed, error)


@needs_compiler
@pytest.mark.parametrize("decodes_only", [True, False])
def test_rounding_of_the_weights_leans_to_no_side(decodes_only):
    """Values around 100: if all weights came out a little too large, so would every result."""
    q, k, v, kv_cache, meta = random_step(7, 3, 3, 64, 16, decodes_only)
    v, kv_cache[1] = v + 100, kv_cache[1] + 100
    exact_cache = kv_cache.double()
    found = CpuPagedAttention().forward(q, k, v, kv_cache, meta)
    meta.scratch = {}
    exact = TorchPagedAttention().forward(q.double(), k.double(), v.double(), exact_cache, meta)
    assert abs((found.double() / exact - 1).mean()) < 3e-4  # one unit of a weight's last place is 4e-3 to 8e-3


# Vectors of 256 bits; of 512, but none of pairs; and what this CPU has.
LEVELS = [level for level, needs in (("x86-64-v3", "avx2"), ("x86-64-v4", "avx512vl"), ("native", "")) if needs in CPU]


@needs_compiler
@pytest.mark.parametrize("level", LEVELS)
def test_the_forms_of_lesser_cpus(level, tmp_path, monkeypatch):
    monkeypatch.setenv("MINI_VLLM_CACHE", str(tmp_path))
    monkeypatch.setattr(cpu_ops, "FLAGS", (f"-march={level}", "-Wno-psabi", *cpu_ops.FLAGS[2:], cpu_ops.FLAGS[0]))
    cpu_ops.library.cache_clear()
    try:
        assert cpu_ops.can_prefill(6, 2) == (level == "x86-64-v4" or (level == "native" and "avx512f" in CPU))
        for window in (None, 24):
            test_attention_is_that_of_float64(3, 3, 64, 16, window, True, monkeypatch)
        for tokens in (1, 3, 16):
            test_products_of_few_tokens(tokens, 192, 96)
    finally:
        cpu_ops.library.cache_clear()


@needs_compiler
@pytest.mark.parametrize("scale", [0.0, 30.0])
def test_attention_with_even_and_with_huge_scores(scale):
    """Scores that are all alike, and scores in the hundreds, where one token gets all the weight."""
    q, k, v, kv_cache, meta = random_step(5, 3, 2, 64, 16, decodes_only=False)
    q, exact_cache = q * scale, kv_cache.double()
    found = CpuPagedAttention().forward(q, k, v, kv_cache, meta)
    meta.scratch = {}
    exact = TorchPagedAttention().forward(q.double(), k.double(), v.double(), exact_cache, meta)
    assert ((found.double() - exact).abs().amax(-1) / exact.abs().amax(-1)).max() < 1.5e-2


@needs_compiler
@pytest.mark.parametrize("poisoned", ["q", "k", "v"])
def test_a_nan_stays_with_its_request(poisoned):
    q, k, v, kv_cache, meta = random_step(6, 3, 2, 64, 16, decodes_only=False)
    {"q": q, "k": k, "v": v}[poisoned][0] = torch.nan  # of request 0, in its first row
    found = CpuPagedAttention().forward(q, k, v, kv_cache, meta)
    others = int(meta.query_start_loc[1])
    assert found[0].isnan().all() and not found[others:].isnan().any() and len(found) > others


@needs_compiler
@pytest.mark.parametrize("rows", [1, 3])  # a decode; a piece
def test_scores_that_overflow_are_not_hidden(rows):
    """Every score is minus infinity: no answer is right, and 0 would pass for one."""
    q, k, v = (torch.full((rows, 1, 32), fill).bfloat16() for fill in (3e38, -3e38, 1.0))
    starts, table = torch.tensor([0, rows], dtype=torch.int32), torch.tensor([[1]], dtype=torch.int32)
    meta = AttentionMetadata(starts, starts[1:], table, torch.arange(4, 4 + rows), rows, rows)
    assert CpuPagedAttention().forward(q, k, v, torch.zeros(2, 2, 4, 1, 32).bfloat16(), meta).isnan().all()


def test_tasks_cover_each_row_of_a_piece_once():
    tasks = cpu_ops.prefill_tasks([1, 12, 1, 5, 6], 6, 2)  # 16 // 3 = 5 rows each
    assert tasks.tolist() == [[1, 0], [1, 5], [1, 10], [3, 0], [4, 0], [4, 5]]
    assert cpu_ops.prefill_tasks([1, 1], 6, 2).shape == (0, 2)


@pytest.mark.parametrize(
    ("num_heads", "head_dim", "served"), [(9, 64, True), (32, 80, False), (8, 96, True), (129, 128, False)]
)
def test_head_sizes_that_the_c_form_takes(num_heads, head_dim, served, monkeypatch):
    monkeypatch.setattr(cpu_ops, "can_use_cpu_ops", lambda dtype, device: True)
    assert CpuPagedAttention.can_serve(torch.bfloat16, torch.device("cpu"), num_heads, head_dim) == served


@needs_compiler
@pytest.mark.parametrize("name", VARIANTS)
def test_a_whole_model(run_dense, name):
    """Every variant with compiled operations is as near to float64 as with the plain ones."""
    config = replace(VARIANTS[name], hidden_size=64)
    ids = random_ids(3, 40, config.vocab_size)

    def logits(dtype=torch.bfloat16, ops=None):
        model = tiny_model(1, dtype=dtype, logit_scale=1.0, config=config)
        return run_dense(model.use_ops(ops) if ops else model, ids).double()

    exact, plain, compiled = logits(torch.float64), logits(), logits(ops=CpuOps())
    assert (compiled - exact).abs().mean() < 1.2 * (plain - exact).abs().mean() + 1e-3


@pytest.mark.parametrize("setting", [{"MINI_VLLM_CPU_OPS": "0"}, {"CC": "no-such-compiler"}, {"CC": "false"}], ids=str)
def test_without_a_compiler_the_plain_form_serves(tmp_path, setting):
    code = "import torch; from mini_vllm.models.cpu_ops import library; print(library())"
    env = {**os.environ, "MINI_VLLM_CACHE": str(tmp_path), **setting}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "None" and "Traceback" not in done.stderr
    assert ("plain ones are used" in done.stderr) == ("CC" in setting and sys.platform.startswith("linux"))


@needs_compiler
def test_compiled_once_and_not_half(tmp_path, monkeypatch):
    monkeypatch.setenv("MINI_VLLM_CACHE", str(tmp_path))
    first = cpu_ops._compiled("cc")
    stamp = first.stat().st_mtime_ns
    assert cpu_ops._compiled("cc") == first and first.stat().st_mtime_ns == stamp
    assert [path.name for path in first.parent.iterdir()] == [first.name]
