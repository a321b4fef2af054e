"""A step in words: who came, went, advanced. Knows the timeline; knows no HTML. From chapter 1 on."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from mini_vllm.viz.eviction_words import eviction_clauses
from mini_vllm.viz.phrases import NAMES_MAX, count, listed
from mini_vllm.viz.timeline import DECODE, IDLE, PREFILL, RECOMPUTE, Cell, Lane, Timeline
from mini_vllm.viz.wait_words import blocked_reason

# What a reader can jump to, and the fields of a record that make a step one.
EVENT_KINDS = {
    "arrival": ("arrivals",),
    "entry": ("new",),
    "eviction": ("preempted",),
    "swap": ("swapped_out", "swapped_in"),
    "return": ("resumed",),
    "finish": ("finished",),
    "abort": ("aborted",),
}
QUIET_KINDS = ("arrival",)  # an arrival alone changes nothing yet


def step_words(line: Timeline, i: int) -> str:
    """What step number i (an index) did, as one sentence; the step's own number is not in it."""
    return "; ".join(step_clauses(line, i)) + "."


def step_clauses(line: Timeline, i: int) -> list[str]:
    """The parts of that sentence in fixed order, the rarest first: who came, who was thrown out and why, who entered,
    who caught up, who decoded, who left.
    """
    record = line.records[i]
    parts = [
        listed(line.labels(record["arrivals"]), "arrives", "arrive"),
        listed(line.labels(record["aborted"]), "is aborted", "are aborted"),
        *eviction_clauses(line, i),
    ]
    catching_up, decoding, idle = [], [], []
    for lane in _plan_order(line, record, i):
        cell = lane.cells[i]
        if cell is None:
            continue
        if cell.kind in (PREFILL, RECOMPUTE):
            catching_up.append(_catch_up(line, lane, cell, i))
        elif cell.kind == DECODE:
            entry = _entry(line, lane, cell, i)
            if entry:
                catching_up.append(f"{lane.label} {entry}decodes")
            else:
                decoding.append(lane.label)
        elif cell.kind == IDLE and lane.id not in record["finished"]:
            idle.append(lane.label)
    if len(catching_up) > NAMES_MAX + 1:
        catching_up[NAMES_MAX:] = [f"{len(catching_up) - NAMES_MAX} more catch up"]
    parts += [
        *catching_up,
        listed(decoding, "decodes", "decode"),
        listed(idle, "runs but gets no token", "run but get no token"),
        _cache_loss(line, i),
        _finish(line, i),
    ]
    return [part for part in parts if part] or ["nothing to do"]


def event_steps(line: Timeline) -> dict[str, list[int]]:
    """For each kind of event that occurs, the indices of its steps; "any" comes first."""
    found = {
        kind: [i for i, record in enumerate(line.records) if any(record[name] for name in names)]
        for kind, names in EVENT_KINDS.items()
    }
    any_kind = sorted({i for kind, steps in found.items() if kind not in QUIET_KINDS for i in steps})
    found["cache hit"] = [i for i, record in enumerate(line.records) if any(record["hits"].values())]
    found["cache loss"] = [i for i in range(len(line.records)) if lost_hashes(line, i)]
    reasons = [blocked_reason(line, i) for i in range(len(line.records))]
    found["new reason"] = [i for i, reason in enumerate(reasons) if reason and reason != (i and reasons[i - 1])]
    return {"any": any_kind} | {kind: steps for kind, steps in found.items() if steps}


def lost_hashes(line: Timeline, i: int) -> list[int]:
    """Blocks that carried a hash after the step before and carry none now: evicted from the prefix cache."""
    if not i:
        return []
    now = set(line.records[i].get("cached_blocks") or [])
    return [block for block in line.records[i - 1].get("cached_blocks") or [] if block not in now]


# ---- parts of the sentence


def _entry(line: Timeline, lane: Lane, cell: Cell, i: int) -> str:
    """ "enters, ", "resumes, ", "comes back with its 3 blocks, ", or "" for whoever ran already."""
    if "b" in cell.marks:
        return f"is swapped in with {count(len(lane.blocks[i]), 'block')}, " if lane.blocks[i] else "is swapped in, "
    return "resumes, " if "r" in cell.marks else "enters, " if lane.id in line.records[i]["new"] else ""


def _catch_up(line: Timeline, lane: Lane, cell: Cell, i: int) -> str:
    """ "R3 enters, prefills 6 of 32", "R3 prefills 6 (12 of 32)", "R4 resumes, recomputes 6 of 8"."""
    verb = "recomputes" if cell.kind == RECOMPUTE else "prefills"
    known = None if lane.prompt_len is None else lane.known_tokens(i)
    if cell.kind == PREFILL:
        known = lane.prompt_len
    done, entry = cell.before + cell.tokens, _entry(line, lane, cell, i)
    hit = f" after {cell.before} cached" if entry and cell.before and "b" not in cell.marks else ""
    first = ", first token" if line.records[i]["sampled"].get(lane.id) and not lane.generated[i] else ""
    if known is None:
        return f"{lane.label} {entry}{verb} {cell.tokens}{hit}{first}"
    if entry:
        return f"{lane.label} {entry}{verb} {cell.tokens} of {known}{hit}{first}"
    return f"{lane.label} {verb} {cell.tokens} ({done} of {known}{first})"


def _cache_loss(line: Timeline, i: int) -> str:
    """ "blocks 3, 7 are taken for new tokens and lose what was cached in them"."""
    lost = lost_hashes(line, i)
    if not lost:
        return ""
    named = listed([str(block) for block in lost])
    return f"block {named} loses its cached tokens" if len(lost) == 1 else f"blocks {named} lose their cached tokens"


def _finish(line: Timeline, i: int) -> str:
    """ "R2 finishes, its 4 blocks are free for the next step".

    The picture stands between schedule() and update: whoever finishes still holds its blocks there, so the words
    say what becomes of them. Fewer than it held are free where others share them; nothing is said where the record
    does not tell, or where a policy keeps the blocks.
    """
    record, free = line.records[i], line.free[i]
    said = listed(line.labels(record["finished"]), "finishes", "finish")
    held = {block for rid in record["finished"] for block in line.lane(rid).blocks[i] if block}
    freed = int(record["free_end"]) - free if record.get("free_end") is not None and free is not None else 0
    if not 0 < freed <= len(held):
        return said
    whose = "its" if len(record["finished"]) == 1 else "their"
    blocks = "block" if len(held) == 1 else f"{len(held)} blocks"
    share = f"{whose} {blocks}" if freed == len(held) else f"{freed} of {whose} {blocks}"
    return f"{said}, {share} {'is' if freed == 1 else 'are'} free for the next step"


def _plan_order(line: Timeline, record: dict[str, Any], i: int) -> Iterable[Lane]:
    """Entering requests first, then the rest of the plan in the scheduler's order, then the unscheduled."""
    entering = {*record["new"], *record["resumed"], *record["swapped_in"]}
    planned = [rid for rid, _ in record["scheduled"]]
    order = [rid for rid in planned if rid in entering] + [rid for rid in planned if rid not in entering]
    return [line.lane(rid) for rid in dict.fromkeys([*order, *line.running[i]])]
