"""Replays recorded runs of the real vLLM scheduler on ours and compares. Knows both formats; decides nothing.

    python -m mini_vllm.trace.replay DIR_OR_FILES... [--tier {1,2,3}]

Tier 1: who is scheduled, admitted, resumed, preempted, waits, runs, finishes. Tier 2: and every count and allocation
attempt. Tier 3: and every block id, the free queue's order, and which blocks are cached. Exit code 0 only if all are
identical. The recordings' format: tests/data/vllm_traces/README.md.
"""

import argparse
import json
import sys
from collections import deque
from dataclasses import fields
from pathlib import Path

from mini_vllm.config import SchedulerConfig
from mini_vllm.core.async_scheduler import AsyncScheduler
from mini_vllm.core.output import ModelRunnerOutput, SchedulerOutput
from mini_vllm.core.scheduler import Scheduler
from mini_vllm.errors import MiniVLLMError, TraceFormatError
from mini_vllm.request import Request
from mini_vllm.sampling_params import SamplingParams

TIERS = {
    1: "arrivals aborted waiting_before running_before scheduled new resumed preempted hits waiting running "
    "updated_step sampled finished running_end".split(),
    2: "free_before free allocs computed spec placeholders in_flight computed_end free_end".split(),
    3: "blocks free_queue cached_blocks".split(),
}

SOMETIMES_RECORDED = set(
    "arrivals aborted updated_step spec placeholders in_flight computed_end free_queue cached_blocks".split()
)
ALWAYS_RECORDED = {name for names in TIERS.values() for name in names} - SOMETIMES_RECORDED


class Replay:
    """One recorded scenario on one of our schedulers; `step()` returns a record in the recordings' own format."""

    def __init__(self, scenario: dict, config: dict, scheduler_cls: type | None = None, fast_path: bool = False):
        known = {f.name for f in fields(SchedulerConfig)}
        self.config = SchedulerConfig(
            **{k: v for k, v in config.items() if k in known}, refuse_unfittable=False, unpublish_given_back=False
        )
        self.is_async = config["async_scheduling"]
        self.scheduler = (scheduler_cls or (AsyncScheduler if self.is_async else Scheduler))(self.config)
        self.requests = scenario["requests"]
        self.position = {r["id"]: i for i, r in enumerate(self.requests)}
        self.objects: dict[str, Request] = {}
        self.index = 0
        self.in_flight: deque[tuple[int, SchedulerOutput, dict[str, list[int]]]] = deque()
        self.num_sampled: dict[str, int] = {}
        self.allocs: list[list] = []
        if not fast_path:
            # vLLM asks for every piece; so that every attempt is recorded, ours must too.
            self.scheduler.fast_path = False
            self._watch_allocations()

    def _watch_allocations(self) -> None:
        allocate = self.scheduler.kv_cache_manager.allocate_slots

        def watched(request, num_new_tokens, **kwargs):
            blocks = allocate(request, num_new_tokens, **kwargs)
            self.allocs.append([request.request_id, num_new_tokens, int(blocks is not None)])
            request.quiet_until = 0
            return blocks

        self.scheduler.kv_cache_manager.allocate_slots = watched

    def _ids(self, queue) -> list[str]:
        return [request.request_id for request in queue]

    def _arrive(self, entry: dict) -> None:
        params = SamplingParams(entry["max_tokens"], True, tuple(entry.get("stop_token_ids", ())))
        arrival = entry.get("arrival_time", entry["arrival_step"])
        request = Request(entry["id"], entry["prompt_token_ids"], params, arrival, priority=entry.get("priority", 0))
        self.objects[entry["id"]] = request
        self.scheduler.add_request(request)

    def step(self) -> dict:
        scheduler, manager = self.scheduler, self.scheduler.kv_cache_manager
        arrivals = [r for r in self.requests if r["arrival_step"] == self.index]
        for entry in arrivals:
            self._arrive(entry)
        due = [r["id"] for r in self.requests if r.get("abort_step") == self.index]
        aborted = [req_id for req_id in due if req_id in scheduler.requests]  # the others had ended before
        scheduler.finish_requests(aborted)
        self.allocs.clear()
        record: dict = {
            "arrivals": [r["id"] for r in arrivals],
            "aborted": aborted,
            "waiting_before": self._ids(scheduler.waiting),
            "running_before": self._ids(scheduler.running),
            "free_before": manager.num_free_blocks,
        }
        before = {r.request_id: r.num_computed_tokens for r in scheduler.requests.values()}
        plan = scheduler.schedule()
        record |= self._after_schedule(plan, before)
        self.in_flight.append((self.index, plan, self._sample(plan)))
        record |= self._update(0 if not self.is_async else 1)
        self.index += 1
        return record

    def _after_schedule(self, plan: SchedulerOutput, before: dict[str, int]) -> dict:
        scheduler, manager = self.scheduler, self.scheduler.kv_cache_manager
        pool = manager.block_pool
        moved = [*plan.num_scheduled_tokens, *plan.preempted_req_ids]
        if self.is_async:  # there the recordings also list those who run and were passed over
            moved += [r.request_id for r in scheduler.running if r.request_id not in plan.num_scheduled_tokens]
        hits = {r.req_id: r.num_computed_tokens for r in plan.scheduled_new_reqs}
        cached = plan.scheduled_cached_reqs
        computed = dict(zip(cached.req_ids, cached.num_computed_tokens, strict=True))
        hits |= {req_id: computed[req_id] for req_id in cached.resumed_req_ids}
        running = scheduler.running
        return {
            "scheduled": [list(item) for item in plan.num_scheduled_tokens.items()],
            "new": [r.req_id for r in plan.scheduled_new_reqs],
            "resumed": list(cached.resumed_req_ids),
            "preempted": list(plan.preempted_req_ids),
            "allocs": [list(row) for row in self.allocs],
            "hits": hits,
            "waiting": self._ids(scheduler.waiting),
            "running": self._ids(running),
            "computed": {r: [before[r], self.objects[r].num_computed_tokens] for r in moved},
            "blocks": {r.request_id: list(manager.get_block_ids(r.request_id)) for r in running},
            "free": manager.num_free_blocks,
            "free_queue": pool.free_queue(),
            "cached_blocks": [b for b, h in enumerate(pool.hash_of) if h is not None],
            "spec": {r: len(ids) for r, ids in plan.scheduled_spec_decode_tokens.items()},
            "placeholders": {r.request_id: r.num_output_placeholders for r in running},
            "in_flight": {r.request_id: r.num_in_flight_tokens for r in running},
        }

    def _sample(self, plan: SchedulerOutput) -> dict[str, list[int]]:
        """The recordings' fake model: 1000 + output index for whoever reached the end of its known tokens."""
        sampled = {}
        for req_id in plan.num_scheduled_tokens:
            request = self.objects[req_id]
            if request.is_prefill_chunk:
                continue
            drafts = len(plan.scheduled_spec_decode_tokens.get(req_id, ()))
            done = self.num_sampled.get(req_id, 0)
            accepted = (self.position[req_id] + done) % (drafts + 1) if drafts else 0
            sampled[req_id] = [1000 + done + i for i in range(accepted + 1)]
            self.num_sampled[req_id] = done + len(sampled[req_id])
        return sampled

    def _update(self, keep: int) -> dict:
        scheduler = self.scheduler
        record: dict = {"sampled": {}, "finished": []}
        if len(self.in_flight) > keep:
            index, plan, sampled = self.in_flight.popleft()
            count = self.config.num_speculative_tokens
            drafts = {r: [-1] * count for r in sampled} if count else {}
            news = scheduler.update_from_output(plan, ModelRunnerOutput(sampled, drafts))
            record = {"updated_step": index, "sampled": sampled, "finished": [n.request_id for n in news if n.finished]}
        record["computed_end"] = {r.request_id: r.num_computed_tokens for r in scheduler.running}
        record["free_end"] = scheduler.kv_cache_manager.num_free_blocks
        record["running_end"] = self._ids(scheduler.running)
        return record


