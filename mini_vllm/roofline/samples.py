"""Measured step times: one JSON object a line, read, written, and taken from an engine's trace. Chapters 2 and 12."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from os import PathLike
from pathlib import Path
from typing import Any

from mini_vllm.errors import ConfigError, TraceFormatError
from mini_vllm.roofline.arguments import require_instance, require_positive, require_whole
from mini_vllm.roofline.step_work import StepWork

_REQUIRED = ("device", "dtype", "model", "n_prefill", "n_decode", "kv_tokens", "t_ms")
_OPTIONAL = ("attention_pairs", "n_seqs", "n_sampled")


@dataclass(frozen=True)
class StepSample:
    """One step that was measured: what it had to do, on what, and the milliseconds that it took."""

    device: str
    dtype: str
    model: str
    work: StepWork
    t_ms: float

    def __post_init__(self) -> None:
        require_instance(self.work, StepWork, "work")
        require_positive(self.t_ms, "t_ms")

    @classmethod
    def from_dict(cls, row: Mapping[str, Any]) -> "StepSample":
        """A row of a file; fields as in `StepWork`. Raises ConfigError that names the field.

        attention_pairs, n_seqs and n_sampled may be missing. Then the prefill tokens count as one prompt's, new in a
        step with decodes, else a chunk whose earlier tokens are the rest of kv_tokens; and every sequence samples.
        """
        missing = [name for name in _REQUIRED if name not in row]
        unknown = sorted(set(row) - {*_REQUIRED, *_OPTIONAL})
        if missing or unknown:
            raise ConfigError(
                f"missing fields {missing}, unknown fields {unknown}; a sample has {', '.join(_REQUIRED)}, and may "
                f"have {', '.join(_OPTIONAL)}"
            )
        counts = {name: row[name] for name in ("n_prefill", "n_decode", "kv_tokens")}
        work = replace(_usual_work(**counts), **{name: row[name] for name in _OPTIONAL if name in row})
        return cls(row["device"], row["dtype"], row["model"], work, row["t_ms"])

    def to_dict(self) -> dict[str, Any]:
        """All fields, so that nothing has to be guessed when they are read back."""
        about = {"device": self.device, "dtype": self.dtype, "model": self.model}
        return {**about, **asdict(self.work), "t_ms": self.t_ms}


def _usual_work(n_prefill: int, n_decode: int, kv_tokens: int) -> StepWork:
    for name, value in (("n_prefill", n_prefill), ("n_decode", n_decode)):
        require_whole(value, name)
    require_whole(kv_tokens, "kv_tokens", least=n_prefill + n_decode)
    older = kv_tokens - n_prefill
    parts = [StepWork.prefill(n_prefill, 0 if n_decode else older)] if n_prefill else []
    if n_decode:
        parts.append(StepWork(0, n_decode, older, older, n_decode, n_decode))
    return StepWork.mixed(parts)


def read_samples(path: str | PathLike) -> list[StepSample]:
    """All samples of a JSON-lines file. Raises TraceFormatError with the line's number and the reason."""
    samples = []
    for number, line in enumerate(Path(path).read_bytes().splitlines(), 1):
        if line.strip():
            try:
                samples.append(StepSample.from_dict(json.loads(line)))
            except (ValueError, TypeError, AttributeError, ConfigError) as error:
                raise TraceFormatError(f"{path}:{number}: {error}") from error
    if not samples:
        raise TraceFormatError(f"{path} holds no sample; each line is one JSON object with {', '.join(_REQUIRED)}")
    return samples


def write_samples(path: str | PathLike, samples: Iterable[StepSample]) -> None:
    """One JSON object a line."""
    lines = [json.dumps(sample.to_dict()) + "\n" for sample in samples]
    Path(path).write_text("".join(lines), encoding="utf-8")


def samples_from_trace(trace: Any, device: str, dtype: str, model: str) -> list[StepSample]:
    """The steps of an engine's trace that computed something and ended, each with its time from plan to update.

    Raises ConfigError for a trace on the step clock: its times are no seconds.
    """
    if trace.header.get("clock") != "seconds":
        raise ConfigError(
            f"the trace's clock is {trace.header.get('clock')!r}; step times are measured on a clock of seconds, as in "
            "LLM(...).trace"
        )
    samples = []
    for step in trace.steps:
        if "t_end" not in step:  # it failed, and with it the run
            continue
        t_ms = 1e3 * (step["t_end"] - step["t_start"])
        parts = []
        for req_id, tokens in step["scheduled"]:
            computed = step["computed"][req_id][1] - tokens
            sampled = req_id in step["sampled"]
            if tokens == 1 and computed >= trace.header["requests"][req_id]["prompt_len"]:
                parts.append(StepWork(0, 1, computed + 1, computed + 1, 1, int(sampled)))
            else:
                parts.append(StepWork.prefill(tokens, computed, sampled))
        if parts and t_ms > 0:
            samples.append(StepSample(device, dtype, model, StepWork.mixed(parts), t_ms))
    return samples
