"""The A/B player without a browser: locks, labels, the first divergence, refusals. Knows two traces, no pixels."""

import copy
import html
import json
import re

import pytest

from mini_vllm.errors import ConfigError, TraceFormatError
from mini_vllm.sim.driver import simulate
from mini_vllm.sim.examples import five_requests
from mini_vllm.trace.convert import replayed
from mini_vllm.viz import ABPlayer
from tests.viz.player_traces import RECORDINGS, record, small_trace

BOTH = ("ours", "vLLM 0.33.0")


def data(player: ABPlayer) -> dict:
    page = html.unescape(re.search(r"srcdoc='([^']*)'", player.html()).group(1))
    return json.loads(re.search(r'id="data">(.*?)</script>', page, re.S).group(1))


def changed(step: int, **fields) -> dict:
    """The small run with other values in one record."""
    trace = copy.deepcopy(small_trace())
    trace["steps"][step] |= fields
    return trace


def test_equal_runs_have_no_divergence():
    player = ABPlayer(small_trace(), small_trace(), BOTH)
    assert player.verdict() == "No divergence in 6 steps"
    assert data(player)["verdict"] == {"head": "No divergence in 6 steps", "moment": None, "more": "", "values": []}


def test_the_first_divergence_is_named_with_both_values():
    player = ABPlayer(small_trace(), changed(2, scheduled=[["A", 1]], running=["A"]), BOTH, count_from=1)
    assert player.verdict() == (
        "First divergence: step 3, scheduled: ours: A 1, B 1, C 2 · vLLM 0.33.0: A 1. Also in this step: running"
    )
    assert data(player)["verdict"]["moment"] == 2
    assert player.text().startswith("ours and vLLM 0.33.0. First divergence: step 3, scheduled")


def test_nothing_is_said_for_an_empty_value():
    player = ABPlayer(small_trace(), changed(3, preempted=[]), BOTH)
    assert "preempted: ours: C, B · vLLM 0.33.0: nothing" in player.verdict()


def test_another_reason_for_the_same_decision_is_no_divergence():
    player = ABPlayer(small_trace(), changed(0, blocked_reason="max_num_seqs"), BOTH)
    assert player.verdict() == "No divergence in 6 steps"


def test_a_run_that_ends_early_diverges_there():
    shorter = small_trace()
    del shorter["steps"][4:]
    player = ABPlayer(small_trace(), shorter, BOTH)
    assert player.verdict() == "First divergence: only one run has a step 4: ours: there · vLLM 0.33.0: missing"
    assert data(player)["verdict"]["moment"] == 4


def test_the_two_admission_rules_part_where_the_course_says():
    """Tick 31 of the worked example: R5 may enter with its next chunk, but not with all 17 known tokens."""
    chunk, full = (simulate(*five_requests(admission)) for admission in ("chunk", "full"))
    player = ABPlayer(chunk, full, ("chunk", "full"), count_from=1)
    assert player.verdict().startswith(
        "First divergence: step 31, scheduled: chunk: R1 1, R4 1, R5 6 · full: R1 1, R4 1. Also in this step: "
    )
    assert "reserve_full_isl is False in “chunk” and True in “full”" in player.verdict()


@pytest.mark.parametrize("name", ["97_worked_example_first_chunk", "98_worked_example_full"])
def test_the_five_requests_play_beside_the_real_vllm_without_divergence(name):
    """Our simulator's run of the requests stored in the package, beside the recording."""
    ours = simulate(*five_requests("chunk" if name.startswith("97") else "full"))
    player = ABPlayer(ours, RECORDINGS / f"{name}.json", BOTH)
    assert player.verdict() == "No divergence in 83 steps"
    assert {"scheduled", "preempted", "waiting", "running", "computed", "blocks", "free", "sampled", "finished"} <= set(
        player.comparison.compared
    )


@pytest.mark.parametrize("path", sorted(RECORDINGS.glob("*.json"))[::9], ids=lambda path: path.stem)
def test_recorded_runs_play_beside_ours_without_divergence(path):
    player = ABPlayer(replayed(path), path, BOTH)
    assert player.verdict().startswith(f"No divergence in {len(player.timelines[1].records)} step")


def test_lanes_stand_in_one_order_in_both_runs():
    """B saw the requests in another order and one more; the colour of a request is its row's."""
    a = {"steps": [record(0, [], arrivals=["r1", "r2"])]}
    b = {"steps": [record(0, [], arrivals=["r2", "r3", "r1"])]}
    runs = data(ABPlayer(a, b, BOTH))["runs"]
    assert [[lane["id"] for lane in run["lanes"]] for run in runs] == [["r1", "r2", "r3"]] * 2
    assert runs[0]["waiting"] == "0:0,1" and runs[1]["waiting"] == "0:1,2,0"


def test_locked_by_time_both_start_at_zero_and_steps_are_not_compared():
    later = small_trace()
    for step in later["steps"]:
        step["t_start"], step["t_end"] = 10 + 2 * step["t_start"], 10 + 2 * step["t_end"]
    player = ABPlayer(small_trace(), later, ("fast", "slow"), lock="time")
    shown = data(player)
    assert shown["lock"] == "time" and "verdict" not in shown and player.verdict() == ""
    assert [run["times"][0] for run in shown["runs"]] == [[0, 0.5], [0, 1]]


@pytest.mark.parametrize(
    ("arguments", "error", "says"),
    [
        ({"lock": "block"}, ConfigError, "choose one of step, time"),
        ({"labels": ("a", "a")}, ConfigError, "two different names"),
        ({"labels": ("a",)}, ConfigError, "two different names"),
        ({"trace_b": {"steps": []}}, TraceFormatError, "has no steps"),
        ({"trace_b": {"steps": [{"step": 0}]}}, TraceFormatError, "needs 'scheduled'"),
        ({"trace_b": {"steps": [record(99, [])]}}, TraceFormatError, "no step in common"),
    ],
)
def test_refusals(arguments, error, says):
    settings = {"trace_a": small_trace(), "trace_b": small_trace(), "labels": BOTH} | arguments
    with pytest.raises(error, match=says):
        ABPlayer(**settings)


def test_another_workload_is_refused():
    other = small_trace()
    other["header"]["requests"]["B"]["prompt_len"] = 5
    with pytest.raises(ConfigError, match="prompt_len of B is 3 in the first and 5 in the second"):
        ABPlayer(small_trace(), other, BOTH)
    other["header"]["requests"] = {"X": {"prompt_len": 1}}
    with pytest.raises(ConfigError, match="A, B, C in the first, X in the second"):
        ABPlayer(small_trace(), other, BOTH)


def test_a_lock_by_time_needs_times():
    without = small_trace()
    del without["steps"][2]["t_end"]
    with pytest.raises(ConfigError, match=r'step 2 of vLLM 0.33.0 has none: use lock="step"'):
        ABPlayer(small_trace(), without, BOTH, lock="time")


def test_a_pair_of_runs_of_a_chapter_fits_in_80_kb():
    chunk, full = (simulate(*five_requests(admission)) for admission in ("chunk", "full"))
    bundle = ABPlayer(chunk, full)._repr_mimebundle_()
    assert sum(len(text.encode("utf-8")) for text in bundle.values()) <= 80_000


def test_the_same_traces_give_the_same_bytes_and_one_svg():
    assert ABPlayer(small_trace(), small_trace()).html() == ABPlayer(small_trace(), small_trace()).html()
    picture = ABPlayer(small_trace(), small_trace(), ("<one>", "two")).svg()
    assert picture.count("<svg") == 1 and "&lt;one&gt;" in picture and "<one>" not in picture
