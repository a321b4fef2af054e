"""Takes in a trace for the player: every field there, every id checked. Knows records; lays nothing out. Chapter 1."""

from __future__ import annotations

import os
from itertools import pairwise
from pathlib import Path
from typing import Any

from mini_vllm.errors import TraceFormatError
from mini_vllm.trace.convert import load_run
from mini_vllm.trace.reader import checked_step
from mini_vllm.trace.trace import Trace

Records = list[dict[str, Any]]
LISTS = ("arrivals", "aborted", "new", "resumed", "preempted", "finished", "swapped_out", "swapped_in")
MAPPINGS = ("computed", "blocks", "sampled", "pieces", "hits")


def read_trace(source: Any) -> tuple[dict[str, Any], Records]:
    """Header and completed records of whatever `take_trace` takes."""
    trace = take_trace(source)
    return trace.header, [_completed(record) for record in trace.steps]


def take_trace(source: Any) -> Trace:
    """A trace of the path of a trace file or recording, a {"header", "steps"} dict, or an object with both.

    TraceFormatError where it has no steps, or one of the wrong shape or out of order.
    """
    if isinstance(source, (str, os.PathLike)):
        trace, name = load_run(Path(source)), str(source)
    else:
        trace, name = Trace(*_parts(source)), "the trace"
        for i, record in enumerate(trace.steps):
            checked_step(record, f"record {i}")
        for i, (one, other) in enumerate(pairwise(trace.steps), start=1):
            if other["step"] <= one["step"]:
                raise TraceFormatError(
                    f"record {i}: step {other['step']} stands after step {one['step']}; steps must rise"
                )
    if not trace.steps:
        raise TraceFormatError(f"{name} has no steps: record at least one before playing it")
    return trace


def mapping(value: Any) -> dict[Any, Any]:
    """The value if it is a dict, else an empty one: what a header leaves out, the player does without."""
    return value if isinstance(value, dict) else {}


def _parts(source: Any) -> tuple[dict[str, Any], list[Any]]:
    if isinstance(source, dict):
        header, steps = source.get("header"), source.get("steps")
    else:
        header, steps = getattr(source, "header", None), getattr(source, "steps", None)
    if steps is None:
        raise TraceFormatError(
            f"{type(source).__name__} is no trace: give the path of a trace file, a dict with 'header' "
            "and 'steps', or an object with these two attributes"
        )
    return dict(mapping(header)), list(steps)


def _completed(record: dict[str, Any]) -> dict[str, Any]:
    """What a record may leave out is filled in: lists and mappings are there and empty. `waiting`, `running`, `free`
    and the like stay absent, because there absent does not mean empty.
    """
    full = {name: () for name in LISTS} | {name: {} for name in MAPPINGS} | record
    # Whoever is swapped out is evicted too, whether or not the record says so twice.
    swapped = [rid for rid in full["swapped_out"] if rid not in full["preempted"]]
    return full | {"preempted": [*full["preempted"], *swapped]}
