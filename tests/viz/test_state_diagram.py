"""Changes of state, read from records: by eye, and against the scheduler's own states. Knows a few tiny logs."""

import random

import pytest

pytest.importorskip("matplotlib")

from mini_vllm.config import SchedulerConfig
from mini_vllm.core.scheduler import Scheduler
from mini_vllm.core.step_loop import StepLoop
from mini_vllm.request import Request, SamplingParams
from mini_vllm.sim.driver import simulate
from mini_vllm.sim.examples import five_requests
from mini_vllm.sim.fake_runner import FakeModelRunner
from mini_vllm.viz.state_diagram import moves, state_diagram


def log(*steps: dict) -> dict:
    """A trace with only events: {"arrivals": "AB", "scheduled": "A"}."""
    events = ("arrivals", "aborted", "preempted", "finished")
    records = []
    for i, step in enumerate(steps):
        record = {"step": i, "scheduled": [[name, 1] for name in step.get("scheduled", "")]}
        records.append(record | {name: list(step.get(name, "")) for name in events})
    return {"header": {}, "steps": records}


def test_a_life_of_every_kind():
    found = moves(
        log(
            {"arrivals": "ABC", "scheduled": "AB"},
            {"aborted": "C", "scheduled": "A"},  # B is left out, and runs all the same
            {"preempted": "B", "scheduled": "A", "finished": "A"},
            {"scheduled": "B", "finished": "B"},
        )
    )
    lives = {name: [(m.step, m.target) for m in found if m.request_id == name] for name in "ABC"}
    assert lives == {
        "A": [(0, "waiting"), (0, "running"), (2, "finished")],
        "B": [(0, "waiting"), (0, "running"), (2, "preempted"), (3, "running"), (3, "finished")],
        "C": [(0, "waiting"), (1, "finished")],
    }
    assert all(m.source == ("" if m.target == "waiting" else m.source) for m in found)


def test_moves_lead_to_the_states_that_the_scheduler_says():
    for seed in range(30):
        rng = random.Random(seed)
        config = SchedulerConfig(
            max_num_seqs=3, max_num_batched_tokens=5, num_gpu_blocks=4, block_size=4, max_model_len=20
        )
        scheduler = Scheduler(config)
        loop = StepLoop(scheduler, config, FakeModelRunner().execute, kind="sim", clock=None)
        requests = {}
        for name in "ABCDE":
            params = SamplingParams(max_tokens=rng.randint(1, 8), ignore_eos=True)
            requests[name] = Request(name, [1] * rng.randint(1, 8), params)
            loop.add_request(requests[name])
        while loop.has_unfinished_requests():
            loop.step()
            latest = {move.request_id: move.target for move in moves(loop.trace)}
            told = {name: "finished" if r.status.is_finished else r.status.name.lower() for name, r in requests.items()}
            assert latest == told, (seed, loop.step_index)


def test_the_diagram_counts_what_the_run_did():
    trace = simulate(*five_requests())
    picture = state_diagram(trace, alt="four states and the ways between them, counted")
    words = [text.get_text() for text in picture.figure.axes[0].texts]
    for label in ("arrive ×5", "admit ×5", "evict ×3", "admit ×3", "retire ×5"):
        assert label in words
    assert words.count("abort ×0") == 2
    assert repr(picture).startswith("[picture] four states")
