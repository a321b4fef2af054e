"""What the player's page is given: delta-coded series. Knows data and no looks. From chapter 1 on.

A run of 200 steps must fit a notebook many times over, so every value is written only where it changes, block
tables only by what they gain, and every part of a sentence once.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from mini_vllm.viz.event_words import event_steps, step_clauses
from mini_vllm.viz.phrases import count
from mini_vllm.viz.timeline import PREEMPTED, Lane, Timeline
from mini_vllm.viz.wait_words import SKIPPING, blocked_reason, wait_words

MAP_MAX_BLOCKS = 1024  # above this the block map shows shares, not places


def run_data(line: Timeline, lane_order: Sequence[str] | None = None) -> dict[str, Any]:
    """The run as run.js reads it; no wall times in it. `lane_order`: request ids, for two runs side by side."""
    words = _Words()
    total, has_blocks = line.limit("num_gpu_blocks"), line.has("blocks")
    shares_only = is_large_pool(line)
    steps = range(len(line.records))
    lanes = [line.lane_or_empty(rid) for rid in lane_order] if lane_order is not None else line.lanes
    numbers = {lane.id: str(k) for k, lane in enumerate(lanes)}
    data = {
        "about": about(line),
        "block_size": line.limit("block_size"),
        "blocks": total,
        "budget": line.token_budget,
        "events": [[kind, ranges(found)] for kind, found in event_steps(line).items()],
        "free": changes("" if free is None else str(free) for free in line.free),
        "has_blocks": has_blocks,
        "hashed": changes(ranges(record.get("cached_blocks") or []) for record in line.records),
        "lanes": [_lane_data(lane, shares_only) for lane in lanes],
        "running": changes(",".join(map(numbers.__getitem__, queue)) for queue in line.running),
        "say": changes(",".join(words.number(clause) for clause in step_clauses(line, i)) for i in steps),
        "seats": line.limit("max_num_seqs"),
        "shares": any(_shares_blocks(record["blocks"]) for record in line.records),
        "skips": changes("1" if blocked_reason(line, i) in SKIPPING else "" for i in steps),
        "steps": ranges(line.numbers),
        "waiting": changes(",".join(map(numbers.__getitem__, queue)) for queue in line.waiting),
        "why": changes(words.number(wait_words(line, i)) for i in steps),
        "words": words.table,
    }
    if shares_only:
        data["pool"] = changes(_pool_counts(line))
    return data


def is_large_pool(line: Timeline) -> bool:
    """Whether the blocks are too many to be drawn one by one."""
    return line.has("blocks") and (line.limit("num_gpu_blocks") or 0) > MAP_MAX_BLOCKS


def seconds(line: Timeline) -> list[list[float | None]]:
    """Start and end of each step in seconds on the run's own clock, None where the record has none."""
    spans = [(record.get("t_start"), record.get("t_end")) for record in line.records]
    return [[None if t is None else round(float(t), 5) for t in span] for span in spans]


def about(line: Timeline) -> str:
    """Size of the run and its limits, as far as the header states them."""
    facts = [clean(str(line.header["scheduler"]))] if line.header.get("scheduler") else []
    facts.append(f"{count(len(line.lanes), 'request')}, {count(len(line.records), 'step')}")
    if line.header.get("dropped_steps"):
        facts.append(f"the {count(line.header['dropped_steps'], 'step')} before are not kept")
    budget, blocks = line.token_budget, line.limit("num_gpu_blocks")
    size = line.limit("block_size")
    if budget:
        facts.append(f"budget {budget:,} tokens a step")
    if blocks:
        facts.append(f"{blocks:,} KV blocks" + (f" of {size} tokens" if size else ""))
    return " · ".join(facts)


def changes(values: Iterable[str]) -> str:
    """Delta form of one value a step: "steps since the last change:value", joined by ";".

    A list that only adds to the one before it is written as "+rest" (block tables grow this way), one that lost its
    first n items as "-n" or "-n+rest" (a queue moves this way).
    """
    out, last, at = [], "", 0
    for step, value in enumerate(values):
        if value != last:
            out.append(f"{step - at}:{min(value, _edit(last, value) or value, key=len)}")
            last, at = value, step
    return ";".join(out)


def _edit(last: str, value: str) -> str | None:
    """How `value` comes out of `last` by taking items off its front and adding some at its end, if it does."""
    if not last or not value:
        return None
    if value.startswith(last + ","):
        return "+" + value[len(last) + 1 :]
    old, new = last.split(","), value.split(",")
    if new[0] not in old:
        return None
    gone = old.index(new[0])
    kept = len(old) - gone
    if not gone or new[:kept] != old[gone:]:
        return None
    return f"-{gone}" + (f"+{','.join(new[kept:])}" if new[kept:] else "")


