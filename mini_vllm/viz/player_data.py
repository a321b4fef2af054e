"""What the player's page is given: delta-coded series. Knows data and no looks. From chapter 1 on.

A run of 200 steps must fit a notebook many times over, so every value is written only where it changes, block
tables only by what they gain, and every sentence once.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

from mini_vllm.viz.event_words import count, step_words, wait_words
from mini_vllm.viz.timeline import PREEMPTED, Lane, Timeline

MAP_MAX_BLOCKS = 1024  # above this the block map shows shares, not places


def player_data(line: Timeline) -> dict[str, Any]:
    """The run as player.js reads it; no wall times in it."""
    words = _Words()
    total, has_blocks = line.limit("num_gpu_blocks"), line.has("blocks")
    shares_only = has_blocks and (total or 0) > MAP_MAX_BLOCKS
    steps = range(len(line.records))
    numbers = {lane.id: str(k) for k, lane in enumerate(line.lanes)}
    return {
        "about": about(line),
        "block_size": line.limit("block_size"),
        "blocks": total,
        "budget": line.limit("max_num_batched_tokens"),
        "events": line.event_steps(),
        "free": changes("" if free is None else str(free) for free in line.free),
        "has_blocks": has_blocks,
        "hashed": changes(ranges(record.get("cached_blocks") or []) for record in line.records),
        "lanes": [_lane_data(lane, shares_only) for lane in line.lanes],
        "running": changes(",".join(map(numbers.__getitem__, queue)) for queue in line.running),
        "say": changes([words.number(step_words(line, i)) for i in steps]),
        "seats": line.limit("max_num_seqs"),
        "steps": ranges([record["step"] for record in line.records]),
        "waffle": shares_only,
        "waiting": changes(",".join(map(numbers.__getitem__, queue)) for queue in line.waiting),
        "why": changes([words.number(wait_words(line, i)) for i in steps]),
        "words": words.table,
    }


def milliseconds(line: Timeline) -> list[float | None]:
    """Wall time of each step, None where the record has none."""
    spans = [(record.get("t_start"), record.get("t_end")) for record in line.records]
    return [None if start is None or end is None else round(1000 * (end - start), 2) for start, end in spans]


def about(line: Timeline) -> str:
    """Size of the run and its limits, as far as the header states them."""
    facts = [clean(str(line.header["scheduler"]))] if line.header.get("scheduler") else []
    facts.append(f"{count(len(line.lanes), 'request')}, {count(len(line.records), 'step')}")
    budget, blocks = line.limit("max_num_batched_tokens"), line.limit("num_gpu_blocks")
    size = line.limit("block_size")
    if budget:
        facts.append(f"budget {budget} tokens a step")
    if blocks:
        facts.append(f"{blocks} KV blocks" + (f" of {size} tokens" if size else ""))
    return " · ".join(facts)


def changes(values: Iterable[str]) -> str:
    """Delta form of one value a step: "steps since the last change:value", joined by ";".

    A value that only adds to the one before it is written as "+rest" (block tables grow this way).
    """
    out, last, at = [], "", 0
    for step, value in enumerate(values):
        if value != last:
            grown = value[len(last) + 1 :] if last and value.startswith(last + ",") else None
            out.append(f"{step - at}:{value if grown is None else '+' + grown}")
            last, at = value, step
    return ";".join(out)


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
    """A table of sentences, each stored once."""

    def __init__(self) -> None:
        self.table: list[str] = []
        self._numbers: dict[str, int] = {}

    def number(self, sentence: str) -> str:
        if sentence not in self._numbers:
            self._numbers[sentence] = len(self.table)
            self.table.append(clean(sentence))
        return str(self._numbers[sentence])


def _lane_data(lane: Lane, shares_only: bool) -> dict[str, Any]:
    out: dict[str, Any] = {
        "id": clean(lane.id),
        "label": clean(lane.label),
        "p": lane.prompt_len,
        "m": lane.max_tokens,
        "cells": changes(
            cell.kind + (str(cell.tokens) if cell.tokens else "") + cell.marks if cell else "" for cell in lane.cells
        ),
        "jumps": _jumps(lane),
        "text": "",
    }
    if shares_only:
        out["counts"] = changes(str(sum(1 for block in table if block)) for table in lane.blocks)
    else:
        out["blocks"] = changes(ranges(table) for table in lane.blocks)
    if lane.prompt:
        out["prompt"] = clean(lane.prompt)
    if any(lane.pieces):
        pieces = [clean(piece) for piece in lane.pieces]
        out["text"] = "".join(pieces)
        out["cuts"] = changes(_ends(pieces))
    return out


def _jumps(lane: Lane) -> str:
    """Where a piece does not start where the last one ended (cache hits, rejected drafts): "step:tokens"."""
    out, computed = [], 0
    for i, cell in enumerate(lane.cells):
        if cell and cell.kind == PREEMPTED:
            computed = 0
        if cell and cell.tokens:
            if cell.before != computed:
                out.append(f"{i}:{cell.before}")
            computed = cell.before + cell.tokens
    return ";".join(out)


def _ends(pieces: Iterable[str]) -> Iterable[str]:
    """Length of the text after each step in UTF-16 units, which is what a JavaScript string counts in."""
    total = 0
    for piece in pieces:
        total += len(piece.encode("utf-16-le")) // 2
        yield str(total)
