"""Padded batching: static batching as one rectangle of tokens, holes included. Chapter 1."""

from mini_vllm.batching.static import StaticBatcher


class PaddedBatcher(StaticBatcher):
    """The same schedule as `StaticBatcher`. But prompts are padded to the longest, and the row of a finished request
    goes on being computed until the batch ends: an attention mask hides the result, it does not save the work.
    """

    padded = True