def ranges(ids: Sequence[int]) -> str:
    """[1, 2, 3, 9] → "1-3,9", order kept."""
    out: list[list[int]] = []
    for number in ids:
        if out and number == out[-1][1] + 1:
            out[-1][1] = number
        else:
            out.append([number, number])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in out)


def script_json(data: Any) -> str:
    """JSON for a script element: nothing in it can end the element or start a comment or an entity."""
    text = json.dumps(data, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    for char in "<>&":
        text = text.replace(char, f"\\u{ord(char):04x}")
    return text


def clean(text: str) -> str:
    """Text that UTF-8 can carry: lone surrogates become question marks."""
    return text.encode("utf-8", "replace").decode("utf-8")


class _Words:
    """A table of phrases, each stored once."""

    def __init__(self) -> None:
        self.table: list[str] = []
        self._numbers: dict[str, int] = {}

    def number(self, phrase: str) -> str:
        if phrase not in self._numbers:
            self._numbers[phrase] = len(self.table)
            self.table.append(clean(phrase))
        return str(self._numbers[phrase])


def _lane_data(lane: Lane, shares_only: bool) -> dict[str, Any]:
    """One request; what it does not have is left out."""
    out: dict[str, Any] = {
        "id": clean(lane.id),
        "cells": changes(
            cell.kind + (str(cell.tokens) if cell.tokens else "") + cell.marks if cell else "" for cell in lane.cells
        ),
        "p": lane.prompt_len,
        "m": lane.max_tokens,
        "label": clean(lane.label) if lane.label != lane.id else None,
        "jumps": _jumps(lane),
        "prompt": clean(lane.prompt),
    }
    if shares_only:
        out["counts"] = changes(str(sum(1 for block in table if block)) for table in lane.blocks)
    else:
        out["blocks"] = changes(ranges(table) for table in lane.blocks)
    if any(lane.pieces):
        pieces = [clean(piece) for piece in lane.pieces]
        if lane.generated_before:  # the text goes on from steps that are not kept
            first = next(i for i, piece in enumerate(pieces) if piece)
            pieces[first] = "…" + pieces[first]
        out["text"] = "".join(pieces)
        out["cuts"] = _lengths(pieces)
    return {name: value for name, value in out.items() if value is not None and value != ""}


def _shares_blocks(tables: dict[str, list[int]]) -> bool:
    """Whether a block stands in two tables."""
    held = [block for table in tables.values() for block in table if block]
    return len(held) > len(set(held))


def _pool_counts(line: Timeline) -> Iterator[str]:
    """Of a pool too large to draw block by block: "shared,cached but free,taken in this step,evicted in this step"."""
    owners: Counter[int] = Counter()
    tables: list[list[int]] = [[] for _ in line.lanes]
    for i, record in enumerate(line.records):
        moved = [(k, lane.blocks[i]) for k, lane in enumerate(line.lanes) if lane.blocks[i] is not tables[k]]
        before = {block for k, table in moved for block in (*tables[k], *table) if owners[block]}
        for k, table in moved:
            owners.subtract(tables[k])
            owners.update(table)
        taken = {block for _, table in moved for block in table if block and block not in before}
        evicted = {b for k, lane in enumerate(line.lanes) if lane.id in record["preempted"] for b in tables[k] if b}
        for k, table in moved:
            tables[k] = table
        shared = sum(n > 1 for block, n in owners.items() if block) if line.config.get("enable_prefix_caching") else 0
        idle = sum(not owners[block] for block in record.get("cached_blocks") or [])
        yield f"{shared},{idle},{len(taken)},{len(evicted)}"


def _jumps(lane: Lane) -> str:
    """Where a piece does not start where the last one ended (cache hits, rejected drafts): "step:tokens"."""
    out, computed = [], 0
    for i, cell in enumerate(lane.cells):
        if cell and cell.kind == PREEMPTED and "o" not in cell.marks:
            computed = 0
        if cell and cell.tokens:
            if cell.before != computed:
                out.append(f"{i}:{cell.before}")
            computed = cell.before + cell.tokens
    return ";".join(out)


def _lengths(pieces: Iterable[str]) -> str:
    """Length of the text that each step adds in UTF-16 units, which is what a JavaScript string counts in:
    "5;3;2:7", where 2: says that the piece comes two steps after the one before.
    """
    out, last = [], -1
    for i, piece in enumerate(pieces):
        if piece:
            length = len(piece.encode("utf-16-le")) // 2
            out.append(f"{length}" if i == last + 1 else f"{i - last}:{length}")
            last = i
    return ";".join(out)
