"""Who did what in each step: requests × steps. Knows step records; no words, no pixels. From chapter 1 on."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mini_vllm.errors import TraceFormatError

FORMAT, VERSION = "mini_vllm.trace", 1
LABEL_MAX_CHARS = 7  # longer request ids are drawn as #1, #2, …; the full id stays in the tooltip

WAITING, PREFILL, RECOMPUTE, DECODE, IDLE, PREEMPTED, ABORTED = "wpcdixa"


@dataclass(frozen=True, slots=True)
class Cell:
    """One request in one step. `marks` holds "r" for resumed and "f" for finished."""

    kind: str
    tokens: int = 0
    before: int = 0  # computed tokens before the piece
    marks: str = ""


@dataclass(slots=True)
class Lane:
    """One request through the whole run; the lists have one entry a step."""

    id: str
    label: str
    prompt_len: int | None = None
    max_tokens: int | None = None
    prompt: str = ""
    cells: list[Cell | None] = field(default_factory=list)
    blocks: list[list[int]] = field(default_factory=list)
    pieces: list[str] = field(default_factory=list)
    generated: list[int] = field(default_factory=list)  # tokens sampled before each step


@dataclass(slots=True)
class Timeline:
    """A run laid out as lanes × steps, every optional field of the records filled in or marked absent."""

    header: dict[str, Any]
    records: list[dict[str, Any]]
    lanes: list[Lane]
    waiting: list[list[str]]
    running: list[list[str]]
    free: list[int | None]
    budget_used: list[int]

    def lane(self, request_id: str) -> Lane:
        """The lane of one request."""
        return next(lane for lane in self.lanes if lane.id == request_id)

    def limit(self, name: str) -> int | None:
        """A limit of the run's config as an int, or None where the header does not say."""
        value = _mapping(self.header.get("config")).get(name)
        return int(value) if isinstance(value, (int, float)) else None

    def has(self, name: str) -> bool:
        """True if any record carries the optional field `name`."""
        return any(record.get(name) for record in self.records)

    def event_steps(self) -> list[int]:
        """Indices of the steps in which somebody comes in or goes out (what "next event" jumps to)."""
        names = ("new", "resumed", "preempted", "aborted", "finished")
        return [i for i, record in enumerate(self.records) if any(record.get(name) for name in names)]


# ---- reading


