"""A run as a timeline for ui.perfetto.dev. Knows step records and the Trace Event Format; draws nothing. Chapter 15.

    process "scheduler"   one slice a step; counters: tokens in the plan, free KV blocks, both queues
    process "requests"    one track a request: waiting | prefill | waiting | decode | decode | preempted | recompute | …

Times are microseconds. On the step clock a step is drawn as one millisecond; the file says so in `otherData`.
The format wants slices of one track to lie beside or inside each other, so the ends of a step are rounded once, and all
its slices share them.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mini_vllm.errors import TraceFormatError
from mini_vllm.trace.compact import Record
from mini_vllm.trace.schema import FORMAT, VERSION
from mini_vllm.trace.trace import Trace
from mini_vllm.trace.writer import open_for_writing

Event = dict[str, Any]
US_A_STEP = 1_000
SCHEDULER, REQUESTS = 1, 2  # process ids
STEPS_TRACK = 1
FIRST_REQUEST_TRACK = 11  # track ids are one space for all processes in Perfetto


def export_perfetto(trace: Trace, path: str | Path) -> Path:
    """Write `trace` in the Trace Event Format (JSON object form); compressed if the name ends in .gz.

    The same trace gives the same bytes. TraceFormatError where a step ends before it starts, or starts before the last
    one ended.
    """
    path = Path(path)
    events = trace_events(trace)
    first = next(events)  # what is wrong with the trace is said before the file is touched
    with open_for_writing(path) as file:
        file.write(b'{"displayTimeUnit":"ms","otherData":' + _json(_about(trace)) + b',"traceEvents":[\n')
        file.write(_json(first))
        for event in events:
            file.write(b",\n" + _json(event))
        file.write(b"\n]}\n")
    return path


def trace_events(trace: Trace) -> Iterator[Event]:
    """The events, names of processes and tracks first, then step by step."""
    spans = _spans(trace)
    requests = trace.header.get("requests", {})
    lanes = {req_id: _Lane(FIRST_REQUEST_TRACK + i, requests.get(req_id, {})) for i, req_id in enumerate(_ids(trace))}
    yield from _names(lanes)
    for record, (start, end) in zip(trace.steps, spans, strict=True):
        yield from _scheduler_events(record, start, end)
        yield from _request_events(record, start, end, lanes)
    for lane in lanes.values():
        yield from lane.end_wait()
    if trace.steps:
        last = trace.steps[-1]
        yield from _counters(spans[-1][1], 0, last.get("free_end"), last.get("waiting"), last.get("running_end"))


def _about(trace: Trace) -> Event:
    known = {
        name: trace.header[name] for name in ("kind", "scheduler", "title", "vllm_version") if name in trace.header
    }
    unit = "1 step = 1 ms (the run has no clock of its own)" if _on_step_clock(trace) else "wall time of the run"
    return {"source": f"{FORMAT} version {VERSION}", "time": unit, **known, "config": trace.header.get("config", {})}


def _on_step_clock(trace: Trace) -> bool:
    has_times = all("t_start" in record and "t_end" in record for record in trace.steps)
    return trace.header.get("clock") == "steps" or not has_times


def _spans(trace: Trace) -> list[tuple[int, int]]:
    """Start and end of each step in microseconds."""
    if _on_step_clock(trace):
        return [(record["step"] * US_A_STEP, (record["step"] + 1) * US_A_STEP) for record in trace.steps]
    spans, last_end = [], float("-inf")
    for record in trace.steps:
        start, end = record["t_start"], record["t_end"]
        if not last_end <= start <= end:
            raise TraceFormatError(
                f"step {record['step']} lasts from {start} to {end} s, and the step before ended at {last_end} s: "
                "these times cannot be laid out on one line"
            )
        spans.append((round(start * 1e6), round(end * 1e6)))
        last_end = end
    return spans


def _ids(trace: Trace) -> list[str]:
    """All requests in order of arrival."""
    seen: dict[str, None] = {}
    for record in trace.steps:
        for name in ("running_before", "waiting_before", "arrivals", "running", "waiting"):
            seen.update(dict.fromkeys(record.get(name, ())))
        seen.update(dict.fromkeys(req_id for req_id, _ in record["scheduled"]))
        for name in ("aborted", "preempted", "finished"):
            seen.update(dict.fromkeys(record.get(name, ())))
    return list(seen)


def _names(lanes: dict[str, "_Lane"]) -> Iterator[Event]:
    for pid, name in ((SCHEDULER, "scheduler"), (REQUESTS, "requests")):
        yield {"ph": "M", "name": "process_name", "pid": pid, "tid": pid, "args": {"name": name}}
        yield {"ph": "M", "name": "process_sort_index", "pid": pid, "tid": pid, "args": {"sort_index": pid}}
    tracks = [(SCHEDULER, STEPS_TRACK, "steps"), *((REQUESTS, lane.track, req_id) for req_id, lane in lanes.items())]
    for pid, tid, name in tracks:
        yield {"ph": "M", "name": "thread_name", "pid": pid, "tid": tid, "args": {"name": name}}
        yield {"ph": "M", "name": "thread_sort_index", "pid": pid, "tid": tid, "args": {"sort_index": tid}}


def _scheduler_events(record: Record, start: int, end: int) -> Iterator[Event]:
    args = {name: record[name] for name in ("new", "resumed", "preempted", "finished") if record.get(name)}
    if record.get("blocked_reason"):
        args["blocked_reason"] = record["blocked_reason"]
    tokens = sum(n for _, n in record["scheduled"])
    args |= {"requests": len(record["scheduled"]), "tokens": tokens}
    yield _slice(f"step {record['step']}", "step", SCHEDULER, STEPS_TRACK, start, end, args)
    yield from _counters(start, tokens, record.get("free"), record.get("waiting"), record.get("running"))


def _counters(
    at: int, tokens: int, free: int | None, waiting: list[str] | None, running: list[str] | None
) -> Iterator[Event]:
    """Values from `at` on. A viewer names the tracks by event and key: "tokens scheduled", "KV blocks free", …"""
    queues = {"waiting": waiting, "running": running}
    counters = {
        "tokens": {"scheduled": tokens},
        "KV blocks": {} if free is None else {"free": free},
        "requests": {name: len(queue) for name, queue in queues.items() if queue is not None},
    }
    for name, values in counters.items():
        if values:
            yield {"ph": "C", "name": name, "pid": SCHEDULER, "tid": STEPS_TRACK, "ts": at, "args": values}


def _request_events(record: Record, start: int, end: int, lanes: dict[str, "_Lane"]) -> Iterator[Event]:
    for req_id in record.get("aborted", ()):
        yield from lanes[req_id].end_wait()
        yield lanes[req_id].instant("aborted", start)
    scheduled = dict(record["scheduled"])
    waiting, running = record.get("waiting", []), record.get("running", [])
    for i, req_id in enumerate(waiting):
        if req_id not in record.get("preempted", ()):
            yield from lanes[req_id].waits("waiting", start, end, record.get("blocked_reason") if i == 0 else None)
    for req_id in (req_id for req_id in running if req_id not in scheduled):
        yield from lanes[req_id].waits("idle", start, end, None)
    for req_id in record.get("preempted", ()):
        yield from lanes[req_id].is_preempted(record, req_id, start, end)
    for req_id, n in scheduled.items():
        yield from lanes[req_id].advances(record, req_id, n, start, end)
    for req_id, token_ids in record.get("sampled", {}).items():
        lane = lanes.get(req_id)  # asynchronous: a token may come for a request that has left
        if lane is not None and token_ids and not lane.num_sampled:
            yield lane.instant("first token", end)
        if lane is not None:
            lane.num_sampled += len(token_ids)
    for req_id in record.get("finished", ()):
        yield from lanes[req_id].end_wait()
        yield lanes[req_id].instant("finished", end)


class _Lane:
    """One request's track. A wait is one slice, however many steps it takes; every piece of work is a slice."""

    def __init__(self, track: int, facts: dict):
        self.track = track
        self.prompt_len: int | None = facts.get("prompt_len")
        self.num_computed = 0
        self.num_lost = 0  # computed tokens that the last preemption threw away
        self.num_sampled = 0
        self.wait: Event | None = None

    def advances(self, record: Record, req_id: str, n: int, start: int, end: int) -> Iterator[Event]:
        yield from self.end_wait()
        self.num_computed = record.get("computed", {}).get(req_id, [0, self.num_computed + n])[1]
        args: Event = {"tokens": n, "computed": self.num_computed}
        if req_id in record.get("hits", {}):
            args["cached"] = record["hits"][req_id]
        for name, field in (("sampled", "sampled"), ("text", "pieces")):
            if value := record.get(field, {}).get(req_id):
                args[name] = value
        kind = self._kind_of_piece(self.num_computed - n, n)
        yield _slice(kind, kind, REQUESTS, self.track, start, end, args)

    def _kind_of_piece(self, before: int, n: int) -> str:
        if before < self.num_lost:
            return "recompute"
        if self.prompt_len is None:
            return "decode" if self.num_sampled and n == 1 else "prefill"
        return "prefill" if before < self.prompt_len else "decode"

    def is_preempted(self, record: Record, req_id: str, start: int, end: int) -> Iterator[Event]:
        yield from self.end_wait()
        self.num_lost = record.get("computed", {}).get(req_id, [self.num_computed])[0]
        self.num_computed = 0
        yield _slice("preempted", "preempted", REQUESTS, self.track, start, end, {"lost_tokens": self.num_lost})

    def waits(self, name: str, start: int, end: int, reason: str | None) -> Iterator[Event]:
        """One step more without a token. reason: why the head of the queue stayed out, counted by steps."""
        if self.wait is not None and self.wait["name"] != name:
            yield from self.end_wait()
        if self.wait is None:
            self.wait = _slice(name, name, REQUESTS, self.track, start, end, {"steps": 0})
        self.wait["dur"] = end - self.wait["ts"]
        args = self.wait["args"]
        args["steps"] += 1
        if reason:
            args[reason] = args.get(reason, 0) + 1

    def end_wait(self) -> Iterator[Event]:
        if self.wait is not None:
            yield self.wait
            self.wait = None

    def instant(self, name: str, at: int) -> Event:
        return {"ph": "i", "name": name, "cat": "event", "pid": REQUESTS, "tid": self.track, "ts": at, "s": "t"}


def _slice(name: str, cat: str, pid: int, tid: int, start: int, end: int, args: Event) -> Event:
    # ts and dur stand before args: Perfetto looks for them from the left.
    return {"ph": "X", "name": name, "cat": cat, "pid": pid, "tid": tid, "ts": start, "dur": end - start, "args": args}


def _json(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode("ascii")
