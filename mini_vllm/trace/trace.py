"""A run as data: a header and one record a step. Knows the records; files are read and written elsewhere. Chapter 4."""

from dataclasses import dataclass, field
from pathlib import Path

from mini_vllm.trace.reader import read_trace
from mini_vllm.trace.writer import TraceWriter


@dataclass
class Trace:
    """A run: `header` (kind, configuration, requests) and one record a step, as the page "The trace format" says.

    A block table that did not change is one list in several records: replace it, do not edit it in place.
    """

    header: dict
    steps: list[dict] = field(default_factory=list)

    def save(self, path: str | Path) -> Path:
        """Write JSON lines: the header, then one step a line; compressed if the name ends in .gz."""
        with TraceWriter(path) as writer:
            writer.begin(self.header)
            for record in self.steps:
                writer.write(record)
        return Path(path)

    @classmethod
    def load(cls, path: str | Path, *, partial: bool = False) -> "Trace":
        """Read a trace file; TraceFormatError names file and line.

        partial: take the whole steps of a file that was cut off while it was written.
        """
        return cls(*read_trace(path, partial))

    def outputs(self) -> dict[str, list[int]]:
        """Sampled tokens per request over the whole run."""
        tokens: dict[str, list[int]] = {req_id: [] for req_id in self.header.get("requests", {})}
        for step in self.steps:
            for req_id, token_ids in step.get("sampled", {}).items():
                tokens.setdefault(req_id, []).extend(token_ids)
        return tokens

    def first_token_step(self) -> dict[str, int]:
        """Step in which each request emitted its first token."""
        first: dict[str, int] = {}
        for step in self.steps:
            for req_id, token_ids in step.get("sampled", {}).items():
                if token_ids:
                    first.setdefault(req_id, step["step"])
        return first

    def finish_step(self) -> dict[str, int]:
        """Step in which each request finished."""
        return {req_id: step["step"] for step in self.steps for req_id in step.get("finished", ())}
