"""Sliders and their static twin: the figures are those of the run, a drag is one run, a refusal is told."""

import asyncio
import sys

import pytest

from mini_vllm.config import SchedulerConfig
from mini_vllm.errors import ConfigError, MiniVLLMError
from mini_vllm.sim.driver import SimRequest, simulate
from mini_vllm.trace.recorder import Trace
from mini_vllm.viz import widgets
from mini_vllm.viz.explore import HEADINGS, Settings, SettingsTable, key_figures
from mini_vllm.viz.plots import Picture, gantt
from mini_vllm.viz.widgets import MISSING, VIEW, Explorer, make_panel
from tests.viz.player_traces import small_trace

REQUESTS = [SimRequest(f"R{i}", 12 + 5 * i, 10 + i, arrival_step=i) for i in range(6)]
CONFIG = SchedulerConfig(max_num_seqs=4, max_num_batched_tokens=16, num_gpu_blocks=24)
CONTROLS = {"num_gpu_blocks": [4, 13, 20, 44], "policy": ["fcfs", "priority"]}


def picture(run) -> Picture:
    return gantt(run, alt=f"Six requests, served in {len(run.steps)} steps")


def explorer(**more) -> Explorer:
    return Explorer(REQUESTS, CONFIG, **{"show": picture, "controls": CONTROLS, **more})


# ---- the figures


def test_key_figures_of_a_run_by_hand():
    run = small_trace()
    # A's first token ends step 0, B's step 1, C's (which arrived in step 1) step 2; B and C each miss a step or more.
    found = key_figures(Trace(run["header"], run["steps"]))
    assert (found.steps, found.preemptions, found.peak_blocks) == (6, 2, 4)
    assert (found.worst_ttft, found.worst_itl) == (2, 3)


def test_each_row_of_the_table_is_a_run():
    table = Settings(REQUESTS, CONFIG, controls=CONTROLS).one_at_a_time()
    assert {name: [value for value, _ in rows] for name, rows in table.items()} == {
        "num_gpu_blocks": [4, 13, 20, 24, 44],
        "policy": ["fcfs", "priority"],
    }
    rows = dict(table["num_gpu_blocks"])
    assert str(rows.pop(4)).startswith("refused: request 'R0' needs up to 6 KV blocks")
    for blocks, found in rows.items():
        config = SchedulerConfig(max_num_seqs=4, max_num_batched_tokens=16, num_gpu_blocks=blocks)
        assert found == key_figures(simulate(REQUESTS, config))
    assert dict(table["policy"])["fcfs"] == rows[24]


def test_the_table_in_text_and_html():
    table = SettingsTable(Settings(REQUESTS, CONFIG, controls=CONTROLS), "A note.")
    lines = table.text().splitlines()
    assert lines[0] == (
        "Each control moved alone from the start (num_gpu_blocks 24, policy fcfs); "
        "TTFT and ITL in steps, KV in blocks. A note."
    )
    start = next(line for line in lines if line.startswith("  24 (start)"))
    assert start.split()[2:] == [str(n) for n in table.rows["num_gpu_blocks"][3][1]]
    page = table.html()
    assert page.count("<tr>") == 1 + 2 + 7 and all(heading in page for heading in HEADINGS)
    assert "<td>" in page and "refused: request &#x27;R0&#x27;" in page


def test_the_offered_controls_suit_the_workload():
    settings = Settings(REQUESTS, CONFIG)
    assert list(settings.controls) == [
        "max_num_batched_tokens", "num_gpu_blocks", "long_prefill_token_threshold", "policy",
    ]  # fmt: skip
    for name, rows in settings.one_at_a_time().items():
        assert not [found for _, found in rows if isinstance(found, str)], f"{name} offers what is refused"
    assert len({found.steps for _, found in settings.one_at_a_time()["num_gpu_blocks"]}) > 2
    lonely = Settings([SimRequest("a", 1, 1)], SchedulerConfig(max_num_seqs=64))
    assert all(lonely.controls.values())


def test_a_long_control_is_tabulated_in_part_with_both_ends_and_the_start():
    settings = Settings(REQUESTS, CONFIG, controls={"num_gpu_blocks": range(13, 60)})
    values = [value for value, _ in settings.one_at_a_time()["num_gpu_blocks"]]
    assert values == sorted(values) and {13, 24, 59} <= set(values) and len(values) <= 9


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"requests": []}, "0 requests"),
        ({"controls": {"budget": [1]}}, "'budget' is no setting .* max_num_batched_tokens"),
        ({"controls": {"num_gpu_blocks": []}}, r"num_gpu_blocks needs a list of values, not \[\]"),
        ({"controls": {"policy": "fcfs"}}, "policy needs a list"),
    ],
)
def test_bad_settings_are_named(arguments, words):
    with pytest.raises(ConfigError, match=words):
        Settings(**{"requests": REQUESTS, "config": CONFIG, **arguments})


