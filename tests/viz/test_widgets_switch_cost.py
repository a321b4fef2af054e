"""The price of a switch under a slider: slowdowns worked out by hand, and the panel follows. Knows no notebook."""

import random

import pytest

from mini_vllm.errors import ConfigError
from mini_vllm.os_sched import FCFS, BatchMachine, Job, RoundRobin
from mini_vllm.viz.explore import SettingsTable
from mini_vllm.viz.plots import Picture
from mini_vllm.viz.switch_cost import COMEBACK, PRICES, START, SWITCH, PricedRace, Request, SwitchCost, bars
from mini_vllm.viz.widgets import make_panel

# Work 20, 10 and 40, 70 units in all: at a load of 0.7 they come over 100, so that the CPU's times are those given.
THREE = [Request(0, 100, 20), Request(0, 50, 10), Request(100, 80, 40)]


def crowd(count=40):
    rng = random.Random(7)
    return [Request(40 * i, rng.randint(500, 3000), rng.choice((5, 10, 200))) for i in range(count)]


@pytest.mark.parametrize(
    ("price", "fcfs", "srtf", "rr"),
    [
        # FCFS: A 20/20, B 30/10. SRTF: B 10/10, A 30/20. RR: A 10, B 20/10, A 30/20. C has the CPU to itself.
        (0, (1 + 3 + 1) / 3, (1 + 1.5 + 1) / 3, (1.5 + 2 + 1) / 3),
        # A switch takes 10 units. FCFS: B is done at 40. SRTF: A at 40. RR: B at 30, A at 50. C at 150, of 40.
        (1, (1 + 4 + 1.25) / 3, (1 + 2 + 1.25) / 3, (3 + 2.5 + 1.25) / 3),
    ],
)
def test_slowdowns_on_the_cpu_by_hand(price, fcfs, srtf, rr):
    run = PricedRace(THREE).run({**START, SWITCH: price})
    assert list(run["CPU"].values()) == pytest.approx([fcfs, srtf, rr])


def test_a_free_return_is_the_machine_that_does_not_exist_and_half_the_price_is_paid_each_way():
    race = PricedRace(crowd(), seats=2)
    for price, how in ((0, {"comeback": "free"}), (80, {"comeback": "swap", "swap_ms": lambda kv: 0.04 * kv})):
        jobs = [Job(f"j{i}", r.arrived_ms, r.work, prompt=r.prompt) for i, r in enumerate(crowd())]
        BatchMachine(RoundRobin(10), 2, 40_000, **how).run(jobs)
        alone = {(job.prompt, job.work): Job("alone", 0, job.work, prompt=job.prompt) for job in jobs}
        for lone in alone.values():
            BatchMachine(FCFS(), 2, 40_000).run([lone])
        mean = sum(job.turnaround / alone[job.prompt, job.work].turnaround for job in jobs) / len(jobs)
        assert race.run({**START, COMEBACK: price})["server"]["RR"] == pytest.approx(mean)


def test_round_robin_collapses_on_both_machines_and_first_come_first_served_does_not_care():
    rows = PricedRace(crowd(), seats=2).one_at_a_time()
    for control in PRICES:
        fcfs, _, rr = zip(*(found for _, found in rows[control]), strict=True)
        assert list(rr) == sorted(rr) and rr[-1] / rr[0] > 2 * fcfs[-1] / fcfs[0]
    assert len({fcfs for _, (fcfs, *_) in rows[COMEBACK]}) == 1, "it sends nobody away"
    (_, free), *_ = rows[SWITCH]
    assert free[2] < free[0], "with free switches round robin is the better one on a CPU"


def test_the_table_shows_the_machine_whose_price_moves():
    race = PricedRace(THREE)
    table = SettingsTable(race)
    assert table.headings == ("FCFS", "SRTF", "RR")
    assert [value for value, _ in table.rows[SWITCH]] == list(PRICES[SWITCH])
    figures = race.figures(race.run({**START, COMEBACK: 0}))
    assert dict(table.rows[COMEBACK])[0] == figures[3:] and dict(table.rows[SWITCH])[0.0003] == figures[:3]
    assert table.html().count("<th scope=") == 4 + 2 + len(PRICES[SWITCH]) + len(PRICES[COMEBACK])


def test_requests_that_all_come_at_once_are_refused():
    for requests in ([], THREE[:1], THREE[:2]):
        with pytest.raises(ConfigError, match="different times: give at least two"):
            SwitchCost(requests)


def test_the_bars_are_the_slowdowns_on_an_axis_that_stays():
    few = {"CPU": {"FCFS": 2.0, "RR": 30.0}, "server": {"FCFS": 4.0, "RR": 8.0}}
    picture = bars(few)
    cpu, server = picture.figure.axes
    assert [patch.get_x() + patch.get_width() for ax in (cpu, server) for patch in ax.patches] == [2, 30, 4, 8]
    assert [text.get_text() for text in cpu.texts] == ["2", "30"]
    assert "CPU: FCFS 2, RR 30; server: FCFS 4, RR 8" in picture.alt and isinstance(picture, Picture)
    dearer = bars({**few, "CPU": {"FCFS": 2.5, "RR": 200.0}}).figure.axes[0]
    assert (
        dearer.get_xlim() == cpu.get_xlim() and bars({**few, "CPU": {"RR": 5000.0}}).figure.axes[0].get_xlim()[1] > 5e3
    )


def test_moving_a_slider_shows_the_race_at_that_price():
    pytest.importorskip("ipywidgets", reason="ipywidgets is not installed")
    panel = make_panel(SwitchCost(THREE))
    assert list(panel.controls) == [SWITCH, COMEBACK] and "start:" not in panel.figures.value
    panel.controls[SWITCH].value = 1
    race = panel.explorer.settings
    now, start = race.run({**START, SWITCH: 1}), race.figures(race.run(START))
    assert f"CPU RR <b>{race.figures(now)[2]}</b> (start: {start[2]})" in panel.figures.value
    assert panel.picture.value == bars(now).html()
    panel.controls[COMEBACK].value = 0
    assert panel.picture.value == bars(race.run({SWITCH: 1, COMEBACK: 0})).html()
