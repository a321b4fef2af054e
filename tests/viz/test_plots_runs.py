"""Pictures of a run show what the records say: boxes, levels, queues, gaps. Knows the small run by heart."""

import json
from itertools import pairwise

import pytest
from matplotlib.colors import to_hex
from matplotlib.patches import Rectangle

from mini_vllm.batching import Timeline
from mini_vllm.errors import ConfigError, TraceFormatError
from mini_vllm.viz import lane_plots as lanes
from mini_vllm.viz import plots
from mini_vllm.viz.run_axis import tick_distance
from tests.viz.player_traces import busy_trace, record, small_trace
from tests.viz.plot_gallery import ALT, batches, crowded, recorded, with_seconds

# The small run, step by step (A, B, C; 4 blocks):
#   0  A prefills 6, B waits          3  A decodes and ends; C, then B are preempted
#   1  A decodes, B and C prefill     4  B and C resume and compute again, B ends
#   2  A and B decode, C prefills     5  C computes again and ends
RUN_PICTURES = [plots.slot_time, plots.gantt, plots.kv_occupancy, plots.queue_lengths, plots.itl_strip]


def boxes(ax) -> list[tuple[int, str, float, float]]:
    """(row, kind, start, end) of every box of a panel."""
    names = {}
    for kind, look in lanes.BOXES.items():
        face = look["facecolor"]
        colour = face if face == "none" else to_hex(face)
        names[colour, look.get("hatch")] = kind
    found = []
    for patch in ax.patches:
        assert isinstance(patch, Rectangle)
        face = "none" if patch.get_facecolor()[3] == 0 else to_hex(patch.get_facecolor())
        x, y = patch.get_xy()
        found.append((int(y), names[face, patch.get_hatch()], round(x, 1), round(x + patch.get_width(), 1)))
    return sorted(found)


def marks(ax, kind: str) -> list[tuple[float, float]]:
    wanted = lanes.MARKS[kind]["marker"]
    return [spot for line in ax.lines if line.get_marker() == wanted for spot in zip(*line.get_data(), strict=True)]


def levels(ax, number: int) -> list[float]:
    return list(ax.patches[number].get_data().values)


def test_gantt_of_the_small_run():
    (ax,) = plots.gantt(small_trace(), alt=ALT).figure.axes
    assert [label.get_text() for label in ax.get_yticklabels()] == ["A", "B", "C"]
    assert boxes(ax) == [
        (0, lanes.DECODE, 1, 2), (0, lanes.DECODE, 2, 3), (0, lanes.DECODE, 3, 4), (0, lanes.PREFILL, 0, 1),
        (1, lanes.DECODE, 2, 3), (1, lanes.PREFILL, 1, 2), (1, lanes.RECOMPUTE, 4, 5),
        (2, lanes.PREFILL, 1, 2), (2, lanes.PREFILL, 2, 3), (2, lanes.RECOMPUTE, 4, 5), (2, lanes.RECOMPUTE, 5, 6),
    ]  # fmt: skip
    assert marks(ax, lanes.PREEMPTED) == [(3.5, 1.5), (3.5, 2.5)]
    assert marks(ax, lanes.FINISHED) == [(4, 0.5), (5, 1.5), (6, 2.5)]
    waits = [line.get_data() for line in ax.lines if line.get_marker() == "None" and len(line.get_xdata())]
    assert [(list(x), list(y)) for x, y in waits] == [([0, 1], [1.5, 1.5])]


def test_gantt_of_a_swap_and_an_abort(tmp_path):
    steps = [
        record(0, [["a", 4], ["b", 4]], arrivals=["a", "b"], new=["a", "b"], sampled={"a": [1], "b": [1]}),
        record(1, [["a", 1]], swapped_out=["b"], preempted=["b"], waiting=["b"], running=["a"], sampled={"a": [1]}),
        record(2, [], waiting=["b"], running=[], aborted=["a"]),
        record(3, [["b", 1]], swapped_in=["b"], waiting=[], running=["b"], sampled={"b": [1]}, finished=["b"]),
    ]
    header = {"format": "mini_vllm.trace", "version": 1, "kind": "sim", "config": {}, "requests": {}}
    path = tmp_path / "run.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in [header, *steps]))
    (ax,) = plots.gantt(path, alt=ALT).figure.axes
    assert (1, lanes.SWAPPED, 2, 3) in boxes(ax) and (1, lanes.DECODE, 3, 4) in boxes(ax)
    assert marks(ax, lanes.PREEMPTED) == [(1.5, 1.5)] and marks(ax, lanes.ABORTED) == [(2.5, 0.5)]


