"""Measures this machine: memory bandwidth, and a matrix at growing batches. Knows torch, no model. Chapter 2.

A probe takes seconds, on a machine that may be busy: each number is a median with its quartiles, and `noisy` names
those that lie far apart. Good for comparing this machine with itself, and for the roofline of a simulator.
"""

import datetime
import os
import platform
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from statistics import quantiles
from typing import Any

from mini_vllm.errors import ConfigError, MissingDependencyError
from mini_vllm.roofline.arguments import require_positive
from mini_vllm.roofline.hardware import HardwareSpec

DTYPES = ("float32", "bfloat16", "float16")
BATCHES = (1, 4, 16, 64, 128, 256, 512, 1024, 2048)
NOISY = 0.2  # a spread above this: something else was running, or the clock moved
SECONDS_ALLOWED = (3.0, 8.0)  # less would leave out the large batches that show the GEMM rate; and it must end by 10
_SHORTEST_SAMPLE_S = 2e-3  # calls are repeated within a sample until it lasts this long, far above the timer's own cost


@dataclass(frozen=True)
class Timing:
    """One measured rate, in bytes or FLOP per second: median and quartiles of `samples` of them."""

    per_s: float
    low: float
    high: float
    samples: int

    @property
    def spread(self) -> float:
        """Distance of the quartiles, as a share of the median."""
        return (self.high - self.low) / self.per_s


@dataclass(frozen=True)
class MeasuredPoint:
    """`batch` vectors times a matrix of weights: FLOP per byte, and the FLOP/s that were reached."""

    batch: int
    intensity: float
    flop: Timing


@dataclass(frozen=True)
class ProbeResult:
    """What `probe` found. read, copy: memory bandwidth, a copy counted as a read and a write. seconds: it took."""

    device: str
    dtype: str
    threads: int
    torch: str
    date: str
    memory_bytes: float
    read: Timing
    copy: Timing
    points: tuple[MeasuredPoint, ...]
    seconds: float

    @property
    def gemm(self) -> Timing:
        """The GEMM rate: the fastest of the points."""
        return max((point.flop for point in self.points), key=lambda flop: flop.per_s)

    @property
    def bandwidth(self) -> float:
        """Bytes per second: the highest rate at which reading, copying or a matrix moved them.

        So no measured point lies above the roofline that this number and the GEMM rate make.
        """
        return max(self.read.per_s, self.copy.per_s, *(p.flop.per_s / p.intensity for p in self.points))

    @property
    def spec(self) -> HardwareSpec:
        """This machine as hardware for a roofline."""
        source = f"measured on {self.date}, torch {self.torch}, {self.threads} CPU threads"
        return HardwareSpec(
            self.device, {self.dtype: self.gemm.per_s}, self.bandwidth, self.memory_bytes, source, measured=True
        )

    @property
    def noisy(self) -> list[str]:
        """Measurements whose quartiles are more than NOISY of the median apart."""
        timings = {"reading": self.read, "copying": self.copy} | {f"batch {p.batch}": p.flop for p in self.points}
        return [name for name, timing in timings.items() if timing.spread > NOISY]

    def __str__(self) -> str:
        def row(name: str, timing: Timing, unit: str) -> str:
            middle, low, high = (f"{value / 1e9:9,.1f}" for value in (timing.per_s, timing.low, timing.high))
            return f"  {name:12}{middle} {unit}, quartiles {low} to {high}, {timing.samples} samples"

        points = [row(f"batch {p.batch}", p.flop, "GFLOP/s") for p in self.points]
        lines = [
            f"{self.device}, {self.dtype}, {self.threads} CPU threads, torch {self.torch}, {self.date}",
            row("reading", self.read, "GB/s"),
            row("copying", self.copy, "GB/s"),
            *points,
            f"  ridge point {self.spec.ridge_point(self.dtype):.1f} FLOP per byte",
        ]
        if self.noisy:
            lines.append(f"  noisy, quartiles over {NOISY:.0%} of the median apart: {', '.join(self.noisy)}")
        return "\n".join(lines)

    def to_dict(self) -> dict[str, Any]:
        """Plain data, for JSON."""
        return asdict(self)


def probe(
    device: str | None = None, dtype: str | None = None, *, seconds: float = 6.0, progress: bool | None = None
) -> ProbeResult:
    """Measure this machine in about `seconds`, which may be 3 to 8.

    device: "cpu", "cuda" or "cuda:1"; by default the GPU if there is one. dtype: by default float32 on a CPU, float16
    on a GPU. progress: say on standard error what is measured; by default only on a terminal.
    Large batches are left out on a machine on which they take too long.
    Raises MissingDependencyError without torch, ConfigError for a device or dtype that is not there.
    """
    require_positive(seconds, "seconds")
    if not SECONDS_ALLOWED[0] <= seconds <= SECONDS_ALLOWED[1]:
        raise ConfigError(f"seconds={seconds} must lie between {SECONDS_ALLOWED[0]:.0f} and {SECONDS_ALLOWED[1]:.0f}")
    torch = _import_torch()
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    is_gpu = device.startswith("cuda")
    dtype = dtype or ("float16" if is_gpu else "float32")
    _check(torch, device, dtype)
    started = time.perf_counter()
    stopwatch = _Stopwatch(torch if is_gpu else None, device, seconds / (2 + len(BATCHES)), progress)

    read, copy = _measure_bandwidth(torch, device, stopwatch, numbers=2**28 if is_gpu else 2**26)
    points = _measure_points(torch, device, dtype, stopwatch, width=8192 if is_gpu else 2048)
    return ProbeResult(
        device=device_name(device),
        dtype=dtype,
        threads=torch.get_num_threads(),
        torch=torch.__version__,
        date=datetime.date.today().isoformat(),
        memory_bytes=torch.cuda.get_device_properties(device).total_memory if is_gpu else _ram_bytes(),
        read=read,
        copy=copy,
        points=tuple(points),
        seconds=time.perf_counter() - started,
    )


