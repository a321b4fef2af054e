"""Compiles one launch for a GPU that is not there. Knows Triton's compiler; runs nothing. Chapter 13.

The real launch functions are called, on tensors that say they are on a GPU, with a driver that says which GPU that is;
in place of running, Triton only compiles. So what is compiled is what would be launched, arguments and all.
"""

import contextlib
import io
import os
import re
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from mini_vllm.kernels.tiles import DecodeTile, PrefillTile
from mini_vllm.kernels.variants import Variant

os.environ.pop("TRITON_INTERPRET", None)  # before the import of triton, which compiles nothing then
os.environ["TRITON_ALWAYS_COMPILE"] = "1"  # a kernel out of Triton's cache has no log of its registers
os.environ["TRITON_DUMP_PTXAS_LOG"] = "1"
os.environ["TRITON_CACHE_DIR"] = tempfile.mkdtemp(prefix="mini_vllm_triton_")

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.runtime.jit import JITFunction

MMA = ("tcgen05.mma", "wgmma.mma_async", "mma.sync")
BLOCK_SIZE = 16
NUM_KV_HEADS = 2
WINDOW = 4096


@dataclass(frozen=True)
class Compiled:
    """What the compiler says about one kernel.

    registers: a thread; spill_bytes: stored to local memory a thread; shared_bytes: a program. mma: the tensor-core
    instruction found in the PTX, or "none". buffers: tiles of K and V in shared memory that cp.async fills ahead.
    """

    kernel: str
    registers: int
    spill_bytes: int
    shared_bytes: int
    mma: str
    async_copies: int
    buffers: int
    ptx_version: str


class OnGpu(torch.Tensor):
    """A tensor on the CPU that says that it is on a GPU."""

    is_cuda = property(lambda self: True)


class AbsentGpu:
    """In place of Triton's driver: a device number for each compute capability."""

    capability = (8, 0)

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", 10 * self.capability[0] + self.capability[1], 32)

    def get_current_device(self) -> int:
        return 10 * self.capability[0] + self.capability[1]

    def get_current_stream(self, device: int) -> int:
        return 0


_gpu = AbsentGpu()
_compiled: list[Any] = []
_run = JITFunction.run


def _compile_only(self: JITFunction, *args: Any, **kwargs: Any) -> Any:
    self.device_caches.clear()  # a kernel that two variants share is compiled, and reported, for both
    kernel = _run(self, *args, **{**kwargs, "warmup": True})
    _compiled.append(kernel)
    return kernel


def compile_variant(variant: Variant) -> list[Compiled]:
    """Compiles the kernels that the launch of this variant starts, in its order. Raises what the compiler raises."""
    triton.runtime.driver.set_active(_gpu)
    JITFunction.run = _compile_only
    _gpu.capability = variant.capability
    _compiled.clear()
    with contextlib.redirect_stdout(io.StringIO()) as log:
        _LAUNCHES[variant.launch](variant)
    logs = re.findall(r"(\d+) bytes spill stores.*?Used (\d+) registers", log.getvalue(), re.DOTALL)
    if len(logs) != len(_compiled):
        raise RuntimeError(f"{variant}: {len(_compiled)} kernels, and {len(logs)} reports of ptxas:\n{log.getvalue()}")
    return [
        _facts(kernel, spills=int(spills), registers=int(registers))
        for kernel, (spills, registers) in zip(_compiled, logs, strict=True)
    ]


def _facts(kernel: Any, *, spills: int, registers: int) -> Compiled:
    ptx = kernel.asm["ptx"]
    buffers = [int(n) for n in re.findall(r"!ttg\.memdesc<(\d+)x\d+x\d+x\w+", kernel.asm["ttgir"])]
    version = re.search(r"^\.version (\S+)", ptx, re.MULTILINE)
    return Compiled(
        kernel=kernel.metadata.name,
        registers=registers,
        spill_bytes=spills,
        shared_bytes=kernel.metadata.shared,
        mma=next((name for name in MMA if re.search(rf"(?<!w){re.escape(name)}\b", ptx)), "none"),
        async_copies=len(re.findall(r"\bcp\.async\.c[ag]\.", ptx)),
        buffers=max(buffers, default=0),
        ptx_version=version[1] if version else "?",
    )


