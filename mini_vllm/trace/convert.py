"""Recorded runs of vLLM as traces, theirs and ours side by side. Knows both formats; decides nothing. Chapter 4.

theirs = from_vllm_recording("97_worked_example_first_chunk.json")
ours = replayed("97_worked_example_first_chunk.json")
diff(theirs, ours)                                         # None: block id by block id the same run
"""

import json
from pathlib import Path
from typing import Any

from mini_vllm.errors import TraceFormatError
from mini_vllm.trace.compact import Record
from mini_vllm.trace.reader import checked_header, checked_step
from mini_vllm.trace.replay import Replay, read_recording
from mini_vllm.trace.schema import FORMAT, VERSION, checker, step_fields
from mini_vllm.trace.trace import Trace


def load_run(path: str | Path, *, partial: bool = False) -> Trace:
    """A trace of ours or a recording of vLLM's, whichever the file holds."""
    return from_vllm_recording(path) if is_recording(path) else Trace.load(path, partial=partial)


def is_recording(path: str | Path) -> bool:
    """Whether a file is one JSON object with a scenario and a trace. OSError if it cannot be opened."""
    try:
        data = json.loads(Path(path).read_bytes())  # a trace of ours ends this at its second line
    except (ValueError, RecursionError):
        return False
    return isinstance(data, dict) and {"scenario", "trace"} <= data.keys()


def from_vllm_recording(path: str | Path) -> Trace:
    """The real vLLM's run: kind "vllm", on the step clock, with `allocs`, `free_queue` and what else only it records.

    What a recording leaves out because it was empty is filled in; `blocked_reason` is not there to be had.
    """
    data = _read(path)
    facts = data["trace"]
    of_vllm = {
        "kind": "vllm",
        "scheduler": "AsyncScheduler" if facts["config"]["async_scheduling"] else "Scheduler",
        "vllm_version": facts.get("vllm_version"),
        "end": facts.get("end"),
    }
    return _as_trace(data, of_vllm, facts["steps"], str(path))


def replayed(path: str | Path) -> Trace:
    """Our scheduler's run of a recording's requests, under the recording's configuration, for as many steps."""
    data = _read(path)
    replay = Replay(data["scenario"], data["trace"]["config"])
    recorded = data["trace"]["steps"]
    known = {name for record in recorded for name in record}  # the rest does not apply: no drafts, not asynchronous, …
    records = [{name: value for name, value in replay.step().items() if name in known} for _ in recorded]
    for record in records:
        # As in the recordings: an empty plan has no output that could come back.
        if "updated_step" in record and not records[record["updated_step"]]["scheduled"]:
            del record["updated_step"]
    ours = {"kind": "sim", "scheduler": type(replay.scheduler).__name__}
    return _as_trace(data, ours, records, f"our run of {path}")


def _read(path: str | Path) -> dict:
    """A recording whose requests have the right shape; its steps are checked one by one."""
    data = read_recording(Path(path))
    for i, entry in enumerate(data["scenario"]["requests"]):
        if problem := checker("recorded_request")(entry):
            raise TraceFormatError(f"{path}: request {i} of the scenario: {problem.lstrip('. ')}")
    return data


def _as_trace(data: dict, header: dict[str, Any], records: list[Record], where: str) -> Trace:
    scenario, config = data["scenario"], data["trace"]["config"]
    full = {
        "format": FORMAT,
        "version": VERSION,
        "clock": "steps",
        **header,
        "title": scenario.get("what") or scenario.get("name"),
        "config": config,
        "requests": {entry["id"]: _request(entry) for entry in scenario["requests"]},
    }
    full = checked_header({name: value for name, value in full.items() if value is not None}, where)
    for number, record in enumerate(records):
        checked_step({**record, "step": number}, f"{where}, step {number}")
    return Trace(full, [_step(number, record) for number, record in enumerate(records)])


def _request(entry: dict) -> dict:
    known = {"arrival_step": entry["arrival_step"], "prompt_len": len(entry["prompt_token_ids"])}
    known["max_tokens"] = entry["max_tokens"]
    return known | ({"priority": entry["priority"]} if entry.get("priority") else {})


def _step(number: int, recorded: Record) -> Record:
    full: Record = {"arrivals": [], "aborted": [], **recorded, "step": number}
    full["budget_used"] = sum(n for _, n in recorded["scheduled"])
    full |= {"t_start": float(number), "t_end": float(number + 1)}
    return {name: full[name] for name in step_fields() if name in full}