def read_trace(source: Any) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Header and step records of a JSONL path, a {"header", "steps"} dict, or an object with both."""
    if isinstance(source, (str, os.PathLike)):
        header, rows = _read_jsonl(Path(source))
    else:
        if isinstance(source, dict):
            given, steps = source.get("header"), source.get("steps")
        else:
            given, steps = getattr(source, "header", None), getattr(source, "steps", None)
        if steps is None:
            raise TraceFormatError(
                f"{type(source).__name__} is no trace: give a JSONL path, a dict with 'header' "
                "and 'steps', or an object with these two attributes"
            )
        header = dict(_mapping(given))
        rows = [(f"record {i}", step) for i, step in enumerate(steps)]
    if not rows:
        raise TraceFormatError(
            f"{source if isinstance(source, (str, os.PathLike)) else 'the trace'} has no steps: "
            "record at least one before playing it"
        )
    return header, [_checked(record, where) for where, record in rows]


def _read_jsonl(path: Path) -> tuple[dict[str, Any], list[tuple[str, Any]]]:
    rows: list[tuple[str, Any]] = []
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise TraceFormatError(f"{path} is no UTF-8 text ({error.reason} at byte {error.start}): no trace") from None
    # Lines end at \n only: splitlines() would also cut inside a text that holds U+2028.
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        try:
            rows.append((f"{path}, line {number}", json.loads(line)))
        except json.JSONDecodeError as error:
            raise TraceFormatError(
                f"{path}, line {number}: not JSON ({error.msg} at column {error.colno}); "
                "was the run cut off while writing?"
            ) from None
    if not rows:
        raise TraceFormatError(f"{path} is empty: line 1 must be the header")
    where, header = rows[0]
    if not isinstance(header, dict) or "scheduled" in header:
        raise TraceFormatError(f'{where}: expected the header, e.g. {{"format": "{FORMAT}", …}}, not a step')
    if header.get("format", FORMAT) != FORMAT or header.get("version", VERSION) != VERSION:
        raise TraceFormatError(
            f"{where}: format {header.get('format')!r} version {header.get('version')!r}, "
            f"but the player reads {FORMAT!r} version {VERSION}"
        )
    return header, rows[1:]


def _checked(record: Any, where: str) -> dict[str, Any]:
    """The record with every id a string, or a TraceFormatError that names the field."""
    if not isinstance(record, dict) or not isinstance(record.get("step"), int):
        raise TraceFormatError(f"{where}: a step record needs an integer 'step'")
    try:
        clean = dict(record, scheduled=[(str(rid), int(n)) for rid, n in record["scheduled"]])
        for name in ("arrivals", "aborted", "new", "resumed", "preempted", "finished"):
            clean[name] = [str(rid) for rid in record.get(name) or []]
        for name in ("waiting", "running", "running_before"):
            if record.get(name) is not None:
                clean[name] = [str(rid) for rid in record[name]]
        for name in ("computed", "blocks", "sampled", "pieces", "hits"):
            clean[name] = {str(rid): value for rid, value in _mapping(record.get(name)).items()}
        for before_after in clean["computed"].values():
            _before, _after = map(int, before_after)
        clean["blocks"] = {rid: [int(b) for b in table] for rid, table in clean["blocks"].items()}
    except KeyError:
        raise TraceFormatError(f"{where}: a step record needs 'scheduled', e.g. [[\"R1\", 8]]") from None
    except (TypeError, ValueError) as error:
        raise TraceFormatError(f"{where}: a field has the wrong shape ({error})") from None
    return clean


def _mapping(value: Any) -> dict[Any, Any]:
    return value if isinstance(value, dict) else {}


# ---- lanes


def build_timeline(header: dict[str, Any], records: list[dict[str, Any]]) -> Timeline:
    """Lay the records out as lanes × steps.

    Rows come in order of arrival. A record without `waiting` and `running` is completed from the records
    before it: who was scheduled runs, who was preempted waits again, who finished is gone.
    """
    lanes = {rid: _lane(rid, number, header) for number, rid in enumerate(_arrival_order(records), start=1)}
    line = Timeline(header, records, list(lanes.values()), [], [], [], [])
    tracker = _Tracker(lanes)
    for record in records:
        waiting, running = tracker.step(record)
        line.waiting.append(waiting)
        line.running.append(running)
        line.budget_used.append(record.get("budget_used", sum(n for _, n in record["scheduled"])))
        line.free.append(_free(record, line.limit("num_gpu_blocks")))
    return line


def _arrival_order(records: list[dict[str, Any]]) -> list[str]:
    seen: dict[str, None] = {}
    for record in records:
        queues = (
            record["arrivals"],
            record.get("running") or [],
            record.get("waiting") or [],
            record["preempted"],
            [rid for rid, _ in record["scheduled"]],
            record["finished"],
            record["aborted"],
            record["pieces"],
        )
        for queue in queues:
            seen.update(dict.fromkeys(queue))
    return list(seen)


def _lane(rid: str, number: int, header: dict[str, Any]) -> Lane:
    facts = _mapping(_mapping(header.get("requests")).get(rid))
    label = rid if 0 < len(rid) <= LABEL_MAX_CHARS else f"#{number}"
    return Lane(rid, label, facts.get("prompt_len"), facts.get("max_tokens"), str(facts.get("prompt") or ""))


def _free(record: dict[str, Any], total: int | None) -> int | None:
    if record.get("free") is not None:
        return int(record["free"])
    if total is None or not record["blocks"]:
        return None
    return total - len({block for table in record["blocks"].values() for block in table if block})


class _Tracker:
    """Carries from step to step what a record may leave out: queues, computed tokens, lost tokens."""

    def __init__(self, lanes: dict[str, Lane]) -> None:
        self.lanes = lanes
        self.waiting: list[str] = []
        self.running: list[str] = []
        self.computed: dict[str, int] = {}
        self.lost: dict[str, int] = {}  # computed tokens thrown away at the last preemption
        self.generated: dict[str, int] = {}

    def step(self, record: dict[str, Any]) -> tuple[list[str], list[str]]:
        """Append one cell to every lane; return the two queues as they stand after schedule()."""
        self._move_queues(record)
        waiting, running, tokens = list(self.waiting), list(self.running), dict(record["scheduled"])
        for rid, lane in self.lanes.items():
            lane.generated.append(self.generated.get(rid, 0))
            lane.cells.append(self._cell(lane, record, tokens.get(rid, 0)))
            lane.blocks.append(record["blocks"].get(rid, []))
            lane.pieces.append(str(record["pieces"].get(rid) or ""))
            self.generated[rid] = self.generated.get(rid, 0) + len(record["sampled"].get(rid) or [])
        self.running = [rid for rid in running if rid not in record["finished"]]
        return waiting, running

    def _move_queues(self, record: dict[str, Any]) -> None:
        scheduled, preempted, gone = dict(record["scheduled"]), record["preempted"], set(record["aborted"])
        joined = [rid for rid in scheduled if rid not in self.running]
        self.waiting = [*preempted, *self.waiting, *record["arrivals"]]
        self.running = [rid for rid in [*self.running, *joined] if rid not in gone and rid not in preempted]
        self.waiting = [rid for rid in dict.fromkeys(self.waiting) if rid not in gone and rid not in scheduled]
        self.waiting = record.get("waiting", self.waiting)
        self.running = record.get("running", self.running)

    def _cell(self, lane: Lane, record: dict[str, Any], tokens: int) -> Cell | None:
        rid = lane.id
        before = self.computed.get(rid, 0)
        if rid in record["computed"]:  # after - n: a cache hit moves the start ([0, 24] with n = 8 began at 16)
            before = int(record["computed"][rid][1]) - tokens if tokens else int(record["computed"][rid][0])
        elif rid in record["hits"]:
            before = int(record["hits"][rid])
        marks = "r" * (rid in record["resumed"]) + "f" * (rid in record["finished"])
        if tokens:
            self.computed[rid] = before + tokens
            return Cell(self._piece_kind(lane, before, tokens), tokens, before, marks)
        if rid in record["preempted"]:
            self.computed[rid], self.lost[rid] = 0, before
            return Cell(PREEMPTED, before=before, marks=marks)
        if rid in record["aborted"]:
            return Cell(ABORTED, marks=marks)
        if rid in self.running:
            return Cell(IDLE, before=before, marks=marks)
        return Cell(WAITING, before=before, marks=marks) if rid in self.waiting else None

    def _piece_kind(self, lane: Lane, before: int, tokens: int) -> str:
        """Recompute below what a preemption threw away, prefill below the prompt's end, decode after it."""
        if before < self.lost.get(lane.id, 0):
            return RECOMPUTE
        if lane.prompt_len is not None:
            return PREFILL if before < lane.prompt_len else DECODE
        return DECODE if tokens == 1 and self.generated.get(lane.id, 0) else PREFILL