def _on_gpu(*shape: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.zeros(*shape, dtype=dtype).as_subclass(OnGpu)


def _int32(*shape: int) -> torch.Tensor:
    return _on_gpu(*shape, dtype=torch.int32)


def _attention_inputs(variant: Variant) -> dict[str, torch.Tensor]:
    """Of one request; q is a slice of a joined qkv."""
    dtype = getattr(torch, variant.dtype)
    heads = NUM_KV_HEADS * variant.group
    qkv = _on_gpu(variant.max_query_len, heads + 2 * NUM_KV_HEADS, variant.width, dtype=dtype)
    return {
        "out": torch.empty(variant.max_query_len, heads, variant.width, dtype=dtype),
        "q": qkv[:, :heads],
        "kv_cache": _on_gpu(2, 2, BLOCK_SIZE, NUM_KV_HEADS, variant.width, dtype=dtype),
        "query_start_loc": _int32(2),
        "seq_lens": _int32(1),
        "block_table": _int32(1, 4),
    }


def _paged_decode(variant: Variant) -> None:
    from mini_vllm.kernels.paged_decode import paged_decode

    assert isinstance(variant.tile, DecodeTile)
    paged_decode(
        **_attention_inputs(variant),
        requests=_int32(1),
        max_query_len=variant.max_query_len,
        sliding_window=WINDOW if variant.windowed else None,
        tile=variant.tile,
    )


def _paged_decode_split(variant: Variant) -> None:
    from mini_vllm.kernels.split_kv import MOST_SPLITS, paged_decode_split

    assert isinstance(variant.tile, DecodeTile)
    paged_decode_split(
        **_attention_inputs(variant),
        requests=_int32(1),
        num_splits=MOST_SPLITS,
        max_query_len=variant.max_query_len,
        tile=variant.tile,
    )


def _paged_prefill(variant: Variant) -> None:
    from mini_vllm.kernels.paged_prefill import paged_prefill

    assert isinstance(variant.tile, PrefillTile)
    paged_prefill(**_attention_inputs(variant), tiles_of_step=_int32(1, 2), tile=variant.tile)


def _store_kv(variant: Variant) -> None:
    from mini_vllm.kernels.kv_store import store_kv

    dtype = getattr(torch, variant.dtype)
    qkv = _on_gpu(1, 3 * NUM_KV_HEADS, variant.width, dtype=dtype)
    cache = _on_gpu(2, 2, BLOCK_SIZE, NUM_KV_HEADS, variant.width, dtype=dtype)
    slots = _on_gpu(1, dtype=torch.int64)
    store_kv(qkv[:, NUM_KV_HEADS : 2 * NUM_KV_HEADS], qkv[:, 2 * NUM_KV_HEADS :], cache, slots)


def _fused(variant: Variant) -> None:
    from mini_vllm.kernels import fused

    dtype, width = getattr(torch, variant.dtype), variant.width
    x, weight = _on_gpu(2, width, dtype=dtype), _on_gpu(width, dtype=dtype)
    if variant.launch == "rms_norm":
        fused.rms_norm(x, weight, 1e-5)
    elif variant.launch == "add_rms_norm":
        fused.add_rms_norm(x, x, weight, 1e-5)
    elif variant.launch == "silu_and_mul":
        fused.silu_and_mul(_on_gpu(2, 2 * width, dtype=dtype))
    else:
        heads, angles = _on_gpu(2, 4, width, dtype=dtype), _on_gpu(2, 1, width, dtype=dtype)
        fused.rotate_(heads, heads[:, :2], angles, angles)


_LAUNCHES: dict[str, Callable[[Variant], None]] = {
    "paged_decode": _paged_decode,
    "paged_decode_split": _paged_decode_split,
    "paged_prefill": _paged_prefill,
    "store_kv": _store_kv,
    "rms_norm": _fused,
    "add_rms_norm": _fused,
    "rotate": _fused,
    "silu_and_mul": _fused,
}
