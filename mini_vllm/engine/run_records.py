"""Keeps the trace of a run, in memory and on disk, and its step times. Knows no scheduler. Chapters 12 and 14."""

from pathlib import Path
from typing import Any

from mini_vllm.errors import ConfigError
from mini_vllm.output_file import refuse_if_not_writable
from mini_vllm.roofline.probe import device_name
from mini_vllm.roofline.samples import StepSample, samples_from_trace
from mini_vllm.trace.recorder import Trace, TraceRecorder
from mini_vllm.trace.writer import TraceWriter


class RunRecords:
    """Settings of the recorder of each run, checked before a model is loaded for them.

    trace_steps: how many of the latest steps stay in memory; None is all. trace_file: a file for all steps of the
    latest run, each as soon as it is complete.
    """

    def __init__(self, trace_steps: int | None, trace_file: str | Path | None, async_scheduling: bool) -> None:
        is_number = isinstance(trace_steps, int) and not isinstance(trace_steps, bool) and trace_steps >= 0
        if trace_steps is not None and not is_number:
            raise ConfigError(
                f"trace_steps={trace_steps!r} must be a whole number of at least 0, or None for all steps"
            )
        if trace_file is not None:
            if async_scheduling:
                raise ConfigError(f"trace_file={str(trace_file)!r}: with async_scheduling there is no trace; use one")
            refuse_if_not_writable(Path(trace_file), "trace_file")
        self.trace_steps = trace_steps
        self.writer = None if trace_file is None else TraceWriter(trace_file)

    def recorder(self, *args: Any, **kwargs: Any) -> TraceRecorder:
        """The recorder of a run that begins now; it begins the file anew."""
        return TraceRecorder(*args, keep_steps=self.trace_steps, writer=self.writer, **kwargs)

    def samples(self, trace: Trace, model: Any, name: str) -> list[StepSample]:
        """The trace's steps as step-time samples of this machine."""
        device = device_name(model.device)
        return samples_from_trace(trace, device, str(model.dtype).removeprefix("torch."), name)
