"""Recorded traffic: reads traces of real services, and knows the samples that come with this package. Chapter 12.

A trace holds times and lengths, no text. Formats, told apart by their columns:
- CSV of Azure's LLM traces: TIMESTAMP, ContextTokens, GeneratedTokens; and of our samples: arrived_at_s, prompt_tokens,
  output_tokens. Without a column of times it is a list of lengths.
- JSON lines of Mooncake: timestamp (ms), input_length, output_length, hash_ids (one for each 512 tokens of the prompt;
  equal ids mean equal text before and in the block).
"""

import csv
import functools
import json
import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from os import PathLike
from pathlib import Path
from typing import Any

from mini_vllm.errors import ConfigError, TraceFormatError
from mini_vllm.roofline.arguments import require_instance, require_positive, require_whole
from mini_vllm.sim.arrivals import ArrivalProcess
from mini_vllm.sim.lengths import Recorded, fit
from mini_vllm.sim.workloads import OWN_CONTENT, Arrival, Source, Workload

DATA = Path(__file__).resolve().parent / "data"
SAMPLES = {
    "azure-conversation": "azure_llm_2023_conv_first2000.csv",
    "azure-code": "azure_llm_2023_code_first2000.csv",
    "mooncake-conversation": "mooncake_fast25_conversation_first2000.jsonl",
    "mooncake-synthetic": "mooncake_fast25_synthetic_first2000.jsonl",
    "arxiv-summarization": "vidur_arxiv_summarization_lengths_first2000.csv",
}
MOONCAKE_BLOCK = 512  # tokens that one hash id stands for

_PROMPT = ("prompt_tokens", "ContextTokens", "num_prefill_tokens", "input_length")
_OUTPUT = ("output_tokens", "GeneratedTokens", "num_decode_tokens", "output_length")


def _date_s(text: str) -> float:
    # Azure writes seven digits after the point, Python reads six.
    date = datetime.fromisoformat(re.sub(r"(\.\d{6})\d+", r"\1", text))
    # Without a zone it is taken for UTC: in the zone of this machine, an hour may be missing or come twice.
    return (date if date.tzinfo else date.replace(tzinfo=UTC)).timestamp()


_TIMES: dict[str, Callable[[Any], float]] = {
    "arrived_at_s": float,
    "arrived_at": float,
    "TIMESTAMP": _date_s,
    "timestamp": lambda ms: float(ms) / 1e3,
}


