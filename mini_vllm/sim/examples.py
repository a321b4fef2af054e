"""Runs that the course comes back to. Knows their requests and limits; runs nothing. From chapter 4 on."""

from mini_vllm.config import SchedulerConfig
from mini_vllm.errors import ConfigError
from mini_vllm.sim.driver import SimRequest

# name, prompt tokens, new tokens; all arrive before the first step.
FIVE = (("R1", 16, 32), ("R2", 8, 8), ("R3", 32, 16), ("R4", 8, 64), ("R5", 16, 8))
ADMISSIONS = ("full", "chunk")


def five_requests(admission: str = "full") -> tuple[list[SimRequest], SchedulerConfig]:
    """The worked example: five requests, a budget of 8 tokens a step, 6 KV blocks of 16 tokens.

        requests, config = five_requests()
        trace = simulate(requests, config)

    admission: what must fit before a request enters: "full", all tokens that are known of it (vLLM 0.33.0), or
    "chunk", only the next piece (vLLM up to 0.11), which lets R5 in once too often.
    """
    if admission not in ADMISSIONS:
        raise ConfigError(f"admission={admission!r} is unknown: choose one of {', '.join(ADMISSIONS)}")
    config = SchedulerConfig(
        max_num_seqs=8,
        max_num_batched_tokens=8,
        max_model_len=128,
        num_gpu_blocks=6,
        block_size=16,
        reserve_full_isl=admission == "full",
    )
    return [SimRequest(*facts) for facts in FIVE], config
