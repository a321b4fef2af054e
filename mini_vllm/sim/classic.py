"""The three classic scheduling experiments: token budget, size of the KV pool, spread of the lengths. Chapter 12.

A popular script runs them with 100 requests at 5 per second on a clock of 30 ms a step, and cuts every prompt into
chunks of 512. Two things decide what comes out, and the script varies neither: whether KV memory is in the way, and the
cut itself. Knows the workload and the knobs; the lessons are on the page of chapter 12.
"""

from mini_vllm.config import SchedulerConfig
from mini_vllm.sim.arrivals import Poisson
from mini_vllm.sim.clock import Clock, FixedClock
from mini_vllm.sim.lengths import Independent, Length, Uniform
from mini_vllm.sim.result import SimResult
from mini_vllm.sim.simulator import Simulator
from mini_vllm.sim.workloads import Workload

BUDGETS = (256, 512, 1024, 2048, 4096, 8192)
POOLS = (50, 100, 200, 400, 800, 1600, 3200)
KV_OUT_OF_THE_WAY = 4000  # blocks of 16: more than the 100 requests ever hold at once
CHUNK_CAP, NO_CAP = 512, 0
STEP_S = 0.03


def classic_workload(prompt: Length | None = None) -> Workload:
    """100 requests with seed 42, 5 a second: outputs of 50 to 500 tokens, prompts of 50 to 2,000 or as given."""
    lengths = Independent(prompt or Uniform(50, 2000), Uniform(50, 500))
    return Workload(Poisson(5.0), lengths, num_requests=100, seed=42)


def classic_run(
    workload: Workload | None = None,
    *,
    num_gpu_blocks: int = 200,
    budget: int = 2048,
    chunk_cap: int = CHUNK_CAP,
    clock: Clock | None = None,
) -> SimResult:
    """One run to the end; requests that can never fit are dropped and listed.

    chunk_cap: most tokens of a prompt in one step; NO_CAP is vLLM's default. clock: 30 ms a step by default.
    """
    config = SchedulerConfig(
        max_num_seqs=256,
        max_num_batched_tokens=budget,
        max_model_len=16_384,
        num_gpu_blocks=num_gpu_blocks,
        block_size=16,
        long_prefill_token_threshold=chunk_cap,
    )
    simulator = Simulator(config, clock or FixedClock(STEP_S))
    return simulator.run(workload or classic_workload(), drop_unfittable=True)
