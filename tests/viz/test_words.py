"""Sentences of the player: what happened, who was evicted for whom, why the head waits. Knows records and English."""

from itertools import pairwise

import pytest

from mini_vllm.sim.driver import simulate
from mini_vllm.sim.examples import five_requests
from mini_vllm.trace.convert import from_vllm_recording
from mini_vllm.trace.replay import Replay, read_recording
from mini_vllm.viz import StepPlayer
from mini_vllm.viz.event_words import event_steps
from mini_vllm.viz.eviction_words import who_needed_blocks
from mini_vllm.viz.phrases import listed, ordinal
from mini_vllm.viz.records import read_trace
from mini_vllm.viz.timeline import build_timeline
from mini_vllm.viz.wait_words import infer_blocked_reason, wait_words
from tests.viz.player_traces import RECORDINGS, SMALL, record, small_trace

FILES = sorted(RECORDINGS.glob("*.json"))


def timeline(trace):
    return build_timeline(*read_trace(trace))


def trace_of(*records, **config):
    requests = {"A": {"prompt_len": 8, "max_tokens": 4}, "B": {"prompt_len": 4, "max_tokens": 4}}
    return {"header": {"config": config, "requests": requests}, "steps": list(records)}


# ---- what happened


def test_the_small_run_in_words():
    assert StepPlayer(SMALL).events() == [
        "step 0: A, B arrive; A enters, prefills 6 of 6, first token.",
        "step 1: C arrives; B enters, prefills 3 of 3, first token; C enters, prefills 2 of 4; A decodes.",
        "step 2: C prefills 2 (4 of 4, first token); A, B decode.",
        "step 3: C evicted: A needs a third block, 0 free; B evicted: it needs a second block, 0 free; "
        "A decodes; A finishes, its 3 blocks are free for the next step.",
        "step 4: B resumes, recomputes 5 of 5; C resumes, recomputes 1 of 5; "
        "B finishes, its 2 blocks are free for the next step.",
        "step 5: C recomputes 4 (5 of 5); C finishes, its 2 blocks are free for the next step.",
    ]


def test_the_five_requests_in_words():
    said = StepPlayer(simulate(*five_requests("chunk")), count_from=1).events()
    assert said[9] == "step 10: R4 evicted: R3 needs a third block, 0 free; R1, R2, R3 decode."
    assert said[29] == "step 30: R5 evicted: it needs a second block, 0 free; R1, R4 decode."


def test_long_lists_are_cut():
    many = [[f"r{k}", 1] for k in range(20)]
    (said,) = StepPlayer({"steps": [record(0, many)]}).events()
    assert said.endswith("; r7 prefills 1; 12 more catch up.")
    known = {"header": {"requests": {rid: {"prompt_len": 0} for rid, _ in many}}}
    (said,) = StepPlayer({**known, "steps": [record(0, many)]}).events()
    assert said == "step 0: r0, r1, r2, r3, r4, r5, r6, r7, 12 more decode."
    assert listed(["a"]) == "a" and listed([]) == ""


@pytest.mark.parametrize(
    ("finished", "fields", "says"),
    [
        (["A"], {"free": 1, "free_end": 3}, "A finishes, its 2 blocks are free for the next step."),
        (["B"], {"free": 1, "free_end": 2}, "B finishes, its block is free for the next step."),
        (["A", "B"], {"free": 1, "free_end": 4}, "A, B finish, their 3 blocks are free for the next step."),
        (
            ["A"],
            {"free": 1, "free_end": 2},
            "A finishes, 1 of its 2 blocks is free for the next step.",
        ),  # shared
        (["A"], {"free": 1, "free_end": 1}, "A finishes."),  # a policy that keeps them
        (["A"], {"free": 1, "free_end": 9}, "A finishes."),  # somebody else's are among them
        (["A"], {"free": 1}, "A finishes."),
        (["A"], {"free_end": 3}, "A finishes."),
    ],
)
def test_what_becomes_of_the_blocks_of_who_finishes(finished, fields, says):
    step = record(0, [["A", 8], ["B", 4]], finished=finished, blocks={"A": [1, 2], "B": [3]}, **fields)
    (said,) = StepPlayer(trace_of(step)).events()
    assert said.endswith(f"; {says}")


