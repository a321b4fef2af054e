"""Our scheduler against recorded runs of the real one: **vLLM 0.33.0**, decision by decision, block id by block id.

`tests/data/vllm_traces/` holds the recordings whose rules this slice has: first come first served, chunked prefill,
preemption by recompute, full-sequence admission. Without prefix cache, watermark, priority, drafts, asynchrony,
long-prefill threshold; every request came to its end. Compared at tier 3, in every step:

- the state before: arrivals, aborted, waiting_before, running_before, free_before
- the decisions: scheduled (in order), new, resumed, preempted (in order), allocs (every call of `allocate_slots`,
  failures too)
- the state after `schedule()`: waiting, running, computed (before and after), blocks (tables), free, free_queue
- after the step: sampled, finished, free_end, running_end
and of each request its output, first and last step, status and preemptions. Not compared: hits (always 0 here).
"""

import json
from pathlib import Path

import pytest

from mini_vllm.config import SchedulerConfig
from mini_vllm.core.scheduler import Scheduler
from mini_vllm.core.step_loop import StepLoop
from mini_vllm.request import Request
from mini_vllm.sampling_params import SamplingParams
from mini_vllm.sim.driver import FakeModelRunner

FOLDER = Path(__file__).parent.parent / "data" / "vllm_traces"
RECORDINGS = sorted(FOLDER.glob("*.json"))
NUM_RECORDINGS = 12
OUR_LIMITS = ("max_num_seqs", "max_num_batched_tokens", "max_model_len", "num_gpu_blocks", "block_size")
RULES_OF_THIS_SLICE = {
    "enable_chunked_prefill": True,
    "long_prefill_token_threshold": 0,
    "long_prefill_token_threshold_adaptive": False,
    "enable_prefix_caching": False,
    "policy": "fcfs",
    "watermark": 0.0,
    "reserve_full_isl": True,
    "async_scheduling": False,
    "num_speculative_tokens": 0,
    "num_lookahead_tokens": 0,
}
FROM_OUR_TRACE = (
    *("arrivals", "aborted", "waiting_before", "running_before", "free_before"),
    *("scheduled", "new", "resumed", "preempted", "waiting", "running", "blocks", "free"),
    *("sampled", "finished", "free_end", "running_end"),
)
ONLY_IF_ANY = ("arrivals", "aborted")  # the recordings leave these out where they are empty


def load(path: Path) -> dict:
    return json.loads(path.read_text(encoding="utf-8"))


def request_of(entry: dict) -> Request:
    params = SamplingParams(
        max_tokens=entry["max_tokens"], ignore_eos=True, stop_token_ids=tuple(entry.get("stop_token_ids", ()))
    )
    return Request(entry["id"], entry["prompt_token_ids"], params, arrival_time=entry["arrival_step"])


class Replay:
    """Feeds the recorded arrivals and aborts to our scheduler and looks over its shoulder."""

    def __init__(self, config: SchedulerConfig):
        self.scheduler = Scheduler(config)
        self.loop = StepLoop(self.scheduler, config, self._execute, kind="sim", clock=lambda: 0.0)
        self.worker = FakeModelRunner()
        self.requests: dict[str, Request] = {}
        self.seen: dict = {}
        kv_cache_manager = self.scheduler.kv_cache_manager
        self._allocate = kv_cache_manager.allocate_slots
        kv_cache_manager.allocate_slots = self._record_allocation

    def _record_allocation(self, request, num_new_tokens, **options):
        blocks = self._allocate(request, num_new_tokens, **options)
        self.seen["allocs"].append([request.request_id, num_new_tokens, int(blocks is not None)])
        return blocks

    def _execute(self, plan):
        """Between `schedule()` and the worker: what the recordings show as the state after scheduling."""
        before, touched = self.seen.pop("computed_before"), {*plan.num_scheduled_tokens, *plan.preempted_req_ids}
        after = {req_id: r.num_computed_tokens for req_id, r in self.requests.items()}
        self.seen["computed"] = {req_id: [before[req_id], after[req_id]] for req_id in touched}
        self.seen["free_queue"] = list(self.scheduler.kv_cache_manager.block_pool.free_queue)
        return self.worker.execute(plan)

    def step(self, arrivals, aborts) -> dict:
        """One step; returns it in the recordings' form."""
        for request in arrivals:
            self.requests[request.request_id] = request
            self.loop.add_request(request)
        self.loop.abort(aborts)
        self.seen = {"allocs": [], "computed_before": {i: r.num_computed_tokens for i, r in self.requests.items()}}
        self.loop.step(more_to_come=True)
        self.scheduler.check_integrity()
        record = self.loop.trace.steps[-1]
        fields = (field for field in FROM_OUR_TRACE if record[field] or field not in ONLY_IF_ANY)
        self.seen.update({field: record[field] for field in fields})
        return self.seen


@pytest.mark.parametrize("path", RECORDINGS, ids=lambda path: path.stem)
def test_every_decision_is_vllms(path):
    recording = load(path)
    scenario, real = recording["scenario"], recording["trace"]
    config = SchedulerConfig(**{field: real["config"][field] for field in OUR_LIMITS})
    replay = Replay(config)
    for number, recorded in enumerate(real["steps"]):
        assert recorded["step"] == number
        arrivals = [request_of(r) for r in scenario["requests"] if r["arrival_step"] == number]
        ours = replay.step(arrivals, [r["id"] for r in scenario["requests"] if r.get("abort_step") == number])
        for field in (f for f in recorded if f not in ("step", "hits")):
            assert ours.get(field) == recorded[field], f"{path.name}, step {number}, {field}"
        assert not ours.keys() - recorded.keys(), f"{path.name}, step {number}: fields that vLLM did not record"
    assert not replay.scheduler.has_unfinished_requests()
    trace = replay.loop.trace
    for req_id, recorded in real["requests"].items():
        request = replay.requests[req_id]
        ours = {
            "output": request.output_token_ids,
            "first_step": next(s["step"] for s in trace.steps if req_id in dict(s["scheduled"])),
            "finish_step": trace.finish_step()[req_id],
            "status": request.status.name,
            "preemptions": request.num_preemptions,
        }
        assert ours == recorded, f"{path.name}, request {req_id}"
        assert trace.outputs()[req_id] == recorded["output"]


def test_the_folder_holds_what_this_page_says():
    assert len(RECORDINGS) == NUM_RECORDINGS
    for path in RECORDINGS:
        real = load(path)["trace"]
        assert real["vllm_version"] == "0.33.0", path.name
        assert {rule: real["config"][rule] for rule in RULES_OF_THIS_SLICE} == RULES_OF_THIS_SLICE, path.name
        assert real["end"] == "finished", path.name
        assert set(real["config"]) == {*OUR_LIMITS, *RULES_OF_THIS_SLICE}, path.name


def test_the_recordings_exercise_the_rules():
    """A recording that preempts nobody proves nothing about preemption."""
    steps = [step for path in RECORDINGS for step in load(path)["trace"]["steps"]]
    assert sum(len(step["preempted"]) for step in steps) >= 8
    assert sum(len(step["resumed"]) for step in steps) >= 8
    assert sum(alloc[2] == 0 for step in steps for alloc in step["allocs"]) >= 30
    assert all("free_queue" in step for step in steps)
