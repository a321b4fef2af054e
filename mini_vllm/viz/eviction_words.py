"""Who was evicted for whom, with the arithmetic. Knows step records and the scan of `running`. Chapter 8."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from mini_vllm.viz.phrases import listed, ordinal
from mini_vllm.viz.timeline import Timeline


class Need(NamedTuple):
    """A running request that was short of blocks; None where the record does not tell."""

    rid: str
    blocks: int | None = None  # so many more
    held: int = 0
    free: int | None = None


def eviction_clauses(line: Timeline, i: int) -> list[str]:
    """ "R4 evicted: R3 needs a third block, 0 free"; without the reason where it cannot be known."""
    record = line.records[i]
    victims = record["preempted"]
    needs: list[Need | None] = [*who_needed_blocks(line, i)]
    if len(needs) != len(victims):
        needs = [None] * len(victims)
    groups: dict[tuple[Need | None, bool], list[str]] = {}
    for victim, need in zip(victims, needs, strict=True):
        groups.setdefault((need, victim in record["swapped_out"]), []).append(victim)
    return [_clause(line, need, swapped, gone) for (need, swapped), gone in groups.items()]


def _clause(line: Timeline, need: Need | None, swapped: bool, gone: list[str]) -> str:
    verb = "swapped out" if swapped else "evicted"
    said = listed(line.labels(gone), verb, verb)
    if need is None:
        return said
    who = "it" if gone == [need.rid] else line.lane(need.rid).label
    if need.free is None:
        return f"{said}: {who} needs more blocks than are free"
    if need.blocks is None:
        what = "another block" if not need.free else "more blocks"
    elif need.blocks == 1:
        what = f"a {ordinal(need.held + 1)} block"
    else:
        what = f"{need.blocks} more blocks beside its {need.held}"
    return f"{said}: {who} needs {what}, {need.free} free"


def who_needed_blocks(line: Timeline, i: int) -> list[Need]:
    """For each victim, in order of eviction, who was short of blocks; [] where the record does not tell.

    Recorded allocation attempts (`allocs`) tell it for every policy. Without them it follows from the scan of
    `running`, first come, first served. The count of free blocks that comes out must be the recorded one, else no
    number is said.
    """
    record = line.records[i]
    if not record["preempted"] or not i:
        return []
    if record.get("allocs"):
        return _from_attempts(line, i)
    return _from_scan(line, i) if line.config.get("policy", "fcfs") == "fcfs" else []


class _Pool:
    """The blocks as they were at the start of schedule(), to follow its scan."""

    def __init__(self, line: Timeline, i: int) -> None:
        record = line.records[i]
        self.line, self.i = line, i
        self.before: list[str] = record.get("running_before", line.running[i - 1])
        self.tables = {rid: line.lane(rid).blocks[i - 1] for rid in self.before}
        self.owners = Counter(block for table in self.tables.values() for block in table if block)
        self.granted: Counter[str] = Counter()
        self.free: int | None = record.get("free_before")
        self.victims = list(record["preempted"])

    def grant(self, rid: str, blocks: int) -> None:
        if self.free is not None:
            self.free -= blocks
            self.granted[rid] += blocks

    def evict(self) -> str:
        """The next victim gives back what nobody else holds."""
        victim = self.victims.pop(0)
        blocks = {block for block in self.tables.get(victim, ()) if block}
        self.owners.subtract(blocks)
        if self.free is not None:
            self.free += sum(not self.owners[block] for block in blocks) + self.granted[victim]
        return victim

    def checked(self, needs: list[Need]) -> list[Need]:
        """The needs as found if the sum comes out, else only who had them."""
        if self.free == self.line.free[self.i] and not self.victims:
            return needs
        return [Need(need.rid) for need in needs]


def _from_attempts(line: Timeline, i: int) -> list[Need]:
    """Every failed attempt of a running request evicted one; several failures of one request are one need."""
    pool, needs = _Pool(line, i), list[Need]()
    computed, lookahead = line.records[i]["computed"], line.limit("num_lookahead_tokens") or 0
    for rid, tokens, was_granted in line.records[i]["allocs"]:
        held = len(pool.tables.get(rid, ()))
        total = line.blocks_for(int(computed.get(rid, [0])[0]) + tokens + lookahead)
        more = None if total is None else max(0, total - held)
        if was_granted:
            pool.grant(rid, more or 0)
            continue
        if rid not in pool.before or not pool.victims:
            break
        same = needs and needs[-1].rid == rid
        needs.append(needs[-1] if same else Need(rid, more, held, pool.free))
        pool.evict()
    return pool.checked(needs)


def _from_scan(line: Timeline, i: int) -> list[Need]:
    """Go through `running` as the scheduler did; whoever is short evicts the tail.

        running_before   R1 +0   R2 +0   R3 +1  ← 0 free: R3 is short, the tail (R4) its victim

    A victim that is reached before it was evicted was short itself.
    """
    pool, needs, gone = _Pool(line, i), list[Need](), set[str]()
    if pool.free is None or not line.has("blocks"):
        return []
    for rid in pool.before:
        if rid in gone:
            continue
        held, more = len(pool.tables[rid]), _growth(line, rid, i)
        short = Need(rid, more, held, pool.free)
        while pool.victims and (rid in pool.victims or (more or 0) > pool.free):
            needs.append(short)
            gone.add(pool.evict())
        if rid not in gone:
            pool.grant(rid, more or 0)
    checked = pool.checked(needs)
    return checked if checked == needs else []


def _growth(line: Timeline, rid: str, i: int) -> int | None:
    """Blocks that the request got in this step, or that it would have needed for one more token; None if unknown."""
    lane = line.lane(rid)
    if rid not in line.records[i]["preempted"]:
        return max(0, len(lane.blocks[i]) - len(lane.blocks[i - 1]))
    known, total = lane.known_tokens(i), line.blocks_for(lane.known_tokens(i))
    computed = line.records[i]["computed"].get(rid, [None])[0]
    return None if total is None or computed != known - 1 else max(0, total - len(lane.blocks[i - 1]))
