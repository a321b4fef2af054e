"""Where two runs of one workload part: the first step and field that differ. Knows records; judges nobody. Chapter 4.

    compare(simulate(requests, config), simulate(requests, config, scheduler_cls=Mine)).difference
    step 7, blocks of R3: [1, 4, 6] against [1, 4, 7]; the same step also differs in free, free_end

Fields that only one of the two runs has are not compared. Neither are times, which are measured, nor, unless asked for,
`blocked_reason`: two schedulers may decide alike and put it in other words.
"""

from dataclasses import dataclass
from typing import Any

from mini_vllm.errors import TraceFormatError
from mini_vllm.trace.compact import Record
from mini_vllm.trace.schema import step_fields
from mini_vllm.trace.trace import Trace

TIMES = ("t_start", "t_end")
BY_NUMBER = "token ids, only their number: a simulator draws no words"
MOST_NOTES = 8
LONGEST_SHOWN = 12  # entries of a list


@dataclass(frozen=True)
class Difference:
    """The first place where two runs differ.

    field: of the step record; "step" where only one run has this step.
    request: whose value it is, in a field by request. entry: the place in a list that is too long to show, from 0.
    a, b: both values at that place; None where a run has none. also: other fields that differ in the same step.
    """

    step: int
    field: str
    request: str | None
    entry: int | None
    a: Any
    b: Any
    also: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"step {self.step}, {self.place}: {self.a} against {self.b}"

    @property
    def place(self) -> str:
        """ "free", "blocks of R3", "blocks of R3, entry 12"."""
        whose = "" if self.request is None else f" of {self.request}"
        return f"{self.field}{whose}" + ("" if self.entry is None else f", entry {self.entry}")


@dataclass(frozen=True)
class Comparison:
    """What was compared, and the first difference, if there is one.

    num_steps: steps that both runs have and that are the same. not_compared: field -> why.
    notes: what differs besides the steps (headers, steps that only one run has), in words.
    """

    difference: Difference | None
    num_steps: int
    compared: list[str]
    not_compared: dict[str, str]
    notes: list[str]


def diff(a: Trace, b: Trace, *, reasons: bool = False) -> Difference | None:
    """The first step and field in which two runs differ, with both values; None if they do not."""
    return compare(a, b, reasons=reasons).difference


def compare(a: Trace, b: Trace, *, reasons: bool = False) -> Comparison:
    """Compare two runs step by step, by their step numbers. TraceFormatError if they have no step in common.

    reasons: compare `blocked_reason`, too.
    """
    compared, not_compared = _fields(a, b, reasons)
    notes = _header_notes(a.header, b.header)
    steps_a, steps_b = ({record["step"]: record for record in trace.steps} for trace in (a, b))
    if not steps_a and not steps_b:
        return Comparison(None, 0, compared, not_compared, notes)
    common = steps_a.keys() & steps_b.keys()
    if not common:
        raise TraceFormatError(
            f"the two runs have no step in common (A: {_span(a)}, B: {_span(b)}): nothing can be compared"
        )
    start = min(common)
    notes += [
        f"steps before {start} are only in {name}" for name, has in (("A", steps_a), ("B", steps_b)) if min(has) < start
    ]
    by_number = not_compared.get("sampled") == BY_NUMBER
    num_alike, difference = 0, None
    for step in sorted(n for n in steps_a.keys() | steps_b.keys() if n >= start):
        difference = _first_difference(step, steps_a.get(step), steps_b.get(step), compared, by_number)
        if difference is not None:
            break
        num_alike += 1
    return Comparison(difference, num_alike, compared, not_compared, notes)


def _first_difference(
    step: int, a: Record | None, b: Record | None, names: list[str], by_number: bool
) -> Difference | None:
    if a is None or b is None:
        return Difference(
            step, "step", None, None, "missing" if a is None else "there", "missing" if b is None else "there"
        )
    values = {name: (_value(a, name, by_number), _value(b, name, by_number)) for name in names}
    unlike = [name for name, (one, other) in values.items() if one != other]
    if not unlike:
        return None
    request, one, other = _by_request(*values[unlike[0]])
    return Difference(step, unlike[0], request, *_by_entry(one, other), tuple(unlike[1:]))


def _value(record: Record, name: str, by_number: bool) -> Any:
    """A field; one that a record leaves out is as good as empty."""
    value = record.get(name)
    if name == "sampled" and by_number and value:
        return {req_id: f"number of tokens: {len(token_ids)}" for req_id, token_ids in value.items()}
    return None if value in ([], {}) else value


def _by_request(a: Any, b: Any) -> tuple[str | None, Any, Any]:
    """In a field by request: the first one whose values differ, and these."""
    if not isinstance(a or b, dict):
        return None, a, b
    one, other = a or {}, b or {}
    request = next(key for key in [*one, *other] if one.get(key) != other.get(key))
    return request, one.get(request), other.get(request)


def _by_entry(a: Any, b: Any) -> tuple[int | None, Any, Any]:
    """In a long list: the first entry that differs, and both."""
    if not (isinstance(a, list) and isinstance(b, list)) or max(len(a), len(b)) <= LONGEST_SHOWN:
        return None, a, b
    place = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
    return place, (a[place] if place < len(a) else None), (b[place] if place < len(b) else None)


def _fields(a: Trace, b: Trace, reasons: bool) -> tuple[list[str], dict[str, str]]:
    """Fields that both runs have, in the order of happening; and those that are not compared, with the reason."""
    has_a, has_b = ({name for record in trace.steps for name in record} for trace in (a, b))
    known = [name for name in step_fields() if name in has_a | has_b]
    not_compared = {}
    for name in [*known, *sorted((has_a | has_b) - set(known))]:
        if name in TIMES:
            not_compared[name] = "measured, not decided"
        elif name not in has_a or name not in has_b:
            not_compared[name] = f"only in {'A' if name in has_a else 'B'}"
        elif name == "blocked_reason" and not reasons:
            not_compared[name] = "a reason, not a decision"
    compared = [name for name in known if name not in not_compared and name != "step"]
    kinds = {a.header.get("kind"), b.header.get("kind")}
    if "sampled" in compared and "engine" in kinds and len(kinds) > 1:
        not_compared["sampled"] = BY_NUMBER
    return compared, not_compared


def _header_notes(a: dict, b: dict) -> list[str]:
    config_a, config_b = a.get("config", {}), b.get("config", {})
    requests_a, requests_b = a.get("requests", {}), b.get("requests", {})
    if requests_a and requests_b and not requests_a.keys() & requests_b.keys():
        return ["the two runs have no request in common: they are not of one workload"]
    notes = [
        f"{name} is {config_a[name]} in A and {config_b[name]} in B"
        for name in config_a
        if name in config_b and config_a[name] != config_b[name]
    ]
    for name, one, other in (("A", requests_a, requests_b), ("B", requests_b, requests_a)):
        notes += [f"request {req_id} is only in {name}" for req_id in one if req_id not in other]
    for req_id in (req_id for req_id in requests_a if req_id in requests_b):
        one, other = requests_a[req_id], requests_b[req_id]
        notes += [
            f"{name} of {req_id} is {one.get(name)} in A and {other.get(name)} in B"
            for name in ("arrival_step", "prompt_len", "max_tokens", "priority")
            if one.get(name) != other.get(name)
        ]
    more = len(notes) - MOST_NOTES
    return notes if more <= 0 else [*notes[:MOST_NOTES], f"and {more} more differences in the headers"]


def _span(trace: Trace) -> str:
    return f"steps {trace.steps[0]['step']} to {trace.steps[-1]['step']}" if trace.steps else "no steps"
