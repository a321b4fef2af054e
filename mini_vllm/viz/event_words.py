"""A step in words. Knows the timeline and the rules' names; knows no HTML. From chapter 1 on."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from mini_vllm.viz.timeline import DECODE, IDLE, PREFILL, RECOMPUTE, Cell, Lane, Timeline

NAMES_MAX = 8


class Need(NamedTuple):
    """A running request that was short of blocks: how many it needed (None if unsaid), how many were free."""

    rid: str
    blocks: int | None
    free: int | None


def step_words(line: Timeline, i: int) -> str:
    """What step number i (an index) did, as one sentence; the step's own number is not in it.

    Fixed order, the rarest first: who came, who was thrown out and why, who entered, who caught up,
    who decoded, who left.
    """
    record = line.records[i]
    parts = [
        _listed(line, record["arrivals"], "arrives", "arrive"),
        _listed(line, record["aborted"], "is aborted", "are aborted"),
        _preemption(line, i),
    ]
    catching_up, decoding, idle = [], [], []
    for lane in _plan_order(line, record):
        cell = lane.cells[i]
        if cell is None:
            continue
        if cell.kind in (PREFILL, RECOMPUTE):
            catching_up.append(_catch_up(lane, cell, i, record))
        elif cell.kind == DECODE:
            decoding.append(lane.id)
        elif cell.kind == IDLE and lane.id not in record["finished"]:
            idle.append(lane.id)
    if len(catching_up) > NAMES_MAX + 1:
        catching_up[NAMES_MAX:] = [f"{len(catching_up) - NAMES_MAX} more catch up"]
    parts += [
        *catching_up,
        _listed(line, decoding, "decodes", "decode"),
        _listed(line, idle, "runs but gets no token", "run but get no token"),
        _finish(line, i),
    ]
    said = [part for part in parts if part]
    return ("; ".join(said) or "nothing to do") + "."


def wait_words(line: Timeline, i: int) -> str:
    """Why the queue head stays out after step i, with the arithmetic; "" for no reason or an empty queue."""
    if not line.waiting[i]:
        return ""
    record, head = line.records[i], line.lane(line.waiting[i][0])
    reason = record["blocked_reason"] if "blocked_reason" in record else infer_blocked_reason(line, i)
    return f"{head.label} waits: {_reason(str(reason), line, i, head)}." if reason else ""


def infer_blocked_reason(line: Timeline, i: int) -> str | None:
    """The rule that kept the queue head out, for traces that do not record it (recorded vLLM runs)."""
    record, head, seats = line.records[i], line.lane(line.waiting[i][0]), line.limit("max_num_seqs")
    budget, free = line.limit("max_num_batched_tokens"), line.free[i]
    if seats is not None and len(line.running[i]) >= seats:
        return "max_num_seqs"
    if record["preempted"]:
        return "preempted_this_step"
    if budget is not None and line.budget_used[i] >= budget:
        return "token_budget"
    known, config = _known_tokens(head, i), line.header.get("config") or {}
    needed = _blocks_needed(line, known)
    if needed is None or free is None:
        return None
    if needed > free and config.get("reserve_full_isl", True):
        return "kv_full_sequence"
    piece = known if budget is None else min(known, budget - line.budget_used[i])
    needed = _blocks_needed(line, piece) or 0
    if config.get("watermark") and needed <= free:
        return "kv_watermark"
    return "kv_chunk" if needed > free else None


# ---- parts of the sentence


def _preemption(line: Timeline, i: int) -> str:
    """Victims, each with the request whose need for blocks made it one, as far as the record tells."""
    preempted = line.records[i]["preempted"]
    blamed = _who_needed_blocks(line, i) if preempted else []
    if len(blamed) != len(preempted):
        return _listed(line, preempted, "is preempted", "are preempted")
    groups: dict[Need, list[str]] = {}
    for victim, need in zip(preempted, blamed, strict=True):
        groups.setdefault(need, []).append(victim)
    return "; ".join(_evicted(line, need, victims) for need, victims in groups.items())


def _evicted(line: Timeline, need: Need, victims: list[str]) -> str:
    gone = _listed(line, victims, "is preempted", "are preempted")
    who = "it" if victims == [need.rid] else line.lane(need.rid).label
    if need.free is None or (need.blocks is None and need.free):
        return f"{gone}: {who} needed more blocks than were free"
    what = "another block" if need.blocks in (None, 1) else f"{need.blocks} more blocks"
    return f"{gone}: {who} needed {what} and {need.free} {'was' if need.free == 1 else 'were'} free"


def _who_needed_blocks(line: Timeline, i: int) -> list[Need]:
    """For each victim, in order of preemption, who was short of blocks; [] where the record does not tell.

    Recorded failed allocations (`allocs`) are believed before a walk, which is exact only for first come,
    first served: under priority a victim may stand before the one in need, and with a prefix cache an
    evicted request may give back less than its table.
    """
    record, config = line.records[i], line.header.get("config") or {}
    before = record.get("running_before", line.running[i - 1] if i else [])
    calls = [(str(rid), granted) for rid, _, granted in record.get("allocs") or []]
    failed = [rid for rid, granted in calls if not granted and rid in before]
    exact = len(record["preempted"]) == 1 or not config.get("enable_prefix_caching") or bool(failed)
    walked = _walk_running(line, i, before) if exact and config.get("policy", "fcfs") == "fcfs" else []
    agrees = not failed or failed == [need.rid for need in walked]
    return walked if agrees else [Need(rid, None, None) for rid in failed]


def _walk_running(line: Timeline, i: int, before: Sequence[str]) -> list[Need]:
    """Go through `running` as the scheduler did; whoever is short evicts the tail.

        running_before   R1 +0   R2 +0   R3 +1  ← 0 free: R3 is short, the tail (R4) its victim

    A victim that is reached before it was evicted was short itself.
    """
    record, free = line.records[i], line.records[i].get("free_before")
    if free is None or not line.has("blocks") or not i:
        return []
    blamed: list[Need] = []
    victims = list(record["preempted"])
    for rid in before:
        if rid in record["preempted"] and rid not in victims:
            continue
        grown = len(line.lane(rid).blocks[i]) - len(line.lane(rid).blocks[i - 1])
        short = Need(rid, None if rid in victims else grown, free)
        while victims and (rid in victims or grown > free):
            free += len(line.lane(victims.pop(0)).blocks[i - 1])
            blamed.append(short)
        free -= max(grown, 0)
    return blamed


def _catch_up(lane: Lane, cell: Cell, i: int, record: dict[str, Any]) -> str:
    """ "R3 enters, prefills 6 of 32", "R3 prefills 6 (12 of 32)", "R4 resumes, recomputes 6 of 8"."""
    verb = "recomputes" if cell.kind == RECOMPUTE else "prefills"
    known = None if lane.prompt_len is None else _known_tokens(lane, i)
    if cell.kind == PREFILL:
        known = lane.prompt_len
    done = cell.before + cell.tokens
    entry = "resumes, " if "r" in cell.marks else "enters, " if lane.id in record["new"] else ""
    hit = f" after {cell.before} cached" if entry and cell.before else ""
    first = ", first token" if record["sampled"].get(lane.id) and not lane.generated[i] else ""
    if known is None:
        return f"{lane.label} {entry}{verb} {cell.tokens}{hit}{first}"
    if entry:
        return f"{lane.label} {entry}{verb} {cell.tokens} of {known}{hit}{first}"
    return f"{lane.label} {verb} {cell.tokens} ({done} of {known}{first})"


def _finish(line: Timeline, i: int) -> str:
    """ "R2 finishes, its 4 blocks are free for the next step".

    The picture stands between schedule() and update: whoever finishes still holds its blocks there, so the words
    say what becomes of them. Fewer than it held are free where others share them; nothing is said where the record
    does not tell, or where a policy keeps the blocks.
    """
    record, free = line.records[i], line.free[i]
    said = _listed(line, record["finished"], "finishes", "finish")
    held = {block for rid in record["finished"] for block in line.lane(rid).blocks[i] if block}
    freed = int(record["free_end"]) - free if record.get("free_end") is not None and free is not None else 0
    if not 0 < freed <= len(held):
        return said
    whose = "its" if len(record["finished"]) == 1 else "their"
    blocks = "block" if len(held) == 1 else f"{len(held)} blocks"
    share = f"{whose} {blocks}" if freed == len(held) else f"{freed} of {whose} {blocks}"
    return f"{said}, {share} {'is' if freed == 1 else 'are'} free for the next step"


def _reason(reason: str, line: Timeline, i: int, head: Lane) -> str:
    free, used, known = line.free[i], line.budget_used[i], _known_tokens(head, i)
    budget, needed = line.limit("max_num_batched_tokens"), _blocks_needed(line, known)
    up_to = "up to " if (line.header.get("config") or {}).get("enable_prefix_caching") else ""
    if reason == "max_num_seqs":
        return f"all {line.limit('max_num_seqs') or len(line.running[i])} seats are taken (max_num_seqs)"
    if reason == "preempted_this_step":
        return "nobody is admitted in a step that preempted"
    if reason == "token_budget" and budget is not None:
        return (
            f"all {budget} tokens of the budget are spent"
            if used >= budget
            else f"{budget - used} of {budget} budget tokens are left, too few for its next piece"
        )
    if reason == "kv_full_sequence" and needed is not None and free is not None:
        return f"its {count(known, 'known token')} need {up_to}{count(needed, 'block')}, {free} free"
    if reason == "kv_watermark" and needed is not None and free is not None:
        return f"it needs {up_to}{count(needed, 'block')}, {free} free, and the watermark must stay free"
    if reason == "kv_chunk" and free is not None:
        return (
            "its next piece needs a block, 0 free"
            if not free
            else f"its next piece needs more than the {count(free, 'free block')}"
        )
    return reason.replace("_", " ")


def _known_tokens(lane: Lane, i: int) -> int:
    return (lane.prompt_len or 0) + lane.generated[i]


def _blocks_needed(line: Timeline, tokens: int) -> int | None:
    size = line.limit("block_size")
    return -(-tokens // size) if size and tokens else None


def _plan_order(line: Timeline, record: dict[str, Any]) -> Iterable[Lane]:
    """Entering requests first, then the rest of the plan in the scheduler's order, then the unscheduled."""
    entering = {*record["new"], *record["resumed"]}
    planned = [rid for rid, _ in record["scheduled"]]
    order = [rid for rid in planned if rid in entering] + [rid for rid in planned if rid not in entering]
    by_id = {lane.id: lane for lane in line.lanes}
    return [by_id[rid] for rid in dict.fromkeys(order + list(by_id))]


def _listed(line: Timeline, rids: Sequence[str], one: str, many: str) -> str:
    """ "R1, R2, 3 more decode", or "" for nobody."""
    if not rids:
        return ""
    labels = [line.lane(rid).label for rid in rids]
    if len(labels) > NAMES_MAX + 1:
        labels[NAMES_MAX:] = [f"{len(labels) - NAMES_MAX} more"]
    named = ", ".join(labels)
    return f"{named} {one if len(rids) == 1 else many}"


def count(n: int, noun: str) -> str:
    """ "1 block", "2 blocks"."""
    return f"{n} {noun}" if n == 1 else f"{n} {noun}s"
