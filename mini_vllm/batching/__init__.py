"""Static, padded, bucketed and continuous batching over one step clock. Knows no model. Chapter 1."""

from mini_vllm.batching.batcher import Batcher
from mini_vllm.batching.bucketed import BucketedBatcher
from mini_vllm.batching.continuous import ContinuousBatcher
from mini_vllm.batching.padded import PaddedBatcher
from mini_vllm.batching.static import StaticBatcher
from mini_vllm.batching.timeline import Cell, Timeline, run_batches
from mini_vllm.sim.driver import SimRequest

__all__ = [
    "Batcher",
    "BucketedBatcher",
    "Cell",
    "ContinuousBatcher",
    "PaddedBatcher",
    "SimRequest",
    "StaticBatcher",
    "Timeline",
    "run_batches",
]