def test_a_start_that_cannot_run_and_a_show_that_shows_nothing_are_errors_of_the_cell():
    with pytest.raises(MiniVLLMError, match="raise num_gpu_blocks"):
        Explorer(REQUESTS, SchedulerConfig(num_gpu_blocks=2), show=picture)
    with pytest.raises(ConfigError, match="show returned int"):
        explorer(show=lambda run: len(run.steps))


# ---- the live panel (with whichever ipywidgets is installed: 7.7 or 8)

pytest.importorskip("ipywidgets", reason="ipywidgets is not installed")


def test_moving_a_control_shows_the_run_under_it():
    panel = make_panel(explorer())
    first = panel.picture.value
    panel.controls["num_gpu_blocks"].value = 13
    run = simulate(REQUESTS, SchedulerConfig(max_num_seqs=4, max_num_batched_tokens=16, num_gpu_blocks=13))
    assert panel.picture.value == picture(run).html() != first
    assert f"steps <b>{len(run.steps)}</b> (start: 40) · preempted <b>" in panel.figures.value
    assert "peak KV <b>13</b> blocks (start: 24)" in panel.figures.value
    panel.controls["num_gpu_blocks"].value = 24
    assert panel.picture.value == first and "start:" not in panel.figures.value
    assert panel.runs == 1, "the start is not simulated again"


def test_a_refused_setting_says_why_and_keeps_the_picture():
    panel = make_panel(explorer())
    first = panel.picture.value
    panel.controls["num_gpu_blocks"].value = 4
    assert "Refused:" in panel.figures.value and "raise num_gpu_blocks" in panel.figures.value
    assert panel.picture.value == first
    panel.set({"num_gpu_blocks": 24})
    assert "Refused" not in panel.figures.value


def test_an_error_in_show_is_seen():
    def show(run):
        return picture(run) if len(run.steps) == 40 else 1 / 0

    panel = make_panel(explorer(show=show))
    panel.controls["num_gpu_blocks"].value = 44
    assert "ZeroDivisionError" in panel.figures.value


def test_a_drag_is_one_run(monkeypatch):
    monkeypatch.setattr(widgets, "REST_S", 1.0)  # longer than any pause of a busy machine

    async def drag():
        panel = make_panel(explorer(controls={"num_gpu_blocks": list(range(13, 45))}))
        for blocks in range(13, 45):
            panel.controls["num_gpu_blocks"].value = blocks
            await asyncio.sleep(0)
        assert panel.runs == 0, "a run started while the hand was moving"
        while not panel.runs:
            await asyncio.sleep(0.05)
        return panel

    panel = asyncio.run(drag())
    assert panel.runs == 1
    ample = SchedulerConfig(max_num_seqs=4, max_num_batched_tokens=16, num_gpu_blocks=44)
    assert panel.picture.value == picture(simulate(REQUESTS, ample)).html()


def test_memory_of_old_pictures_is_bounded(monkeypatch):
    monkeypatch.setattr(widgets, "REMEMBERED", 2)
    panel = make_panel(explorer())
    for blocks in (13, 20, 44, 13):
        panel.controls["num_gpu_blocks"].value = blocks
    assert panel.runs == 4


def test_numbers_get_sliders_that_wait_for_the_hand_and_words_a_list():
    import ipywidgets

    panel = make_panel(explorer(controls={**CONTROLS, "enable_prefix_caching": [False, True]}))
    slider = panel.controls["num_gpu_blocks"]
    assert isinstance(slider, ipywidgets.SelectionSlider) and slider.continuous_update is False
    assert isinstance(panel.controls["policy"], ipywidgets.Dropdown)
    assert isinstance(panel.controls["enable_prefix_caching"], ipywidgets.Dropdown)
    assert [control.description for control in panel.controls.values()] == list(panel.controls)


# ---- what a notebook shows and stores


def shown(thing, monkeypatch) -> list[tuple[dict, dict]]:
    """(data, metadata) of everything that displaying it sends."""
    sent = []

    def display(data, metadata=None, raw=False):
        bundle = data if raw else data._repr_mimebundle_()
        sent.append((bundle, metadata or {}))

    monkeypatch.setattr("IPython.display.display", display)
    thing._ipython_display_()
    return sent


def test_the_widget_stands_beside_its_twin_and_a_table_follows(monkeypatch):
    (first, metadata), (table, _) = shown(explorer(), monkeypatch)
    assert set(first) == {VIEW, "image/png", "text/plain"} and first[VIEW]["model_id"]
    assert metadata["image/png"]["alt"] == "Six requests, served in 40 steps"
    assert set(table) == {"text/html", "text/plain"} and "(start)" in table["text/html"]


def test_without_ipywidgets_the_twin_and_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "ipywidgets", None)
    (first, _), (table, _) = shown(explorer(), monkeypatch)
    assert set(first) == {"image/png", "text/plain"} and MISSING in table["text/plain"]


def test_the_player_is_a_picture_too(monkeypatch):
    (first, _), _ = shown(Explorer(REQUESTS, CONFIG, controls=CONTROLS), monkeypatch)
    assert first["text/html"].startswith("<iframe")


def test_a_plain_interpreter_prints_the_table():
    text = repr(explorer())
    assert text.startswith("[picture] Six requests") and "  24 (start)" in text
