"""What a part gets: device, dtype, sizes, timer, clock, report. Knows the card; measures nothing itself. Chapter 13."""

import contextlib
import gc
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TypeVar

import torch

from benchmarks.gpu_parts.report import Report
from benchmarks.gpu_parts.timing import Clock, CudaTimer, WallTimer
from mini_vllm.kernels import mode
from mini_vllm.kernels.tiles import CARDS, Card, card_of

T = TypeVar("T")
SMOKE_BYTES = 64e6  # what a run without a GPU takes for the card's free memory


class NoGPUError(Exception):
    """There is nothing to measure on."""


class OutOfTimeError(Exception):
    """The part's clock ran out; what it has found so far stands."""


@dataclass
class Bench:
    """smoke: tiny sizes through the interpreter on a CPU, to try the script; its figures are no results.

    dtype: bfloat16, or float16 where the card has none. piece: (i, n): this process does every n-th variant, from i.
    """

    device: torch.device
    card: Card
    dtype: torch.dtype
    timer: CudaTimer | WallTimer
    clock: Clock
    report: Report
    smoke: bool = False
    quick: bool = False
    seed: int = 0
    piece: tuple[int, int] = (0, 1)

    def size(self, full: T, quick: T, smoke: T) -> T:
        """The one of three that fits this run."""
        return smoke if self.smoke else quick if self.quick else full

    @property
    def dtype_name(self) -> str:
        return str(self.dtype).removeprefix("torch.")

    @property
    def l2_bytes(self) -> int:
        return 0 if self.smoke else getattr(torch.cuda.get_device_properties(self.device), "L2_cache_size", 64 << 20)

    def total_bytes(self) -> int:
        return int(SMOKE_BYTES) if self.smoke else torch.cuda.get_device_properties(self.device).total_memory

    def free_bytes(self) -> int:
        """Memory that is free now; what torch keeps for itself is given back first."""
        gc.collect()
        if self.smoke:
            return int(SMOKE_BYTES)
        torch.cuda.empty_cache()
        return torch.cuda.mem_get_info(self.device)[0]

    def generator(self, offset: int = 0) -> torch.Generator:
        return torch.Generator(self.device).manual_seed(self.seed + offset)

    def need(self, seconds: float, what: str) -> None:
        """Raises OutOfTimeError, with `what` entered as skipped, unless so many seconds are left."""
        if (left := self.clock.left()) < seconds:
            self.report.skip(what, f"out of time: {max(left, 0):.0f} s left, about {seconds:.0f} s needed")
            raise OutOfTimeError(what)

    @contextlib.contextmanager
    def enough_memory(self, what: str) -> Iterator[None]:
        """If it is not enough, that is said, and ends `what` only."""
        try:
            yield
        except torch.OutOfMemoryError as error:
            self.report.skip(what, str(error).splitlines()[0])

    @contextlib.contextmanager
    def peer(self, name: str) -> Iterator[None]:
        """Whatever goes wrong in a peer's code is said, and ends the peer only."""
        try:
            yield
        except OutOfTimeError:
            raise
        except Exception as error:
            first_line = (str(error).strip() or "no message").splitlines()[0][:200]
            self.report.skip(name, f"{type(error).__name__}: {first_line}")
        finally:
            gc.collect()
            if not self.smoke:
                torch.cuda.empty_cache()


def smoke_bench(report: Report, seed: int = 0, quick: bool = False) -> Bench:
    """On the CPU, through the interpreter, which must be chosen before triton is imported."""
    mode.use_interpreter()
    card = replace(CARDS[9, 0], name="no GPU (smoke run)")
    device, clock = torch.device("cpu"), Clock(1e6)
    return Bench(device, card, torch.float16, WallTimer(), clock, report, smoke=True, quick=quick, seed=seed)


def cuda_bench(report: Report, seconds: float, seed: int, quick: bool, piece: tuple[int, int]) -> Bench:
    """On the first GPU. Raises NoGPUError where there is none, KernelModeError where kernels would be interpreted."""
    if not torch.cuda.is_available():
        raise NoGPUError(
            f"no CUDA GPU: torch {torch.__version__} sees none, so there is nothing to measure. On a machine with one, "
            "install a CUDA build of torch; without one, --smoke tries the script with tiny sizes on the CPU."
        )
    mode.interpreting()  # raises on a machine with a GPU
    gc.freeze()  # torch collects garbage before each capture of a graph; what is loaded by now is none
    device = torch.device("cuda", 0)
    torch.cuda.set_device(device)
    card = card_of(device)
    dtype = torch.bfloat16 if card.capability >= (8, 0) else torch.float16
    return Bench(device, card, dtype, CudaTimer(), Clock(seconds), report, quick=quick, seed=seed, piece=piece)