def _measure_bandwidth(torch, device: str, stopwatch: "_Stopwatch", numbers: int) -> tuple[Timing, Timing]:
    """Reading (a sum) and copying; larger than the last cache, or the cache would be measured."""
    source = torch.ones(numbers, device=device)
    read = stopwatch.rate("reading", source.sum, 4 * numbers)
    target = torch.empty_like(source)
    return read, stopwatch.rate("copying", lambda: target.copy_(source), 8 * numbers)


def _measure_points(torch, device: str, dtype: str, stopwatch: "_Stopwatch", width: int) -> list[MeasuredPoint]:
    """As a layer does it: the weights come from memory. So matrices of 256 MB in all take turns."""
    first = torch.rand((width, width), device=device).to(getattr(torch, dtype))
    matrices = [first, *(first.clone() for _ in range(2**28 // (first.numel() * first.element_size()) - 1))]
    calls, points = 0, []

    def multiply(vectors) -> None:
        nonlocal calls
        calls += 1
        torch.matmul(vectors, matrices[calls % len(matrices)])

    for batch in BATCHES:
        vectors = torch.rand((batch, width), device=device).to(first.dtype)
        flop = 2 * batch * width * width
        moved = first.element_size() * (width * width + 2 * batch * width)
        timing = stopwatch.rate(f"batch {batch}", partial(multiply, vectors), flop)
        points.append(MeasuredPoint(batch, flop / moved, timing))
        if flop / timing.per_s > stopwatch.share_s / 4 or time.perf_counter() > stopwatch.deadline:
            break
    return points


class _Stopwatch:
    """Times calls over and over for `share_s` seconds each. torch: needed to wait for a GPU; None on a CPU."""

    def __init__(self, torch, device: str, share_s: float, progress: bool | None):
        self._wait: Callable[[], None] = partial(torch.cuda.synchronize, device) if torch else (lambda: None)
        self.share_s = share_s
        self.deadline = time.perf_counter() + share_s * (2 + len(BATCHES))
        self._shows = sys.stderr.isatty() if progress is None else progress

    def rate(self, name: str, call: Callable[[], Any], amount: float) -> Timing:
        """`amount` per second of `call`."""
        if self._shows:
            print(f"probe: {name}", file=sys.stderr, flush=True)
        end = time.perf_counter() + self.share_s
        self._seconds(call, 1)  # the first call sets things up
        repeats = max(1, round(_SHORTEST_SAMPLE_S / max(self._seconds(call, 1), 1e-9)))
        rates: list[float] = []
        while len(rates) < 3 or (time.perf_counter() < end and len(rates) < 1000):
            rates.append(repeats * amount / self._seconds(call, repeats))
        low, median, high = quantiles(rates, n=4, method="inclusive")
        return Timing(median, low, high, len(rates))

    def _seconds(self, call: Callable[[], Any], repeats: int) -> float:
        self._wait()
        start = time.perf_counter()
        for _ in range(repeats):
            call()
        self._wait()
        return time.perf_counter() - start


def _import_torch():
    try:
        import torch
    except ImportError as error:
        raise MissingDependencyError(
            "probe() measures with the package 'torch', which is not installed; in the repository run "
            "pip install -e '.[engine]', or take a card from get_hardware()"
        ) from error
    return torch


def _check(torch, device: str, dtype: str) -> None:
    if dtype not in DTYPES:
        raise ConfigError(f"dtype={dtype!r} is not one of {', '.join(DTYPES)}")
    kind, _, index = device.partition(":")
    if kind not in ("cpu", "cuda") or (index and (kind == "cpu" or not index.isdigit())):
        raise ConfigError(f"device={device!r} must be 'cpu', 'cuda', or 'cuda:1' for a second GPU")
    if kind == "cuda" and int(index or 0) >= torch.cuda.device_count():
        raise ConfigError(f"device={device!r} is not there: torch sees {torch.cuda.device_count()} GPUs; take 'cpu'")
    if kind == "cuda" and dtype == "bfloat16" and torch.cuda.get_device_capability(device) < (8, 0):
        raise ConfigError(f"{torch.cuda.get_device_name(device)} does not compute in bfloat16; take float16")


def device_name(device: Any) -> str:
    """The name under which probe() and step-time samples know a torch device: its GPU's, or this processor's."""
    return _import_torch().cuda.get_device_name(device) if str(device).startswith("cuda") else _cpu_name()


def _cpu_name() -> str:
    """The processor's name where the system tells it (Linux), else its architecture."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8", errors="replace").splitlines() if info.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def _ram_bytes() -> float:
    return float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
