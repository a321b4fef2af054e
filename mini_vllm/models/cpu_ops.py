"""Compiles `cpu_ops.c` and `cpu_attention.c` where a C compiler is, and calls them. Knows bfloat16 tensors. Chapter 14.

Optional: without a compiler, or with MINI_VLLM_CPU_OPS=0, the plain torch forms of `models.ops` are used. Compiling
takes about a second, once a machine; the library stays in the cache folder. `benchmarks/cpu_engine.py` says what it
gives.
"""

import ctypes
import functools
import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from mini_vllm.loaders.cache_folder import default_cache_folder
from mini_vllm.models.ops import TorchOps

SWITCH = "MINI_VLLM_CPU_OPS"
HEADER, *SOURCES = (Path(__file__).with_name(name) for name in ("cpu_ops.h", "cpu_ops.c", "cpu_attention.c"))
FLAGS = (
    "-O3",
    "-march=native",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-funroll-loops",
    "-fopenmp",
    "-fPIC",
    "-std=c11",
)
# What the C attention takes: it keeps a row's sums on its stack, and reads numbers in vectors of LANES pairs.
MAX_ROW, LANES = 16384, 16
FEW_TOKENS = 16  # with more, oneDNN's product is the faster one
_COMPILE_LIMIT_S = 60
# name: how many pointers, then 64-bit sizes, then floats
_ARGUMENTS = {
    "rms_norm": (4, 4, 1),
    "rotate": (3, 4, 0),
    "silu_and_mul": (2, 2, 0),
    "few_tokens_product": (4, 3, 0),
    "store_kv": (5, 4, 0),
    "paged_decode": (7, 8, 1),
    "paged_prefill": (8, 8, 1),
}


@functools.cache
def library() -> ctypes.CDLL | None:
    """The compiled library, or None where there cannot be one. Never raises: the plain forms do the same work."""
    if os.environ.get(SWITCH) == "0" or not sys.platform.startswith("linux"):
        return None
    compiler = os.environ.get("CC") or shutil.which("cc")
    if compiler is None:
        return None
    try:
        found = ctypes.CDLL(str(_compiled(compiler)))
    except (OSError, subprocess.SubprocessError) as error:
        print(f"mini_vllm: no compiled CPU operations, the plain ones are used ({error})", file=sys.stderr)
        return None
    for name, (pointers, sizes, floats) in _ARGUMENTS.items():
        if hasattr(found, name):
            types = [ctypes.c_void_p] * pointers + [ctypes.c_int64] * sizes + [ctypes.c_float] * floats
            getattr(found, name).argtypes = types
    return found


def _compiled(compiler: str) -> Path:
    """Path of the library in the cache folder; compiled first if this source, these flags or this CPU are new."""
    cpu = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    features = next((line for line in cpu.splitlines() if line.startswith(("flags", "Features"))), platform.machine())
    texts = [path.read_text(encoding="utf-8") for path in (HEADER, *SOURCES)]
    key = hashlib.sha256("\n".join((*texts, *FLAGS, compiler, features)).encode())
    target = default_cache_folder() / "cpu_ops" / f"{key.hexdigest()[:20]}.so"
    if target.exists():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        compiled, linked = [Path(folder) / f"{source.stem}.o" for source in SOURCES], Path(folder) / "cpu_ops.so"
        for source, to in zip(SOURCES, compiled, strict=True):
            _run([compiler, *FLAGS, "-c", str(source), "-o", str(to)])
        # Linked without -fopenmp: torch has loaded its OpenMP for everybody, and a second one would mean other threads.
        _run([compiler, "-shared", "-o", str(linked), *map(str, compiled), "-lm"])
        os.replace(linked, target)  # at once, so that no other process loads half a file
    return target


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=_COMPILE_LIMIT_S)
    if done.returncode:
        raise OSError(f"{command[0]}: {done.stderr.strip().splitlines()[-1] if done.stderr.strip() else 'failed'}")


def can_use_cpu_ops(dtype: torch.dtype, device: torch.device) -> bool:
    return dtype == torch.bfloat16 and device.type == "cpu" and library() is not None