def test_gantt_in_seconds_uses_the_recorded_times():
    trace = small_trace()
    for i, step in enumerate(trace["steps"]):
        step.update(t_start=i * 0.5, t_end=i * 0.5 + 0.4)
    (ax,) = plots.gantt(trace, unit="s", alt=ALT).figure.axes
    assert ax.get_xlabel() == "time (s)" and ax.get_xlim() == (0.0, 2.9)
    assert (0, lanes.PREFILL, 0.0, 0.4) in boxes(ax) and (2, lanes.RECOMPUTE, 2.5, 2.9) in boxes(ax)


def test_long_runs_are_drawn_in_stretches_and_very_long_ones_stay_one_page():
    (ax,) = plots.gantt(crowded(), alt=ALT).figure.axes
    assert len(ax.patches) < 150  # 900 pieces
    trace = busy_trace(steps=400, seats=120, blocks=900, budget=200)
    drawn = plots.gantt(trace, alt=ALT)
    assert drawn.figure.get_figheight() <= 9
    names = drawn.figure.axes[0].get_yticklabels()
    assert names[0].get_text() == "R1" and len(names) < 60


def test_slot_time_draws_the_batchers_cells():
    runs = batches()
    figure = plots.slot_time(runs, alt=ALT).figure
    assert [ax.get_title(loc="left") for ax in figure.axes] == ["static", "padded", "continuous"]
    for ax, timeline in zip(figure.axes, runs.values(), strict=True):
        cells = [
            (slot, cell.kind, step, step + 1) for slot, row in enumerate(timeline.grid) for step, cell in enumerate(row)
        ]
        assert [(row, kind, round(a), round(b)) for row, kind, a, b in boxes(ax)] == sorted(cells)
    ids = [text.get_text() for text in figure.axes[2].texts]
    assert ids == [c.request_id for row in runs["continuous"].grid for c in row if c.request_id]


def test_slot_time_of_a_trace_gives_a_preempted_request_its_slot_back():
    (ax,) = plots.slot_time(small_trace(), alt=ALT).figure.axes
    kinds = [(row, kind, round(a)) for row, kind, a, _ in boxes(ax) if kind != lanes.IDLE]
    assert kinds == sorted(
        [(0, lanes.PREFILL, 0), *((0, lanes.DECODE, step) for step in (1, 2, 3)), (1, lanes.PREFILL, 1)]
        + [(1, lanes.DECODE, 2), (2, lanes.PREFILL, 1), (2, lanes.PREFILL, 2)]
        + [(0, lanes.RECOMPUTE, 4), (1, lanes.RECOMPUTE, 4), (1, lanes.RECOMPUTE, 5)]
    )


def test_kv_occupancy_counts_held_shared_and_cached_blocks():
    (ax,) = plots.kv_occupancy(small_trace(), alt=ALT).figure.axes
    assert levels(ax, 0) == [2, 4, 4, 3, 3, 2] and len(ax.patches) == 1
    assert [list(line.get_ydata()) for line in ax.lines if len(line.get_xdata()) == 2][:1] == [[4, 4]]  # the pool
    assert [x for x, _ in zip(*ax.lines[-1].get_data(), strict=True)] == [3.5]
    steps = [
        record(0, [["a", 8], ["b", 8]], blocks={"a": [1, 2, 3], "b": [1, 2, 4]}, free=1, sampled={}),
        record(1, [["b", 1]], blocks={"b": [1, 2, 4]}, free=2, cached_blocks=[1, 3], free_queue=[3, 5], sampled={}),
    ]
    (ax,) = plots.kv_occupancy({"header": {"config": {"num_gpu_blocks": 5}}, "steps": steps}, alt=ALT).figure.axes
    assert [levels(ax, k) for k in range(3)] == [[4, 3], [2, 0], [4, 4]]


def test_kv_occupancy_agrees_with_the_free_count_of_every_recorded_step():
    run = recorded("98_worked_example_full")
    (ax,) = plots.kv_occupancy(run, alt=ALT).figure.axes
    pool = run["header"]["config"]["num_gpu_blocks"]
    assert levels(ax, 0) == [pool - step["free"] for step in run["steps"]]


def test_queue_lengths_of_the_small_run():
    (ax,) = plots.queue_lengths(small_trace(), alt=ALT).figure.axes
    assert levels(ax, 0) == [1, 3, 3, 1, 2, 1] and levels(ax, 1) == [1, 0, 0, 2, 0, 0]
    assert ax.get_ylabel() == "requests" and list(ax.lines[0].get_ydata()) == [3, 3]


