"""Pictures of a run. Knows its parts: step player, plots, widgets. From chapter 1 on."""

from mini_vllm.viz.player import StepPlayer

__all__ = ["StepPlayer"]
