"""The price of a switch under a slider, on a CPU and on a batch machine. Knows both machines of `os_sched`. Chapter 3.

Round robin lives on cheap switches. On a CPU they are cheap; on a server, coming back costs KV.
"""

from collections.abc import Callable, Iterable, Mapping
from functools import cache
from statistics import fmean
from typing import Any, NamedTuple

from mini_vllm.errors import ConfigError
from mini_vllm.os_sched import CPU, FCFS, SRTF, BatchMachine, Job, Policy, RoundRobin
from mini_vllm.viz.explore import Experiment
from mini_vllm.viz.style import BLUE, INK, Picture, house_style, panels, short
from mini_vllm.viz.widgets import Sliders

SLICE_UNITS, LOAD = 10, 0.7
POLICIES: dict[str, Callable[[], Policy]] = {"FCFS": FCFS, "SRTF": SRTF, "RR": lambda: RoundRobin(SLICE_UNITS)}
MACHINES = ("CPU", "server")
SWITCH, COMEBACK = "CPU switch (slices)", "return (ms/1,000 tokens)"
PRICES = {
    SWITCH: (0, 0.0003, 0.1, 0.25, 0.5, 1, 2, 4),  # 3 µs of a slice of 10 ms is what an operating system pays
    COMEBACK: (0, 1, 3, 10, 30, 90, 180),  # swapping takes about 10, computing again about 90
}
START = {SWITCH: 0.0003, COMEBACK: 90}
LEFT, RIGHT = 1.0, 1000.0  # of the axis, the same at every price


class Request(NamedTuple):
    """arrived_ms; tokens of the prompt and of the answer."""

    arrived_ms: float
    prompt: int
    work: int


class PricedRace(Experiment):
    """Mean slowdowns of three policies on two machines, for each price of a switch.

    On the CPU one request runs at a time, a unit of work for each output token; arrivals are stretched until it is
    busy for LOAD of the time, switching not counted. On the server the requests come as they are.
    """

    headings = tuple(f"{machine} {policy}" for machine in MACHINES for policy in POLICIES)
    columns = tuple(POLICIES)
    units = ("",) * len(headings)
    words = "mean slowdowns on the machine whose price moves."

    def __init__(self, requests: Iterable[Request], *, seats: int = 16, kv_tokens: int = 40_000) -> None:
        self.requests = list(requests)
        if len({request.arrived_ms for request in self.requests}) < 2:
            raise ConfigError("the race needs requests that come at different times: give at least two")
        super().__init__(START, PRICES)
        self.seats, self.kv_tokens = seats, kv_tokens
        self.on_cpu, self.on_server = cache(self._on_cpu), cache(self._on_server)

    def run(self, values: Mapping[str, Any]) -> dict[str, dict[str, float]]:
        """machine -> policy -> mean slowdown."""
        return {
            "CPU": {name: self.on_cpu(name, values[SWITCH]) for name in POLICIES},
            "server": {name: self.on_server(name, values[COMEBACK]) for name in POLICIES},
        }

    def figures(self, run: Any) -> list[float]:
        return [round(run[machine][policy], 1) for machine in MACHINES for policy in POLICIES]

    def row(self, control: str, run: Any) -> list[float]:
        """Of the machine whose price moves: the other one stays as it was."""
        figures = self.figures(run)
        return figures[: len(POLICIES)] if control == SWITCH else figures[len(POLICIES) :]

    def _on_cpu(self, policy: str, price: float) -> float:
        first, last = (pick(request.arrived_ms for request in self.requests) for pick in (min, max))
        stretch = sum(request.work for request in self.requests) / LOAD / (last - first)
        jobs = [Job(f"r{i}", (r.arrived_ms - first) * stretch, r.work) for i, r in enumerate(self.requests)]
        CPU(POLICIES[policy](), switch_cost=price * SLICE_UNITS).run(jobs)
        return fmean(job.turnaround / job.work for job in jobs)

    def _on_server(self, policy: str, ms_per_1000: float) -> float:
        jobs = [Job(f"r{i}", r.arrived_ms, r.work, prompt=r.prompt) for i, r in enumerate(self.requests)]
        # Half of the price on the way out, half on the way in.
        half = ms_per_1000 / 2000
        BatchMachine(
            POLICIES[policy](), self.seats, self.kv_tokens, comeback="swap", swap_ms=lambda tokens: half * tokens
        ).run(jobs)
        return fmean(job.turnaround / self._alone_ms(job.prompt, job.work) for job in jobs)

    def _alone_ms(self, prompt: int, work: int) -> float:
        lone = Job("lone", 0, work, prompt=prompt)
        BatchMachine(FCFS(), self.seats, self.kv_tokens).run([lone])
        return lone.turnaround


def bars(run: Mapping[str, Mapping[str, float]]) -> Picture:
    """Mean slowdowns as bars, one panel a machine, on one logarithmic axis that does not move with the prices."""
    said = [f"{m}: {', '.join(f'{policy} {short(found)}' for policy, found in of.items())}" for m, of in run.items()]
    right = max(RIGHT, *(4 * found for of in run.values() for found in of.values()))
    with house_style():
        figure, axes = panels(len(run), 2.9)
        for ax, (machine, of) in zip(axes, run.items(), strict=True):
            places = range(len(of))[::-1]
            ax.barh(places, [found - LEFT for found in of.values()], left=LEFT, height=0.62, color=BLUE)
            for place, found in zip(places, of.values(), strict=True):
                ax.text(found * 1.12, place, short(found), va="center", color=INK)
            ax.set_yticks(places, list(of))
            ax.set_title("one CPU" if machine == "CPU" else "batch machine")
            ax.set_xscale("log")
            ax.set_xlim(LEFT, right)
            ax.xaxis.set_major_formatter(lambda value, _: short(value))
        axes[-1].set_xlabel("mean slowdown (1 = as if alone)")
        return Picture(figure, f"Mean slowdown of three policies as bars. {'; '.join(said)}.")


class SwitchCost(Sliders):
    """Two sliders, the price of a switch on each machine, over the mean slowdowns of FCFS, SRTF and round robin."""

    def __init__(self, requests: Iterable[Request], *, seats: int = 16, kv_tokens: int = 40_000) -> None:
        super().__init__(PricedRace(requests, seats=seats, kv_tokens=kv_tokens), bars)
