"""Which parts there are, in which order, and what share of the time each may take. Knows no GPU. Chapter 13."""

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any


@dataclass(frozen=True)
class Part:
    """share: weight in the division of the time. processes: it may be cut into so many that run at once."""

    name: str
    share: float
    what: str
    processes: int = 1

    def load(self) -> Callable[[Any], None]:
        """Its `run(bench)`; imports torch and Triton."""
        return import_module(f"benchmarks.gpu_parts.{self.name}").run


PARTS = {
    part.name: part
    for part in (
        Part("machine", 8, "card, driver, versions, clocks; copy bandwidth, matrix product, link to the host"),
        Part("correctness", 18, "about 40 kernel variants against float64, poisoned buffers; 64-bit offsets", 8),
        Part("parity", 9, "engine with the triton backend against the torch backend, random weights, real shapes"),
        Part("decode_bandwidth", 20, "decode GB/s over batch and context, split or not, beside the copy bandwidth"),
        Part("prefill", 7, "prefill TFLOP/s beside a matrix product and torch's attention"),
        Part("offline", 22, "256 requests end to end: CUDA graphs, overlap, fused kernels, share of the byte roofline"),
        Part("transformers", 18, "the same requests with transformers' continuous batching"),
        Part("swap", 5, "recompute against swap: copies to the host and back beside the prefill of the same tokens"),
        Part("samples", 8, "step times for the simulator, and how well its model fits them"),
    )
}
# Not run unless asked for: they are for whoever tunes tiles.py.
SWEEP = {
    part.name: part
    for part in (
        Part("sweep_compile", 40, "compiles all tiles of the sweep, many at once", 8),
        Part("sweep", 60, "other tiles for decode and prefill: predict, change, measure"),
    )
}