def test_itl_strip_says_what_came_between_two_tokens():
    (ax,) = plots.itl_strip(small_trace(), target=1, alt=ALT).figure.axes
    spots = {line.get_marker(): sorted(zip(*line.get_data(), strict=True)) for line in ax.lines[:3]}
    # A emits in 0, 1, 2, 3, B in 1, 2, 4, C in 2 and 5; only step 3 computes no prompt.
    assert spots == {".": [(4, 1)], "^": [(2, 1), (3, 1), (3, 1)], "X": [(5, 2), (6, 3)]}
    assert ax.get_ylabel() == "ITL (steps)" and ax.get_title(loc="right") == "2 of 6 above the target"


def test_itl_in_milliseconds_is_the_time_between_the_ends_of_two_steps():
    run = with_seconds(crowded())
    (ax,) = plots.itl_strip(run, unit="s", alt=ALT).figure.axes
    ends = {step["step"]: step["t_end"] for step in run["steps"]}
    emitted = [step["step"] for step in run["steps"] if step["sampled"].get("R0")]
    expected = [round(1000 * (ends[b] - ends[a]), 6) for a, b in pairwise(emitted)]
    shown = {round(float(y), 6) for line in ax.lines for y in line.get_ydata()}
    assert ax.get_ylabel() == "ITL (ms)" and set(expected) <= shown
    tokens = sum(len(step["sampled"]) for step in run["steps"])
    assert sum(len(line.get_xdata()) for line in ax.lines) == tokens - len(run["header"]["requests"])


def test_several_runs_share_both_axes():
    figure = plots.queue_lengths({"short": small_trace(), "long": crowded()}, alt=ALT).figure
    assert len({ax.get_xlim() for ax in figure.axes}) == len({ax.get_ylim() for ax in figure.axes}) == 1


# ---- bad input


@pytest.mark.parametrize("draw", RUN_PICTURES, ids=lambda draw: draw.__name__)
@pytest.mark.parametrize(
    ("runs", "error", "words"),
    [
        ({"header": {}, "steps": []}, TraceFormatError, "no steps"),
        ({}, ConfigError, "no run to draw"),
        ({"a": {"header": {}, "steps": [{"step": 0}]}}, TraceFormatError, "scheduled"),
        (7, TraceFormatError, "int is no trace"),
    ],
    ids=["no steps", "no run", "no field", "no trace"],
)
def test_no_picture_of_nothing(draw, runs, error, words):
    with pytest.raises(error, match=words):
        draw(runs, alt=ALT)


def test_what_a_run_lacks_is_named():
    bare = {"steps": [record(0, [["a", 1]], sampled={"a": [1]}), record(1, [["a", 1]])]}
    with pytest.raises(TraceFormatError, match="step 0: neither 'blocks' nor 'free'"):
        plots.kv_occupancy(bare, alt=ALT)
    with pytest.raises(ConfigError, match="two tokens"):
        plots.itl_strip(bare, alt=ALT)
    with pytest.raises(TraceFormatError, match="step 0 has no t_start"):
        plots.gantt(bare, unit="s", alt=ALT)
    with pytest.raises(ConfigError, match="no request ever arrived"):
        plots.gantt({"steps": [record(0, [])]}, alt=ALT)
    with pytest.raises(ConfigError, match="step clock"):
        plots.gantt(crowded(), unit="s", alt=ALT)
    with pytest.raises(ConfigError, match=r"'minutes'.*'step' or 's'"):
        plots.queue_lengths(crowded(), unit="minutes", alt=ALT)
    with pytest.raises(ConfigError, match=r"target.*-1"):
        plots.itl_strip(crowded(), target=-1, alt=ALT)
    backwards = with_seconds(crowded())
    backwards["steps"][3]["t_end"] = 0.0
    with pytest.raises(TraceFormatError, match="backwards"):
        plots.queue_lengths(backwards, unit="s", alt=ALT)


def test_an_idle_run_has_its_empty_panels():
    idle = {"header": {"config": {"num_gpu_blocks": 4}}, "steps": [record(0, [], free=4), record(1, [], free=4)]}
    assert levels(plots.kv_occupancy(idle, alt=ALT).figure.axes[0], 0) == [0, 0]
    assert levels(plots.queue_lengths(idle, alt=ALT).figure.axes[0], 0) == [0, 0]
    assert isinstance(batches()["static"], Timeline)


@pytest.mark.parametrize(("steps", "every"), [(1, 1), (12, 1), (13, 2), (25, 5), (61, 10), (130, 20), (2000, 200)])
def test_ticks_are_round_and_few(steps, every):
    assert tick_distance(steps) == every