def test_a_block_that_loses_its_cached_tokens_is_named():
    steps = [record(0, [["A", 1]], cached_blocks=[3, 7, 8]), record(1, [["A", 1]], cached_blocks=[7])]
    assert "blocks 3, 8 lose their cached tokens" in StepPlayer(trace_of(*steps)).events()[1]
    steps[1]["cached_blocks"] = [3, 7]
    assert "block 8 loses its cached tokens" in StepPlayer(trace_of(*steps)).events()[1]


def test_events_by_kind():
    assert event_steps(timeline(small_trace())) == {
        "any": [0, 1, 3, 4, 5],
        "arrival": [0, 1],
        "entry": [0, 1],
        "eviction": [3],
        "return": [4],
        "finish": [3, 4, 5],
        "new reason": [0, 3],
    }
    hit = trace_of(record(0, [["A", 4]], new=["A"], hits={"A": 4}), record(1, [["A", 1]], hits={}))
    assert event_steps(timeline(hit))["cache hit"] == [0]


@pytest.mark.parametrize(
    ("n", "word"), [(1, "first"), (3, "third"), (12, "twelfth"), (13, "13th"), (22, "22nd"), (111, "111th")]
)
def test_ordinals(n, word):
    assert ordinal(n) == word


# ---- who was evicted for whom


def test_nobody_is_blamed_where_the_record_does_not_tell():
    trace = small_trace()
    del trace["steps"][3]["free_before"]
    assert "C, B evicted; A decodes" in StepPlayer(trace).events()[3]


def test_no_number_is_said_if_the_sum_does_not_come_out():
    trace = small_trace()
    trace["steps"][3]["free"] += 1
    assert "C, B evicted; A decodes" in StepPlayer(trace).events()[3]


def test_under_priority_only_a_recorded_failure_is_believed():
    trace = small_trace()
    trace["header"]["config"]["policy"] = "priority"
    assert "C, B evicted; A decodes" in StepPlayer(trace).events()[3]
    trace["steps"][3]["allocs"] = [["A", 1, 0], ["A", 1, 1], ["B", 1, 0]]
    assert "C evicted: A needs a third block, 0 free; B evicted: it needs a second" in StepPlayer(trace).events()[3]
    trace["steps"][3]["free"] = None
    trace["steps"][3].pop("free")
    trace["steps"][3]["blocks"] = {}
    assert "C evicted: A needs more blocks than are free" in StepPlayer(trace).events()[3]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_eviction_of_the_recorded_runs_is_explained(path):
    """The real vLLM's: somebody was short of blocks, and by the arithmetic that is said, they were too few."""
    line = timeline(path)
    for i, step in enumerate(line.records):
        needs = who_needed_blocks(line, i)
        assert len(needs) == len(step["preempted"])
        for need in needs:
            assert need.blocks is not None and need.free is not None and need.blocks > need.free >= 0
            assert need.held == len(line.lane(need.rid).blocks[i - 1])


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_without_the_attempts_the_same_is_found_by_the_scan_or_nothing(path):
    with_attempts, without = timeline(path), from_vllm_recording(path)
    for step in without.steps:
        del step["allocs"]
    bare = timeline(without)
    for i in range(len(bare.records)):
        found = who_needed_blocks(bare, i)
        if found and bare.config["num_lookahead_tokens"] == 0:
            known = who_needed_blocks(with_attempts, i)
            assert [need.rid for need in found] == [need.rid for need in known]
            assert all(a.blocks in (None, b.blocks) and a.free == b.free for a, b in zip(found, known, strict=True))


# ---- why the head waits


