"""Every Step a New Batch: the package that the course builds. Imports only the standard library; names load lazily.

`import mini_vllm` must stay cheap (a scheduler lesson needs no torch), so the public names below are resolved
on first use: `mini_vllm.LLM` imports torch, `mini_vllm.simulate` does not.
"""

from importlib import import_module

__version__ = "0.1.0"

_PUBLIC = {
    "LLM": "mini_vllm.engine.llm",
    "CompletionOutput": "mini_vllm.engine.llm",
    "SamplingParams": "mini_vllm.sampling_params",
    "SchedulerConfig": "mini_vllm.config",
    "Request": "mini_vllm.request",
    "Scheduler": "mini_vllm.core.scheduler",
    "simulate": "mini_vllm.sim.driver",
    "StepPlayer": "mini_vllm.viz.player",
    "ABPlayer": "mini_vllm.viz.ab_player",
    "MiniVLLMError": "mini_vllm.errors",
}
__all__ = [*_PUBLIC, "__version__"]


def __getattr__(name: str):
    if name not in _PUBLIC:
        raise AttributeError(f"module 'mini_vllm' has no attribute {name!r}")
    return getattr(import_module(_PUBLIC[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