@dataclass(frozen=True)
class TraceWorkload:
    """A recorded open workload: row by row what came when. `has_times` is False where only lengths were recorded."""

    name: str
    rows: tuple[Arrival, ...]
    has_times: bool = True

    def start(self) -> Source:
        if not self.has_times:
            raise ConfigError(
                f"{self.name} has lengths but no arrival times (no column {' or '.join(_TIMES)}); give it some: "
                ".arriving(Poisson(rate=2))"
            )
        return Source(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def lengths(self) -> Recorded:
        """Its pairs of prompt and output tokens, without the times."""
        return Recorded([(row.prompt_tokens, row.output_tokens) for row in self.rows])

    @property
    def rate(self) -> float:
        """Requests per second, on average."""
        span_s = self.rows[-1].arrived_s - self.rows[0].arrived_s
        return (len(self.rows) - 1) / span_s if span_s > 0 else math.inf

    def first(self, num_requests: int) -> "TraceWorkload":
        """Only its first requests. Raises ConfigError if it has fewer."""
        require_whole(num_requests, "num_requests", least=1)
        if num_requests > len(self.rows):
            raise ConfigError(f"{self.name} has {len(self.rows)} requests, not {num_requests}; ask for fewer")
        return replace(self, rows=self.rows[:num_requests])

    def at_rate(self, rate: float) -> "TraceWorkload":
        """The same requests, their times stretched evenly so that `rate` come per second on average."""
        require_positive(rate, "rate")
        if not self.has_times or not math.isfinite(self.rate):
            raise ConfigError(f"{self.name} has no times that could be stretched; use .arriving(Poisson({rate}))")
        factor = self.rate / rate
        return replace(self, rows=tuple(row._replace(arrived_s=row.arrived_s * factor) for row in self.rows))

    def fitted(self, most_tokens: int) -> "TraceWorkload":
        """Requests beyond `most_tokens` shortened, prompt and output in proportion; their content is cut at the end."""
        require_whole(most_tokens, "most_tokens", least=2)
        return replace(self, rows=tuple(_fit(row, most_tokens) for row in self.rows))

    def arriving(self, arrivals: ArrivalProcess, num_requests: int | None = None, seed: int = 0) -> Workload:
        """Its lengths in their order, at other times; more requests than it has start over. The content is lost."""
        return Workload(arrivals, self.lengths, num_requests or len(self.rows), seed)


def _fit(row: Arrival, most_tokens: int) -> Arrival:
    prompt, output = fit(row.prompt_tokens, row.output_tokens, most_tokens)
    segments, left = [], prompt
    for content, tokens in row.segments:
        if left > 0:
            segments.append((content, min(tokens, left)))
            left -= tokens
    return row._replace(prompt_tokens=prompt, output_tokens=output, segments=tuple(segments))


def load_trace(source: str | PathLike) -> TraceWorkload:
    """A sample by name (`SAMPLES`), or a file. Raises TraceFormatError with file, row and reason."""
    if isinstance(source, str) and source in SAMPLES:
        return _sample(source)
    if not isinstance(source, str | PathLike):
        raise ConfigError(f"the trace is {source!r}; give a file, or one of the samples {', '.join(SAMPLES)}")
    path = Path(source)
    if not path.is_file():
        raise ConfigError(f"{str(source)!r} is neither a file nor one of the samples {', '.join(SAMPLES)}")
    return _read(path, str(source))


@functools.cache
def _sample(name: str) -> TraceWorkload:
    """Read once: a sweep asks for it at every point."""
    return _read(DATA / SAMPLES[name], name)


def _read(path: Path, name: str) -> TraceWorkload:
    is_json = path.suffix in (".jsonl", ".json")
    rows: list[Arrival] = []
    has_times, zero_s = False, 0.0
    for number, fields in _json_rows(path) if is_json else _csv_rows(path):
        where = f"{path}:{number}"
        row = _arrival(fields, where)
        if not rows:
            has_times, zero_s = row.arrived_s is not None, row.arrived_s or 0.0
        elif has_times != (row.arrived_s is not None):
            raise TraceFormatError(f"{where}: some rows have a time and some have none; give all of them one, or none")
        row = row._replace(arrived_s=row.arrived_s - zero_s if has_times else 0.0)
        if rows and row.arrived_s < rows[-1].arrived_s:
            raise TraceFormatError(
                f"{where}: arrives {rows[-1].arrived_s - row.arrived_s:g} s before the row above; sort by time"
            )
        rows.append(row)
    if not rows:
        raise TraceFormatError(f"{path} holds no request")
    return TraceWorkload(name, tuple(rows), has_times)


def _csv_rows(path: Path) -> Iterator[tuple[int, Mapping[str, Any]]]:
    reader = csv.DictReader(_lines(path))
    for fields in reader:
        yield reader.line_num, fields


def _json_rows(path: Path) -> Iterator[tuple[int, Mapping[str, Any]]]:
    for number, line in enumerate(_lines(path), 1):
        if line.strip():
            try:
                fields = json.loads(line)
            except (ValueError, RecursionError) as error:
                raise TraceFormatError(f"{path}:{number}: no JSON: {error}") from error
            if not isinstance(fields, dict):
                raise TraceFormatError(f"{path}:{number}: {line.strip()[:40]} is no JSON object")
            yield number, fields


def _lines(path: Path) -> Iterator[str]:
    with path.open(newline="", encoding="utf-8-sig") as file:  # spreadsheets put a mark before the first column's name
        try:
            yield from file
        except UnicodeDecodeError as error:
            raise TraceFormatError(f"{path} is no text in UTF-8 ({error}); unpack it, or save it as UTF-8") from error


def _arrival(fields: Mapping[str, Any], where: str) -> Arrival:
    """One row; `arrived_s` is None where the trace has no times."""
    time_name = next((name for name in _TIMES if name in fields), None)
    counts: list[int] = []
    for names in (_PROMPT, _OUTPUT):
        name = next((name for name in names if name in fields), None)
        if name is None:
            raise TraceFormatError(f"{where}: no column {' or '.join(names)}; there are {', '.join(map(str, fields))}")
        counts.append(_tokens(fields[name], name, where))
    arrived_s: Any = None
    if time_name is not None:
        try:
            arrived_s = _TIMES[time_name](fields[time_name])
        except (TypeError, ValueError) as error:
            raise TraceFormatError(f"{where}: {time_name}={fields[time_name]!r} is no time: {error}") from error
        if not math.isfinite(arrived_s):
            raise TraceFormatError(f"{where}: {time_name}={fields[time_name]!r} is no time")
    prompt, output = counts
    return Arrival(arrived_s, prompt, output, segments=_segments(fields.get("hash_ids"), prompt, where))


def _tokens(value: Any, name: str, where: str) -> int:
    try:
        count = int(value)
    except (TypeError, ValueError, OverflowError):
        count = -1
    if count < 1 or isinstance(value, bool) or (isinstance(value, float) and value != count):
        raise TraceFormatError(f"{where}: {name}={value!r} must be a whole number of tokens, at least 1")
    return count


def _segments(hash_ids: Any, prompt_tokens: int, where: str) -> tuple[tuple[int, int], ...]:
    if hash_ids is None:
        return ()
    needed = -(-prompt_tokens // MOONCAKE_BLOCK)
    sound = isinstance(hash_ids, list) and all(
        type(hash_id) is int and 0 <= hash_id < OWN_CONTENT - 1 for hash_id in hash_ids
    )
    if not sound or len(hash_ids) != needed:
        raise TraceFormatError(
            f"{where}: hash_ids must be {needed} whole numbers, one for each {MOONCAKE_BLOCK} of {prompt_tokens} "
            f"tokens, from 0 to {OWN_CONTENT - 2}"
        )
    sizes = [MOONCAKE_BLOCK] * (needed - 1) + [prompt_tokens - MOONCAKE_BLOCK * (needed - 1)]
    # Content 0 is the model's own output, so the ids are moved up by one.
    return tuple((hash_id + 1, size) for hash_id, size in zip(hash_ids, sizes, strict=True))


def unlimited_hit_rate(workload: TraceWorkload) -> float:
    """Share of the prompt tokens that an endless prefix cache would hold: whole blocks seen before, from the front.

    Only content counts, not the times: somebody is served in no time, and nothing is ever evicted.
    """
    require_instance(workload, TraceWorkload, "workload")
    seen: set[int] = set()
    hit = total = 0
    for row in workload.rows:
        total += row.prompt_tokens
        is_hit = True
        for content, tokens in row.segments:
            is_hit = is_hit and content in seen
            hit += tokens if is_hit and tokens == MOONCAKE_BLOCK else 0
            seen.add(content)
    if not any(row.segments for row in workload.rows):
        raise ConfigError(f"{workload.name} says nothing about the content of its prompts, so nobody knows what recurs")
    return hit / total
