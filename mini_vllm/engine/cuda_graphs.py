"""Decode steps recorded once and replayed. Knows batch sizes and buffers; knows no request. Chapter 14.

A decode step of a small model is some hundred kernels of a few microseconds each, and launching them one by one from
Python takes longer than they run. A CUDA graph launches all of them at once, but only as they were recorded: the same
sizes, the same addresses. So there is one for each of a few batch sizes, it reads the buffers of `InputBatch`, and a
batch in between is padded with requests that are nobody's.

    5 requests, recorded for 8     [ r0 | r1 | r2 | r3 | r4 | -- | -- | -- ]
    slot_mapping                     37   81  112    3   64   -1   -1   -1      stored nowhere
    seq_lens                          6   40    1   33   18    0    0    0      attend to nothing

Logits are computed outside: recorded, each size would keep a buffer of its own for them, rows x vocabulary.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Protocol

import torch
from torch import Tensor

from mini_vllm.engine.input_batch import InputBatch, StepInputs

Recording = tuple[Callable[[], None], Tensor]  # (replay, the tensor in which it leaves its result)


class GraphRecorder(Protocol):
    def record(self, run: Callable[[], Tensor]) -> Recording:
        """Record what `run` launches. It is called twice: once for real, so that all kernels are compiled."""
        ...


class CudaGraphRecorder:
    """One pool of memory for all graphs: they run one after the other, so what one leaves the next may overwrite."""

    def __init__(self, device: torch.device) -> None:
        self._pool = torch.cuda.graph_pool_handle()
        self._stream = torch.cuda.Stream(device)

    def record(self, run: Callable[[], Tensor]) -> Recording:
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            run()
        torch.cuda.current_stream().wait_stream(self._stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool, stream=self._stream):
            result = run()
        return graph.replay, result


def graph_sizes(max_num_seqs: int) -> list[int]:
    """Batch sizes to record: 1, 2, 4, then every 8 (above 256 every 16, as in vLLM), and the largest."""
    sizes = [1, 2, 4, *range(8, 256, 8), *range(256, max_num_seqs, 16)]
    return [size for size in sizes if size < max_num_seqs] + [max_num_seqs]


class DecodeGraphs:
    """Recorded forward passes of steps in which every request decodes one token.

    forward: from the inputs to hidden states [T, hidden]. max_model_len: the longest context that the graphs must take;
        launches that depend on the context are recorded for it.
    num_replays: batch size recorded -> how often.
    """

    def __init__(
        self,
        inputs: InputBatch,
        forward: Callable[[StepInputs], Tensor],
        recorder: GraphRecorder,
        max_num_seqs: int,
        max_model_len: int,
    ) -> None:
        self.num_replays: Counter[int] = Counter()
        self._recordings: dict[int, Recording] = {}
        self._kept: list[StepInputs] = []  # what backends have put into `scratch` must live as long as the graphs
        for size in reversed(graph_sizes(max_num_seqs)):  # the largest first: the others find room in its memory
            padding = inputs.fill([], [], [], [], padded_to=size)
            meta = replace(padding.meta, max_seq_len=max_model_len, context_lens=[max_model_len] * size)
            recorded = replace(padding, meta=meta)
            self._recordings[size] = recorder.record(partial(forward, recorded))
            self._kept.append(recorded)
        self.sizes = sorted(self._recordings)
        self._inputs, self._version = inputs, inputs.version

    def size_for(self, query_lens: Sequence[int]) -> int | None:
        """The smallest size that takes this step, or None: there is a prompt or a draft in it, or too many requests."""
        if max(query_lens) > 1:
            return None
        return next((size for size in self.sizes if size >= len(query_lens)), None)

    @property
    def are_valid(self) -> bool:
        """False once a step larger than all limits has moved the buffers."""
        return self._inputs.version == self._version

    def replay(self, size: int) -> Tensor:
        """Run on what `InputBatch.fill` has put into the buffers; the result holds until the next replay."""
        replay, result = self._recordings[size]
        replay()
        self.num_replays[size] += 1
        return result
