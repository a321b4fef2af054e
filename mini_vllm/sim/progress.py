"""A bar on standard error: how many requests of a simulated workload have come. Knows no server. Chapter 12."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from mini_vllm.sim.scenario import Scenario
from mini_vllm.sim.workloads import Arrival, Source, Startable


@contextmanager
def with_bar(name: str, scenario: Scenario) -> Iterator[Startable]:
    """The scenario's workload; where a person watches, a bar moves with each of its requests."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    workload = scenario.requests()
    columns = (TextColumn(name), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    hidden = not sys.stderr.isatty()
    with Progress(*columns, console=Console(stderr=True), disable=hidden, transient=True) as progress:
        task = progress.add_task("", total=scenario.num_requests)
        yield workload if hidden else Counting(workload, lambda: progress.advance(task))


class Counting:
    """A workload that says when one of its requests comes."""

    def __init__(self, workload: Startable, advance: Callable[[], None]):
        self.workload = workload
        self.advance = advance

    def start(self) -> Source:
        return _CountingSource(self.workload.start(), self.advance)


class _CountingSource(Source):
    def __init__(self, source: Source, advance: Callable[[], None]):
        super().__init__(filter(None, map(self._count, source.arrivals)))
        self._after, self._advance = source.after, advance

    def _count(self, arrival: Arrival | None) -> Arrival | None:
        if arrival is not None:
            self._advance()
        return arrival

    def after(self, done: Arrival, now_s: float) -> Arrival | None:
        return self._count(self._after(done, now_s))
