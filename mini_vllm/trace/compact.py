"""How a step record is written shorter than it is: only what changed. Knows two records at a time; no file. Chapter 4.

A record lists every queue and every block table, so that a reader may open it at any step. From one step to the next
almost nothing of that changes. In a file, a record therefore follows the one before it:

    record   {"step": 7, "running": [a, b], "blocks": {a: [1, 4], b: [2]},    "free": 1, …}
    record   {"step": 8, "running": [a, b], "blocks": {a: [1, 4, 5], b: [2]}, "free": 0, …}
    line     {"step": 8, "same": ["running"], "blocks_change": {a: [2, [5]]}, "free": 0, …}
"""

from typing import Any

from mini_vllm.trace.schema import step_fields

Record = dict[str, Any]
# Long, and mostly as they were a step ago.
REPEATING = (
    "waiting_before", "running_before", "waiting", "running", "free_queue", "cached_blocks", "running_end",
)  # fmt: skip
ONLY_IN_FILES = ("requests", "same", "blocks_change")


def pack(record: Record, previous: Record | None) -> Record:
    """`record` as a line of a file, after a line that holds `previous`; None: the line must stand alone."""
    if previous is None:
        return record
    same = [name for name in REPEATING if name in record and record[name] == previous.get(name)]
    row = {name: value for name, value in record.items() if name not in same}
    if same:
        row["same"] = same
    if "blocks" in row and "blocks" in previous:
        row["blocks_change"] = _changes(previous["blocks"], row.pop("blocks"))
    return row


def unpack(row: Record, previous: Record | None) -> Record:
    """The record that `pack` made `row` of. LookupError where it leans on something that `previous` lacks."""
    full = {name: value for name, value in row.items() if name not in ONLY_IN_FILES}
    if "same" in row or "blocks_change" in row:
        before = previous or {}
        full |= {name: before[name] for name in row.get("same", ())}
        if "blocks_change" in row:
            full["blocks"] = _changed(before["blocks"], row["blocks_change"])
        # The order of happening, as the recorder writes it; fields that we do not know come last.
        full = {name: full[name] for name in (*step_fields(), *full) if name in full}
    return full


def _changes(before: dict[str, list[int]], after: dict[str, list[int]]) -> dict[str, list | None]:
    changes: dict[str, list | None] = {req_id: None for req_id in before if req_id not in after}
    for req_id, table in after.items():
        was = before.get(req_id)
        if table is was:
            continue  # the recorder shares what did not change
        if was is None or table != was:
            kept = _common(was or [], table)
            changes[req_id] = [kept, table[kept:]]
    return changes


def _changed(before: dict[str, list[int]], changes: dict[str, list | None]) -> dict[str, list[int]]:
    after = dict(before)
    for req_id, change in changes.items():
        if change is None:
            del after[req_id]
        else:
            kept, rest = change
            after[req_id] = [*after.get(req_id, [])[:kept], *rest]
    return after


def _common(a: list[int], b: list[int]) -> int:
    """How many entries two tables share from the start."""
    for i, (x, y) in enumerate(zip(a, b, strict=False)):
        if x != y:
            return i
    return min(len(a), len(b))