class CpuOps(TorchOps):
    """The operations of `TorchOps`, compiled. bfloat16 on a CPU; the numbers of a row must lie side by side."""

    def __init__(self) -> None:
        found = library()
        if found is None:
            raise OSError("there is no compiled library here; ask can_use_cpu_ops first")
        self.lib = found

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        out = torch.empty(x.shape, dtype=x.dtype)
        heads = x.shape[1] if x.ndim == 3 else 1
        sizes = x.shape[0], heads, x.shape[-1], x.stride(0)
        self.lib.rms_norm(out.data_ptr(), x.data_ptr(), None, weight.data_ptr(), *sizes, eps)
        return out

    def add_rms_norm(self, x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        out = torch.empty_like(residual)
        sizes = x.shape[0], 1, x.shape[1], x.stride(0)
        self.lib.rms_norm(out.data_ptr(), x.data_ptr(), residual.data_ptr(), weight.data_ptr(), *sizes, eps)
        return out, residual

    def rotate(self, q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        for x in (q, k):
            self.lib.rotate(x.data_ptr(), cos.data_ptr(), sin.data_ptr(), *x.shape, x.stride(0))
        return q, k

    def silu_and_mul(self, gate_up: Tensor) -> Tensor:
        tokens, width = gate_up.shape
        out = torch.empty(tokens, width // 2, dtype=gate_up.dtype)
        self.lib.silu_and_mul(out.data_ptr(), gate_up.data_ptr(), tokens, width // 2)
        return out


def few_tokens_product(x: Tensor, weight_pointer: int, bias: Tensor | None, out_features: int) -> Tensor:
    """x [1 to FEW_TOKENS, in] times a weight in oneDNN's order, the one for which `pointer_to` gave this pointer."""
    found = library()
    assert found is not None, "ask pointer_to first"
    x, out = x.contiguous(), torch.empty(x.shape[0], out_features, dtype=x.dtype)
    of_bias = None if bias is None else bias.data_ptr()
    found.few_tokens_product(
        out.data_ptr(), x.data_ptr(), weight_pointer, of_bias, x.shape[0], out_features, x.shape[1]
    )
    return out


def pointer_to(packed: Tensor, out_features: int, in_features: int) -> int | None:
    """Where oneDNN keeps this weight, if it has laid it out as the C file expects. Keep `packed` as long as it is used.

    Tried on one row, because oneDNN's order is its own business.
    """
    fits = out_features % 64 == 0 and in_features % 32 == 0
    if not fits or library() is None or not hasattr(torch.ops.mkldnn, "data_ptr"):
        return None
    pointer = torch.ops.mkldnn.data_ptr.default(packed)
    x = torch.randn(1, in_features, generator=torch.Generator().manual_seed(0)).bfloat16()
    theirs = torch.ops.mkldnn._linear_pointwise.default(x, packed, None, "none", [], "").float()
    ours = few_tokens_product(x, pointer, None, out_features).float()
    # The same sums, rounded in another order.
    return pointer if (ours - theirs).abs().max() <= 0.02 * theirs.abs().max() else None


def view_of_packed(packed: Tensor, rows: int, dim: int) -> Tensor:
    """[rows / 64, dim / 2, 64, 2]: the memory of a weight for which `pointer_to` gave a pointer, without a copy.

    Number k of row n is [n // 64, k // 2, n % 64, k % 2]. Keep `packed` as long as the view is used.
    """
    memory = (ctypes.c_uint16 * (rows * dim)).from_address(torch.ops.mkldnn.data_ptr.default(packed))
    return torch.frombuffer(memory, dtype=torch.bfloat16).view(rows // 64, dim // 2, 64, 2)


def store_kv(k: Tensor, v: Tensor, kv_cache: Tensor, slot_mapping: Tensor) -> None:
    """k, v [T, Hkv, D] to their slots of kv_cache [2, num_blocks, block_size, Hkv, D]; slot_mapping [T] int64."""
    found = library()
    assert found is not None, "ask can_use_cpu_ops first"
    keys, values, tokens = kv_cache.data_ptr(), kv_cache[1].data_ptr(), len(slot_mapping)
    sizes = tokens, k.shape[1] * k.shape[2], k.stride(0), v.stride(0)
    found.store_kv(keys, values, k.data_ptr(), v.data_ptr(), slot_mapping.data_ptr(), *sizes)


def paged_decode(
    out: Tensor,
    q: Tensor,
    kv_cache: Tensor,
    rows: Tensor,
    seq_lens: Tensor,
    block_table: Tensor,
    sliding_window: int | None,
) -> None:
    """Attention of one row a request, written into `out`; no copy of K and V is made.

    out, q: [T, H, D], out contiguous. kv_cache: [2, num_blocks, block_size, Hkv, D]. rows [R] int64: the request's row.
    seq_lens [R] int32; block_table [R, width] int32.
    """
    found = library()
    assert found is not None, "ask can_use_cpu_ops first"
    block_size, kv_heads, dim = kv_cache.shape[2:]
    group = q.shape[1] // kv_heads
    tensors = out, q, kv_cache[0], kv_cache[1], rows, seq_lens, block_table
    sizes = len(rows), block_table.stride(0), q.stride(0), kv_heads, group, dim, block_size, sliding_window or 0
    found.paged_decode(*[tensor.data_ptr() for tensor in tensors], *sizes, dim**-0.5)


def can_prefill(num_heads: int, num_kv_heads: int) -> bool:
    """Whether `paged_prefill` is there for such heads."""
    return hasattr(library(), "paged_prefill") and num_heads // num_kv_heads <= LANES


def prefill_tasks(query_lens: Sequence[int], num_heads: int, num_kv_heads: int) -> Tensor:
    """[n, 2] int64: the rows of all pieces longer than one row in tasks for `paged_prefill`, (request, first row)."""
    rows = LANES // (num_heads // num_kv_heads)
    tasks = [(i, first) for i, n in enumerate(query_lens) if n > 1 for first in range(0, n, rows)]
    return torch.tensor(tasks, dtype=torch.int64).view(-1, 2)


def paged_prefill(
    out: Tensor,
    q: Tensor,
    kv_cache: Tensor,
    tasks: Tensor,
    query_start_loc: Tensor,
    seq_lens: Tensor,
    block_table: Tensor,
    sliding_window: int | None,
) -> None:
    """Attention of the rows that `tasks` name, written into `out`; their K and V are in the cache already.

    As `paged_decode`; query_start_loc [R + 1], seq_lens [R] int32, block_table [R, width] int32 of all requests.
    """
    found = library()
    assert found is not None, "ask can_prefill first"
    block_size, kv_heads, dim = kv_cache.shape[2:]
    group = q.shape[1] // kv_heads
    tensors = out, q, kv_cache[0], kv_cache[1], tasks, query_start_loc, seq_lens, block_table
    sizes = len(tasks), block_table.stride(0), q.stride(0), kv_heads, group, dim, block_size, sliding_window or 0
    found.paged_prefill(*[tensor.data_ptr() for tensor in tensors], *sizes, dim**-0.5)