@pytest.mark.parametrize(
    ("reason", "config", "fields", "words"),
    [
        ("max_num_seqs", {}, {"running": ["A", "X", "Y"]}, "B waits: 3 of 3 seats are taken (max_num_seqs)."),
        ("max_num_seqs", {"max_num_seqs": 1}, {}, "B waits: the only seat is taken (max_num_seqs 1)."),
        ("preempted_this_step", {}, {}, "B waits: nobody is admitted in a step that evicted somebody."),
        (
            "preempted_this_step",
            {},
            {"preempted": ["C"]},
            "B waits: nobody is admitted in a step that evicted somebody (C).",
        ),
        ("token_budget", {}, {}, "B waits: the token budget is spent: A takes 6 of 6."),
        (
            "token_budget",
            {},
            {"scheduled": [["A", 4], ["C", 2]]},
            "B waits: the token budget is spent: A 4 + C 2 = 6 of 6.",
        ),
        (
            "token_budget",
            {"enable_chunked_prefill": False},
            {"scheduled": [["A", 4]], "budget_used": 4},
            "B waits: A takes 4 of 6 tokens, 2 left; its next piece is longer and may not be cut.",
        ),
        ("kv_full_sequence", {}, {}, "B waits: all its 3 known tokens must fit: ⌈3 / 4⌉ = 1 block, 2 free."),
        (
            "kv_full_sequence",
            {"enable_prefix_caching": True},
            {},
            "B waits: all its 3 known tokens must fit: at most ⌈3 / 4⌉ = 1 block, 2 free.",
        ),
        (
            "kv_watermark",
            {"watermark": 0.4},
            {},
            "B waits: it needs ⌈3 / 4⌉ = 1 block and 2 must stay free (watermark): 1 + 2 = 3, 2 free.",
        ),
        (
            "kv_chunk",
            {},
            {"budget_used": 4, "free": 0},
            "B waits: its next 2 tokens need ⌈2 / 4⌉ = 1 block, 0 free.",
        ),
        (
            "max_loras",
            {"max_loras": 1},
            {},
            "B waits: its adapter is not among those that run, and 1 of 1 run (max_loras). "
            "Those behind it may go first.",
        ),
        (
            "stale_output",
            {},
            {"preempted": ["B"]},
            "B waits: it was evicted in step 0 while a step with it was still under way; it may come back when that "
            "output is in. Those behind it may go first.",
        ),
        ("batch_not_finished", {}, {}, "B waits: batch not finished."),
        (None, {}, {}, ""),
    ],
)
def test_blocked_reason_in_words(reason, config, fields, words):
    trace = small_trace()
    trace["header"]["config"] |= config
    trace["steps"][0] |= {"blocked_reason": reason, **fields}
    assert wait_words(timeline(trace), 0) == words


def test_max_loras_names_the_adapters_where_the_header_does():
    trace = small_trace()
    trace["header"]["config"]["max_loras"] = 1
    trace["header"]["requests"]["A"]["adapter"], trace["header"]["requests"]["B"]["adapter"] = "french", "legal"
    trace["steps"][0]["blocked_reason"] = "max_loras"
    assert wait_words(timeline(trace), 0).startswith("B waits: it wants adapter legal, and 1 of 1 run (french) (max_lo")


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_the_inferred_reason_is_the_schedulers_or_none(path):
    """Recorded runs of vLLM do not say why; ours makes the same decisions and does."""
    replay, line = Replay(read_recording(path)["scenario"], read_recording(path)["trace"]["config"]), timeline(path)
    reasons, schedule = [], replay.scheduler.schedule

    def watched():
        plan = schedule()
        reasons.append(plan.blocked_reason)
        return plan

    replay.scheduler.schedule = watched
    plain = not line.config["enable_prefix_caching"] and not line.config["num_speculative_tokens"]
    for i in range(len(line.records)):
        replay.step()
        if line.waiting[i]:
            inferred = infer_blocked_reason(line, i)
            assert inferred == reasons[i] or (inferred is None and not plain), f"step {i}"


def test_every_reason_to_wait_holds_in_the_five_requests():
    """The numbers in the sentences are those of the records."""
    for admission in ("full", "chunk"):
        line = timeline(simulate(*five_requests(admission)))
        for i, step in enumerate(line.records):
            said = wait_words(line, i)
            if "⌈" in said:
                known = int(said.split("⌈")[1].split(" /")[0])
                blocks, free = -(-known // 16), step["free"]
                assert f"⌈{known} / 16⌉ = {blocks} block" in said and f"{free} free" in said and blocks > free
        assert any("⌈" in wait_words(line, i) for i in range(len(line.records)))


def test_a_new_reason_is_an_event():
    line = timeline(simulate(*five_requests("full")))
    changes = event_steps(line)["new reason"]
    reasons = [step["blocked_reason"] if step["waiting"] else None for step in line.records]
    expected = [0] + [i for i, (a, b) in enumerate(pairwise(reasons), start=1) if b and a != b]
    assert changes == expected
