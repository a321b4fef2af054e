"""Exercises: checks in the notebook, and the grader outside it. Knows exercises by id only. All chapters."""

from mini_vllm.grading.feedback import GradeFailed, check, hint
from mini_vllm.grading.ledger import load_progress, progress, save_progress
from mini_vllm.grading.predictions import predict, reveal

__all__ = ["GradeFailed", "check", "hint", "load_progress", "predict", "progress", "reveal", "save_progress"]
