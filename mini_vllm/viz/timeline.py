"""Who did what in each step: requests × steps. Knows step records; no words, no pixels. From chapter 1 on."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from mini_vllm.viz.records import Records, mapping

LABEL_MAX_CHARS = 7  # longer request ids are drawn as #1, #2, …; the full id stays in the tooltip

WAITING, PREFILL, RECOMPUTE, DECODE, IDLE, PREEMPTED, ABORTED, SWAPPED = "wpcdixas"


@dataclass(frozen=True, slots=True)
class Cell:
    """One request in one step. `marks`: r resumed, f finished, o its KV moves out to CPU memory, b it comes back."""

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
    generated_before: int = 0  # of a run whose first steps are not kept: tokens sampled in them
    lost_before: int = 0  # and the most computed tokens that a preemption threw away

    def fill(self, num_steps: int) -> None:
        """Nothing happens in any step yet."""
        self.cells, self.blocks = [None] * num_steps, [[]] * num_steps
        self.pieces, self.generated = [""] * num_steps, [self.generated_before] * num_steps

    def sampled_in(self, i: int, tokens: int) -> None:
        """Step i sampled so many tokens; they are known from the next step on."""
        rest = len(self.generated) - i - 1
        if rest:
            self.generated[i + 1 :] = [self.generated[i] + tokens] * rest

    def known_tokens(self, i: int) -> int:
        """Prompt and generated tokens before step i: what must be in the KV cache before the next token."""
        return (self.prompt_len or 0) + self.generated[i]


@dataclass(slots=True)
class Timeline:
    """A run laid out as lanes × steps, every optional field of the records filled in or marked absent."""

    header: dict[str, Any]
    records: Records
    by_id: dict[str, Lane]
    numbers: list[int]  # of the steps, as they are shown
    waiting: list[list[str]]
    running: list[list[str]]
    free: list[int | None]
    budget_used: list[int]

    @property
    def lanes(self) -> list[Lane]:
        """In order of arrival."""
        return list(self.by_id.values())

    def lane(self, request_id: str) -> Lane:
        """The lane of one request."""
        return self.by_id[request_id]

    def lane_or_empty(self, request_id: str) -> Lane:
        """The lane of one request; one without any cell if it never came in."""
        if request_id in self.by_id:
            return self.by_id[request_id]
        lane = Lane(request_id, request_id)
        lane.fill(len(self.records))
        return lane

    def labels(self, request_ids: Iterable[str]) -> list[str]:
        """How the requests are called in lanes and sentences."""
        return [self.by_id[rid].label for rid in request_ids]

    @property
    def config(self) -> dict[str, Any]:
        """The run's configuration, as far as the header states it."""
        return mapping(self.header.get("config"))

    def limit(self, name: str) -> int | None:
        """A limit of the run's config as an int, or None where the header does not say."""
        value = self.config.get(name)
        return int(value) if isinstance(value, (int, float)) else None

    @property
    def token_budget(self) -> int | None:
        """Tokens that one step may hand out: `max_num_scheduled_tokens` where it is set, within the input budget."""
        limits = [self.limit("max_num_scheduled_tokens"), self.limit("max_num_batched_tokens")]
        return min((limit for limit in limits if limit), default=None)

    def blocks_for(self, tokens: int) -> int | None:
        """KV blocks that hold so many tokens, or None where the header does not give the block size."""
        size = self.limit("block_size")
        return -(-tokens // size) if size else None

    def has(self, name: str) -> bool:
        """True if any record carries the optional field `name`."""
        return any(record.get(name) for record in self.records)


def build_timeline(header: dict[str, Any], records: Records, shift: int = 0) -> Timeline:
    """Lay the records out as lanes × steps. `shift` is added to the numbers of the steps as they are shown.

    Rows come in order of arrival. A record without `waiting` and `running` is completed from the records
    before it: who was scheduled runs, who was preempted waits again, who finished is gone.
    """
    lanes = {rid: _lane(rid, number, header) for number, rid in enumerate(_arrival_order(records), start=1)}
    numbers = [record["step"] + shift for record in records]
    line = Timeline(header, records, lanes, numbers, [], [], [], [])
    tracker = _Tracker(lanes, len(records))
    for i, record in enumerate(records):
        waiting, running = tracker.step(i, record)
        line.waiting.append(waiting)
        line.running.append(running)
        line.budget_used.append(record.get("budget_used", sum(n for _, n in record["scheduled"])))
        line.free.append(_free(record, line.limit("num_gpu_blocks")))
    return line


def _arrival_order(records: Records) -> list[str]:
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
    facts = mapping(mapping(header.get("requests")).get(rid))
    label = rid if 0 < len(rid) <= LABEL_MAX_CHARS else f"#{number}"
    lane = Lane(rid, label, facts.get("prompt_len"), facts.get("max_tokens"), str(facts.get("prompt") or ""))
    lane.generated_before, lane.lost_before = facts.get("sampled_before") or 0, facts.get("lost_before") or 0
    return lane


def _free(record: dict[str, Any], total: int | None) -> int | None:
    if record.get("free") is not None:
        return int(record["free"])
    if total is None or not record["blocks"]:
        return None
    return total - len({block for table in record["blocks"].values() for block in table if block})


class _Tracker:
    """Carries from step to step what a record may leave out: queues, computed tokens, lost tokens."""

    def __init__(self, lanes: dict[str, Lane], num_steps: int) -> None:
        self.lanes = lanes
        for lane in lanes.values():
            lane.fill(num_steps)
        self.waiting: list[str] = []
        self.running: list[str] = []
        self.computed: dict[str, int] = {}
        # Most computed tokens that a preemption has thrown away.
        self.lost = {rid: lane.lost_before for rid, lane in lanes.items() if lane.lost_before}
        self.swapped: set[str] = set()  # whose KV lies in CPU memory

    def step(self, i: int, record: dict[str, Any]) -> tuple[list[str], list[str]]:
        """Write one cell into the lane of everybody in the system; return the two queues as after schedule()."""
        self._move_queues(record)
        waiting, running, tokens = list(self.waiting), list(self.running), dict(record["scheduled"])
        self.swapped.update(record["swapped_out"])
        self.swapped.difference_update(record["swapped_in"], record["aborted"], record["resumed"])
        for rid in tokens:
            self.lanes[rid].cells[i] = self._piece(rid, record, i, tokens[rid])
        inside = set(running)
        for rid in dict.fromkeys([*record["preempted"], *record["aborted"], *running, *waiting]):
            if rid not in tokens:
                self.lanes[rid].cells[i] = self._pause(rid, record, inside)
        for rid, table in record["blocks"].items():
            if rid in self.lanes:
                self.lanes[rid].blocks[i] = table
        for rid, piece in record["pieces"].items():
            self.lanes[rid].pieces[i] = str(piece)
        for rid, sampled in record["sampled"].items():
            if rid in self.lanes and sampled:
                self.lanes[rid].sampled_in(i, len(sampled))
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

    def _piece(self, rid: str, record: dict[str, Any], i: int, tokens: int) -> Cell:
        before = self.computed.get(rid, 0)
        if rid in record["computed"]:  # after - n: a cache hit moves the start ([0, 24] with n = 8 began at 16)
            before = int(record["computed"][rid][1]) - tokens
        elif rid in record["hits"]:
            before = int(record["hits"][rid])
        self.computed[rid] = before + tokens
        return Cell(self._piece_kind(self.lanes[rid], before, tokens, i), tokens, before, _marks(rid, record))

    def _pause(self, rid: str, record: dict[str, Any], running: set[str]) -> Cell:
        """Of one that computes nothing in this step: evicted, aborted, running without a token, or waiting."""
        before, marks = self.computed.get(rid, 0), _marks(rid, record)
        if rid in record["computed"]:
            before = int(record["computed"][rid][0])
        if rid in record["preempted"]:
            if rid not in self.swapped:
                self.computed[rid], self.lost[rid] = 0, max(before, self.lost.get(rid, 0))
            return Cell(PREEMPTED, before=before, marks=marks)
        if rid in record["aborted"]:
            return Cell(ABORTED, marks=marks)
        if rid in running:
            return Cell(IDLE, before=before, marks=marks)
        return Cell(SWAPPED if rid in self.swapped else WAITING, before=before, marks=marks)

    def _piece_kind(self, lane: Lane, before: int, tokens: int, i: int) -> str:
        """Recompute below what a preemption threw away, prefill below the prompt's end, decode after it."""
        if before < self.lost.get(lane.id, 0):
            return RECOMPUTE
        if lane.prompt_len is not None:
            return PREFILL if before < lane.prompt_len else DECODE
        return DECODE if tokens == 1 and lane.generated[i] else PREFILL


def _marks(rid: str, record: dict[str, Any]) -> str:
    names = (("r", "resumed"), ("b", "swapped_in"), ("o", "swapped_out"), ("f", "finished"))
    return "".join(mark for mark, name in names if rid in record[name])
