"""Runs a learner's scheduler in the simulator; compares its trace and its work. Knows step records. From chapter 4 on.

In an exercise: prepare=workload, call=run_scheduler, show=as_simulate. An answer is the list of its step records.
"""

import random
import string
from collections.abc import Callable
from typing import Any

from mini_vllm.grading.checkers import exact, kind_of, side_by_side
from mini_vllm.grading.exercise import Case, Comparer

# What a graded record holds: decisions, and from where to where each request was computed.
RECORDED = ("scheduled", "new", "preempted", "waiting", "running", "computed", "finished", "blocked_reason")
DAMAGED = (TypeError, ValueError, LookupError, AttributeError)  # records that did not come from `run_scheduler`


def draw_workload(rng: random.Random, **config: Any) -> Case:
    """[requests, config]: requests [id, prompt_len, max_tokens, arrival_step] that a pool of `config` can carry."""
    arrival, requests = 0, []
    for name in string.ascii_uppercase[: rng.randint(2, 7)]:
        requests.append([name, rng.randint(1, 20), rng.randint(1, 9), arrival])
        arrival += rng.choice([0, 0, 1, 3])
    return [requests, config]


def workload(case: Case) -> tuple:
    """The arguments of `simulate` for a case of `draw_workload`."""
    from mini_vllm.config import SchedulerConfig
    from mini_vllm.sim.driver import SimRequest

    requests, config = case
    return [SimRequest(*request) for request in requests], SchedulerConfig(**config)


def run_scheduler(scheduler_cls: type, requests: list, config: Any) -> list[dict]:
    """The step records of a run, less what no exercise compares. A broken contract is raised by name (`core.watch`)."""
    from mini_vllm.sim.driver import simulate

    trace = simulate(requests, config, scheduler_cls=scheduler_cls)
    return [{name: record[name] for name in RECORDED} for record in trace.steps]


def as_simulate(name: str, arguments: tuple) -> str:
    """The call as a learner would repeat it; of the configuration only what is not the default."""
    requests, config = arguments
    usual = type(config)()
    told = [f"{key}={value!r}" for key, value in vars(config).items() if value != getattr(usual, key)]
    listed = ", ".join(
        f"SimRequest({r.request_id!r}, {r.prompt_len}, {r.max_tokens}, arrival_step={r.arrival_step})" for r in requests
    )
    return f"simulate([{listed}], SchedulerConfig({', '.join(told)}), scheduler_cls={name})"


def same_trace(*names: str) -> Comparer:
    """The same steps in these fields of a record; names the first step that differs, and the first field in it."""

    def compare(case: Case, got: Any, expected: list[dict]) -> str | None:
        if complaint := _no_trace(got, names):
            return complaint
        for index, (mine, right) in enumerate(zip(got, expected, strict=False)):
            for name in names:
                if complaint := exact(case, mine[name], right[name]):
                    yours, theirs = ([record[name] for record in trace] for trace in (got, expected))
                    table = side_by_side(yours, theirs, index, "step")
                    return f"first difference in step {index}, {name}: {complaint}{table}"
        if len(got) != len(expected):
            at, what = min(len(got), len(expected)), "missing" if len(got) < len(expected) else "one too many"
            return f"step {at} is {what}: the run has {len(got)} steps, {len(expected)} are right"
        return None

    return compare


def _no_trace(got: Any, names: tuple[str, ...]) -> str | None:
    if type(got) is not list:
        return f"expected the trace of a run, got {kind_of(got)}"
    for index, record in enumerate(got):
        if type(record) is not dict or not record.keys() >= set(names):
            return f"step {index} is no step record: {kind_of(record)}"
    return None


def count_work(steps: list[dict]) -> dict[str, int]:
    """What a run did: steps, scheduled_tokens, preemptions, recomputed_tokens (computed in an earlier step already)."""
    return _work(steps)[0]


def _work(steps: list[dict]) -> tuple[dict[str, int], dict[str, int]]:
    """The counts, and for each request how many of its tokens had their KV computed at some time."""
    work = {"steps": len(steps), "scheduled_tokens": 0, "preemptions": 0, "recomputed_tokens": 0}
    furthest: dict[str, int] = {}
    for record in steps:
        work["preemptions"] += len(record["preempted"])
        for req_id, num_tokens in record["scheduled"]:
            end = record["computed"][req_id][1]
            start = end - num_tokens  # behind the blocks that it found, if it has just entered
            # Of a piece from `start` to `end`, all below the furthest point has been computed before.
            work["recomputed_tokens"] += max(0, min(furthest.get(req_id, 0), end) - start)
            work["scheduled_tokens"] += num_tokens
            furthest[req_id] = max(furthest.get(req_id, 0), end)
    return work, furthest


def everybody_served(case: Case, got: Any, expected: Any) -> str | None:
    """Each request of the workload finished once, with all its tokens computed: the base of every claim about work.

    The last token that a request emits is never computed; hence the minus one. Where max_model_len ends an answer
    sooner, it is that one's last.
    """
    if complaint := _no_trace(got, ("scheduled", "preempted", "computed", "finished")):
        return complaint
    try:
        furthest = _work(got)[1]
        finished = [req_id for record in got for req_id in record["finished"]]
    except DAMAGED:
        return "the step records are damaged: who was served cannot be read"
    most = case[1].get("max_model_len") if len(case) > 1 else None
    for req_id, prompt_len, max_tokens, _ in case[0]:
        if finished.count(req_id) != 1:
            return f"{req_id} finished {finished.count(req_id)} times, it should once"
        longest = prompt_len + max_tokens
        computed = min(longest, most or longest) - 1
        if furthest.get(req_id, 0) != computed:
            return f"{req_id} needs {computed} tokens computed, got {furthest.get(req_id, 0)}"
    return None


def work_within(counter: str, limit: Callable[[int], int] = lambda right: right) -> Comparer:
    """Everybody served, with at most limit(the right answer's count) of `counter`, one that `count_work` knows."""

    def compare(case: Case, got: Any, expected: list[dict]) -> str | None:
        if complaint := everybody_served(case, got, expected):
            return complaint
        mine, allowed = count_work(got)[counter], limit(count_work(expected)[counter])
        noun = counter.replace("_", " ")
        if mine <= allowed:
            return None
        return f"{mine:,} {noun}, {allowed:,} are enough{_where(counter, got, expected)}"

    return compare


def _where(counter: str, got: list[dict], expected: list[dict]) -> str:
    """The first step with a preemption of its own, which is where recomputed tokens come from as well."""
    if counter not in ("preemptions", "recomputed_tokens"):
        return ""
    for index, record in enumerate(got):
        right = expected[index]["preempted"] if index < len(expected) else []
        if record["preempted"] != right:
            return f"; the first eviction of your own is in step {index}: {record['preempted']}, there {right}"
    return ""
