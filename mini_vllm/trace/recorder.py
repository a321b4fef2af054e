"""Writes down what happened in each step. Knows the record format; decides nothing. Chapter 4.

Field names are those of the recorded runs of the real vLLM scheduler, so that the same player shows all three worlds.
"""

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path

from mini_vllm.config import SchedulerConfig
from mini_vllm.errors import TraceFormatError

FORMAT = "mini_vllm.trace"
VERSION = 1


@dataclass
class Trace:
    """A run: `header` (kind, configuration, requests) and one record a step."""

    header: dict
    steps: list[dict] = field(default_factory=list)

    def save(self, path: str | Path) -> Path:
        """Write JSON lines: the header, then one step a line."""
        path = Path(path)
        rows = [self.header, *self.steps]
        # A lone surrogate (half an emoji in a prompt) has no UTF-8; it is kept as JSON's own escape.
        lines = [json.dumps(row, ensure_ascii=False) for row in rows]
        text = "".join(line + "\n" if line.isprintable() else json.dumps(json.loads(line)) + "\n" for line in lines)
        path.write_text(text, encoding="utf-8")
        return path

    @classmethod
    def load(cls, path: str | Path) -> "Trace":
        """Read what `save` wrote; TraceFormatError names the file and the line."""
        rows = []
        # Lines end at \n only: splitlines() would also cut inside a text that holds U+2028.
        lines = Path(path).read_bytes().removesuffix(b"\n").split(b"\n")
        for number, line in enumerate(lines if lines != [b""] else [], start=1):
            try:
                row = json.loads(line)
                if not isinstance(row, dict):
                    raise ValueError("not an object")
            except (ValueError, RecursionError) as error:
                raise TraceFormatError(f"{path}, line {number}: not a JSON object ({error})") from error
            rows.append(row)
        if not rows or rows[0].get("format") != FORMAT:
            raise TraceFormatError(f'{path}: the first line is not a header with "format": "{FORMAT}"')
        if rows[0].get("version") != VERSION:
            raise TraceFormatError(f"{path}: version {rows[0].get('version')!r}; this package reads {VERSION}")
        return cls(rows[0], rows[1:])

    def outputs(self) -> dict[str, list[int]]:
        """Sampled tokens per request over the whole run."""
        tokens: dict[str, list[int]] = {req_id: [] for req_id in self.header["requests"]}
        for step in self.steps:
            for req_id, token_ids in step["sampled"].items():
                tokens[req_id] += token_ids
        return tokens

    def first_token_step(self) -> dict[str, int]:
        """Step in which each request emitted its first token."""
        first: dict[str, int] = {}
        for step in self.steps:
            for req_id, token_ids in step["sampled"].items():
                if token_ids:
                    first.setdefault(req_id, step["step"])
        return first

    def finish_step(self) -> dict[str, int]:
        """Step in which each request finished."""
        return {req_id: step["step"] for step in self.steps for req_id in step["finished"]}


class TraceRecorder:
    """Collects step records from a watch; one instance a run."""

    def __init__(self, config: SchedulerConfig, kind: str, scheduler_name: str):
        header = {"format": FORMAT, "version": VERSION, "kind": kind, "scheduler": scheduler_name}
        self.trace = Trace({**header, "config": asdict(config), "requests": {}})

    def arrived(self, request, step: int, prompt: str | None = None) -> None:
        entry = {
            "arrival_step": step,
            "prompt_len": request.num_prompt_tokens,
            "max_tokens": request.sampling_params.max_tokens,
        }
        if prompt is not None:
            entry["prompt"] = prompt
        self.trace.header["requests"][request.request_id] = entry

    def planned(self, step: int, watch, plan, before: dict, computed_before: dict[str, int]) -> None:
        """First half of a record: the state after `schedule()`, as `SchedulerWatch` keeps it."""
        pieces = plan.num_scheduled_tokens
        moved = dict.fromkeys([*pieces, *plan.preempted_req_ids])  # each once, in the plan's order
        computed = {req_id: [computed_before[req_id], watch.computed[req_id]] for req_id in moved}
        record = {
            "step": step,
            **before,
            "scheduled": [[req_id, n] for req_id, n in pieces.items()],
            "new": [r.req_id for r in plan.scheduled_new_reqs],
            "resumed": [r.req_id for r in plan.scheduled_cached_reqs if r.resumed],
            "preempted": list(plan.preempted_req_ids),
            "hits": {
                r.req_id: r.num_computed_tokens
                for r in (*plan.scheduled_new_reqs, *(c for c in plan.scheduled_cached_reqs if c.resumed))
            },
            "waiting": list(watch.waiting),
            "running": list(watch.running),
            "computed": computed,
            "blocks": {req_id: list(table) for req_id, table in watch.block_tables.items()},
            "free": watch.num_free_blocks,
            "budget_used": plan.total_num_scheduled_tokens,
            "blocked_reason": plan.blocked_reason,
        }
        self.trace.steps.append(record)

    def updated(self, watch, output, news, t_start: float, t_end: float) -> None:
        """Second half: what was sampled and who finished. Times in seconds on the run's own clock."""
        self.trace.steps[-1].update(
            sampled={req_id: list(ids) for req_id, ids in output.sampled_token_ids.items() if ids},
            finished=[item.request_id for item in news if item.finished],
            free_end=watch.num_free_blocks,
            running_end=list(watch.running),
            t_start=t_start,
            t_end=t_end,
        )

    def add_pieces(self, pieces: dict[str, str]) -> None:
        """Text that became final in the latest step, per request; only the engine has text."""
        if pieces:
            self.trace.steps[-1]["pieces"] = pieces
