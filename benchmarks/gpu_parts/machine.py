"""First part: what this card is, and what it reaches in copies and matrix products. Knows no kernel. Chapter 13.

These rates are what all later numbers are measured against, and each part measures those that it needs again, so that
both stand under the same clock and temperature.
"""

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch

from benchmarks.gpu_parts.bench import Bench
from benchmarks.gpu_parts.system import commit, nvidia_smi
from mini_vllm.errors import ConfigError
from mini_vllm.roofline import HardwareSpec, get_hardware

PACKAGES = ("torch", "triton", "numpy", "transformers", "tokenizers", "safetensors")


def run(bench: Bench) -> None:
    about = describe(bench)
    bench.report.data["about"] = about
    driver = about["nvidia_smi"].get("driver_version", "unknown")
    bench.report.say(
        f"  {about['gpu']}, capability {about['capability']}, {about['sms']} SMs, "
        f"{about['memory_bytes'] / 1e9:.1f} GB, driver {driver}"
    )
    bench.report.say("  " + ", ".join(f"{name} {found}" for name, found in about["versions"].items()))
    rates = [
        ("copy bandwidth, read and written bytes", copy_bytes_per_s(bench)),
        ("read bandwidth", read_bytes_per_s(bench)),
    ]
    for name, rate in rates:
        bench.report.figure(name, rate / 1e9, "GB/s")
    if card := spec(bench):
        bench.report.figure("copy bandwidth as a share of the data sheet's", rates[0][1] / card.bytes_per_s)
    bench.report.figure(f"matrix product, {bench.dtype_name}", gemm_flop_per_s(bench) / 1e12, "TFLOP/s")
    to_device, to_host = link_bytes_per_s(bench)
    bench.report.figure("host to device, pinned", to_device / 1e9, "GB/s")
    bench.report.figure("device to host, pinned", to_host / 1e9, "GB/s")


def describe(bench: Bench) -> dict[str, Any]:
    """Everything about card and software that a reader of the numbers may ask for."""
    about: dict[str, Any] = {
        "gpu": bench.card.name,
        "capability": "{}.{}".format(*bench.card.capability),
        "sms": bench.card.num_sms,
        "shared_bytes": bench.card.shared_bytes,
        "l2_bytes": bench.l2_bytes,
        "memory_bytes": bench.total_bytes(),
        "free_bytes": bench.free_bytes(),
        "dtype": bench.dtype_name,
        "seed": bench.seed,
        "nvidia_smi": nvidia_smi(),
        "cpu_cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "platform": platform.platform(),
        "versions": {"python": platform.python_version(), "cuda": torch.version.cuda or "none"},
        "commit": commit(),
    }
    for package in PACKAGES:
        try:
            about["versions"][package] = version(package)
        except PackageNotFoundError:
            about["versions"][package] = "not there"
    return about


def spec(bench: Bench) -> HardwareSpec | None:
    """The data sheet's rates, for the cards that roofline/hardware.py knows."""
    try:
        return get_hardware(bench.card.name)
    except ConfigError:
        return None


def copy_bytes_per_s(bench: Bench) -> float:
    """The faster of torch's copy and of an elementwise kernel; bytes read and bytes written both count."""
    numbers = bench.size(2**30, 2**29, 2**12)
    while 4 * numbers > bench.free_bytes():
        numbers //= 2
    source = torch.ones(numbers, dtype=torch.float16, device=bench.device)
    target = torch.empty_like(source)
    calls = (lambda: target.copy_(source), lambda: torch.neg(source, out=target))
    return 4 * numbers / (1e-3 * min(bench.timer.ms([call]).ms for call in calls))


def read_bytes_per_s(bench: Bench) -> float:
    numbers = bench.size(2**30, 2**29, 2**12)
    while 4 * numbers > bench.free_bytes():
        numbers //= 2
    source = torch.ones(numbers, dtype=torch.float32, device=bench.device)
    return 4 * numbers / (1e-3 * bench.timer.ms([lambda: source.amax()]).ms)


def gemm_flop_per_s(bench: Bench, dtype: torch.dtype | None = None) -> float:
    """A large square matrix product, in `dtype`, by torch's library."""
    n = bench.size(8192 if bench.card.capability >= (8, 0) else 4096, 4096, 32)
    a, b = (
        torch.randn(n, n, device=bench.device, generator=bench.generator(i)).to(dtype or bench.dtype) for i in (0, 1)
    )
    out = torch.empty_like(a)
    return 2 * n**3 / (1e-3 * bench.timer.ms([lambda: torch.mm(a, b, out=out)]).ms)


def link_bytes_per_s(bench: Bench) -> tuple[float, float]:
    """One large copy from pinned host memory, and one back."""
    size = bench.size(1 << 30, 1 << 28, 1 << 12)
    host = torch.empty(size, dtype=torch.uint8, pin_memory=not bench.smoke)
    device = torch.empty(size, dtype=torch.uint8, device=bench.device)
    to_device = bench.timer.wall_ms(lambda: device.copy_(host, non_blocking=True))
    to_host = bench.timer.wall_ms(lambda: host.copy_(device, non_blocking=True))
    return size / (1e-3 * to_device), size / (1e-3 * to_host)
