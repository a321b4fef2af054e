"""The scheduler as the reader grows it, one small file a chapter. Knows the chapters; nothing else builds on it.

python -m mini_vllm.stages 10      the class of chapter 10 in one piece, in the order in which it runs
"""

from importlib import import_module

from mini_vllm.errors import ConfigError

STAGES = {
    4: "mini_vllm.stages.ch04_admit_retire",
    5: "mini_vllm.stages.ch05_two_budgets",
    6: "mini_vllm.stages.ch06_blocks",
    7: "mini_vllm.stages.ch07_prefix_cache",
    8: "mini_vllm.stages.ch08_preemption",
    9: "mini_vllm.stages.ch09_chunked_prefill",
    10: "mini_vllm.stages.ch10_priority_aging",
}


def load_stage(chapter: int) -> type:
    """The scheduler class of a chapter. Raises ConfigError for a chapter without one."""
    if chapter not in STAGES:
        raise ConfigError(f"chapter {chapter!r} has no stage of the scheduler; there is one for each of {[*STAGES]}")
    return import_module(STAGES[chapter]).Scheduler
