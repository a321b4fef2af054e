"""Pictures of a run. Knows its parts: step player, A/B player, plots, widgets. From chapter 1 on."""

from mini_vllm.viz.ab_player import ABPlayer
from mini_vllm.viz.player import StepPlayer

__all__ = ["ABPlayer", "StepPlayer"]
