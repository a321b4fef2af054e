"""Exercises: checks in the notebook, and the grader outside it. Knows exercises by id only. All chapters."""

from mini_vllm.grading.feedback import GradeFailed, check
from mini_vllm.grading.hints import hint
from mini_vllm.grading.my_stage import my_stage
from mini_vllm.grading.predictions import predict, reveal
from mini_vllm.grading.progress import load_progress, progress, save_progress
from mini_vllm.grading.quizzes import quiz

__all__ = [
    "GradeFailed",
    "check",
    "hint",
    "load_progress",
    "my_stage",
    "predict",
    "progress",
    "quiz",
    "reveal",
    "save_progress",
]
