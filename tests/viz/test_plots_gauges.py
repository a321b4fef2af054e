"""Twin gauges: which limit binds in a step, what a column shows, and what is refused. Knows tiny hand-made runs."""

import pytest

from mini_vllm.config import SchedulerConfig
from mini_vllm.errors import ConfigError, TraceFormatError
from mini_vllm.sim.driver import SimRequest, simulate
from mini_vllm.viz.gauge_plot import COLUMNS_MAX, KV, SEATS, TOKENS, Gauge, binding, columns, twin_gauges

ALT = "Two gauges over the steps of a run."


def run(**limits):
    """B needs 5 tokens and 2 blocks; A holds 1 block until it is done."""
    config = SchedulerConfig(**{"max_num_seqs": 2, "max_num_batched_tokens": 8, "num_gpu_blocks": 4} | limits)
    return simulate([SimRequest("A", 3, 2), SimRequest("B", 5, 2)], config)


def bound(trace):
    return [binding(step) for step in trace.steps]


def test_which_limit_binds():
    assert bound(run()) == [None] * 2
    assert bound(run(max_num_seqs=1))[0] == SEATS
    assert bound(run(num_gpu_blocks=2))[:2] == [KV, KV]
    three = [SimRequest("A", 3, 2), SimRequest("B", 5, 2), SimRequest("C", 1, 1)]
    trace = simulate(three, SchedulerConfig(max_num_seqs=4, max_num_batched_tokens=8, num_gpu_blocks=9))
    assert bound(trace)[0] == TOKENS


@pytest.mark.parametrize(
    ("reason", "waiting", "limit"),
    [
        ("token_budget", ["A"], TOKENS),
        ("kv_reservation", ["A"], KV),
        ("kv_full_sequence", ["A"], KV),
        ("kv_watermark", ["A"], KV),
        ("max_num_seqs", ["A"], SEATS),
        ("preempted_this_step", ["A"], None),
        (None, ["A"], None),
        ("token_budget", [], None),
    ],
)
def test_every_reason(reason, waiting, limit):
    assert binding({"blocked_reason": reason, "waiting": waiting}) == limit


def test_a_step_is_a_column_and_many_steps_share_one():
    assert columns(Gauge([0.5, 1.0], [False, True])) == (1, [0.5, 1.0], [0.0, 1.0])
    long = Gauge([0.5, 1.0] * COLUMNS_MAX, [True, False] * COLUMNS_MAX)
    width, heights, shares = columns(long)
    assert (width, len(heights)) == (2, COLUMNS_MAX)
    assert set(heights) == {0.75} and set(shares) == {0.5}, "binds in half of the steps"


def test_gauges_are_drawn_one_pair_a_run():
    picture = twin_gauges({"one seat": run(max_num_seqs=1), "small pool": run(num_gpu_blocks=2)}, alt=ALT)
    axes = picture.figure.axes
    assert len(axes) == 4 and [ax.get_title(loc="left") for ax in axes] == ["one seat", "", "small pool", ""]
    heights = [bar.get_height() for bar in axes[3].patches]
    assert heights[0] == 0.5 and len(heights) > len(run(num_gpu_blocks=2).steps), "used, and over it what binds"
    labels = {text.get_text() for text in picture.figure.legends[0].get_texts()}
    assert labels == {"used", "it binds", "full", "no seat is free"}
    plain = twin_gauges(run(), alt=ALT)
    assert {text.get_text() for text in plain.figure.legends[0].get_texts()} == {"used", "full"}


def test_what_is_refused():
    trace = run()
    with pytest.raises(ConfigError, match="alt text"):
        twin_gauges(trace, alt="gauges")
    config = {key: value for key, value in trace.header["config"].items() if key != "num_gpu_blocks"}
    with pytest.raises(TraceFormatError, match="num_gpu_blocks"):
        twin_gauges({"header": trace.header | {"config": config}, "steps": trace.steps}, alt=ALT)
    counts = {"free", "free_before", "free_end", "blocks"}
    blind = [{key: value for key, value in step.items() if key not in counts} for step in trace.steps]
    with pytest.raises(TraceFormatError, match="step 0: 'free' is not recorded"):
        twin_gauges({"header": trace.header, "steps": blind}, alt=ALT)