def read_recording(path: Path) -> dict:
    """A recording, refused by name if it is broken."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        config, steps, requests = data["trace"]["config"], data["trace"]["steps"], data["scenario"]["requests"]
        assert isinstance(requests, list) and isinstance(steps, list)
        assert isinstance(config, dict) and isinstance(config["async_scheduling"], bool)
        for entry in requests:
            assert isinstance(entry["id"], str) and isinstance(entry["prompt_token_ids"], list), entry
            assert isinstance(entry["arrival_step"], int) and isinstance(entry["max_tokens"], int), entry
        # A part of a run is no run: it would be "identical" for what it lacks.
        assert len(steps) == data["trace"]["num_steps"] > 0, f"{len(steps)} steps"
        for number, step in enumerate(steps):
            assert not (missing := ALWAYS_RECORDED - step.keys()), f"step {number} lacks {sorted(missing)}"
    except (OSError, ValueError, LookupError, TypeError, AttributeError, AssertionError) as error:
        raise TraceFormatError(f"{path} is not a recorded run: {type(error).__name__} {error}") from error
    return data


def first_difference(data: dict, tier: int, scheduler_cls: type | None = None) -> str | None:
    """Replay a recording; None if every step is identical at this tier, else where it first differs.

    It runs twice: request by request, as vLLM does, and with our shortcuts, which do not ask for blocks that are there
    already, so that only the attempts themselves (`allocs`) cannot be compared.
    """
    names = [name for level in range(1, tier + 1) for name in TIERS[level]]
    for fast_path in (False, True):
        replay = Replay(data["scenario"], data["trace"]["config"], scheduler_cls, fast_path)
        for index, recorded in enumerate(data["trace"]["steps"]):
            ours = replay.step()
            for name in names:
                if name in recorded and ours.get(name) != recorded[name] and not (fast_path and name == "allocs"):
                    shortcut = " (with the fast path)" if fast_path else ""
                    return f"step {index}, {name}{shortcut}: ours {ours.get(name)}, vLLM {recorded[name]}"
    return None


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Replay recorded vLLM runs on our scheduler.")
    parser.add_argument("paths", nargs="+", type=Path, help="recordings, or folders of them")
    parser.add_argument("--tier", type=int, choices=(1, 2, 3), default=3)
    options = parser.parse_args(argv)
    files = [f for path in options.paths for f in (sorted(path.glob("*.json")) if path.is_dir() else [path])]
    num_identical = 0
    for file in files:
        try:
            difference = first_difference(read_recording(file), options.tier)
        except MiniVLLMError as error:
            difference = str(error)
        num_identical += difference is None
        print(f"{file.name}: {difference or 'identical'}")
    print(f"{num_identical} of {len(files)} identical at tier {options.tier}")
    return 0 if files and num_identical == len(files) else 1


if __name__ == "__main__":
    sys.exit(main())
