"""Endless seeded questions, drawn from the real code, which is imported only when asked for. All chapters."""

from mini_vllm.grading.quizzes.asking import quiz

__all__ = ["quiz"]
