"""Many simulations: a grid of choices times some seeds, in parallel, resumable. Knows no simulator. Chapter 12.

    result = sweep(Scenario().measure, {"rate": [1, 2, 4], "system": ["vllm", "sarathi"]}, seeds=range(3))

A point that fails is a result, too: it is reported, and the others go on. The order and the numbers of the rows do not
depend on the number of workers nor on the backend.
"""

import itertools
import json
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, is_dataclass
from pathlib import Path
from typing import Any

from mini_vllm.errors import ConfigError
from mini_vllm.output_file import refuse_if_not_writable
from mini_vllm.roofline.arguments import require_seeds
from mini_vllm.sim.metrics import Metrics, confidence_interval
from mini_vllm.sim.pareto import HIGH, LOW, pareto_front
from mini_vllm.sim.sweep_backends import Job, get_backend
from mini_vllm.sim.sweep_file import SweepFile

Measured = Metrics | Mapping[str, Any]


@dataclass(frozen=True)
class SweepRow:
    """One run: the point of the grid, the seed, and its metrics as plain data; or the error that it ended with."""

    point: dict[str, Any]
    seed: int
    metrics: dict[str, Any] | None
    error: str | None

    def get(self, name: str) -> float:
        """A metric by name, with a dot for the parts of a distribution: "ttft_ms.p99". NaN if the run failed.

        Infinite where it fell on requests that were never served.
        """
        value: Any = self.metrics
        if value is None:
            return math.nan
        parts = name.split(".")
        for part in parts:
            if not isinstance(value, Mapping) or part not in value:
                known = ", ".join(value) if isinstance(value, Mapping) else "no parts"
                raise ConfigError(f"metric {name!r}: {part!r} is not there; there are {known}")
            count, value = value.get("count"), value[part]
        if isinstance(value, Mapping):
            raise ConfigError(f"metric {name!r} is a distribution; say which part: {name}.{', '.join(value)}")
        return (math.inf if count else math.nan) if value is None else value


@dataclass(frozen=True)
class SweepResult:
    """All rows, in the order of the grid, and for each point in the order of the seeds."""

    rows: list[SweepRow]

    def __iter__(self) -> Iterator[SweepRow]:
        return iter(self.rows)

    @property
    def failures(self) -> list[SweepRow]:
        """The runs that ended with an error."""
        return [row for row in self.rows if row.error is not None]

    def summary(self, *names: str) -> dict[str, dict[str, tuple[float, float]]]:
        """For each point and metric: mean over the seeds, and half the width of its 95 % confidence interval.

        A point of which a run failed has no mean: it is left out, and stands in `failures`.
        """
        failed = {label(row.point) for row in self.failures}
        groups: dict[str, list[SweepRow]] = {}
        for row in self.rows:
            if label(row.point) not in failed:
                groups.setdefault(label(row.point), []).append(row)
        return {
            point: {name: confidence_interval([row.get(name) for row in rows]) for name in names}
            for point, rows in groups.items()
        }

    def pareto(self, x: str, y: str, *, x_best: str = LOW, y_best: str = HIGH) -> list[str]:
        """Labels of the points whose means of `x` and `y` are beaten by no other's on both axes."""
        points = {point: (values[x][0], values[y][0]) for point, values in self.summary(x, y).items()}
        known = {point: xy for point, xy in points.items() if not any(map(math.isnan, xy))}
        return pareto_front(known, x_best=x_best, y_best=y_best)


def label(point: Mapping[str, Any]) -> str:
    """A point in words: "rate=2, system=vllm"."""
    return ", ".join(f"{name}={value}" for name, value in point.items())


def expand(grid: Mapping[str, Iterable[Any]] | Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """All points of a grid: every combination of its values; or the points themselves, if they are listed."""
    if not isinstance(grid, Mapping):
        listed = list(grid) if isinstance(grid, Iterable) else [grid]
        if not all(isinstance(point, Mapping) for point in listed):
            raise ConfigError(f"the grid is {grid!r}; give name -> list of values, or a list of points name -> value")
        points = [dict(point) for point in listed]
    else:
        for name, values in grid.items():
            if isinstance(values, str) or not isinstance(values, Iterable):
                raise ConfigError(f"grid[{name!r}] is {values!r}; give a list of values, if only [{values!r}]")
        axes = {name: list(values) for name, values in grid.items()}
        points = [dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())]
    if not points:
        raise ConfigError("the grid is empty: a name has no values, or no point is listed")
    if len({label(point) for point in points}) != len(points):
        raise ConfigError("the grid has the same point twice; give every value of a name once")
    return points


def sweep(
    run: Callable[..., Measured],
    grid: Mapping[str, Iterable[Any]] | Iterable[Mapping[str, Any]],
    seeds: Iterable[int] = (0,),
    *,
    workers: int | None = None,
    backend: str = "local",
    results: str | os.PathLike | None = None,
    progress: bool | None = None,
) -> SweepResult:
    """Call `run(**point, seed=seed)` for all points and seeds.

    run: returns `Metrics` or a flat mapping of numbers; must be importable in other processes (`Scenario(...).measure`,
        or a function of a module), unless workers=1. A script calls sweep() under `if __name__ == "__main__":`, since
        the other processes import it, too.
    workers: processes at once; None is one for each CPU; 1 runs here, one after the other.
    backend: "local", or "ray": on the cluster that `ray.init()` has joined, or else on this machine.
    results: a file of JSON lines to which every finished run is added. If it exists already, the runs in it are not
        repeated, except those that failed.
    progress: show a bar; None is only where a person watches.
    """
    points, seeds = expand(grid), require_seeds(seeds)
    if not callable(run) or isinstance(run, type):
        raise ConfigError(f"run is {run!r}; give a function of a point and a seed, such as Scenario(...).measure")
    if workers is not None and (type(workers) is not int or workers < 1):
        raise ConfigError(f"workers={workers!r} must be a whole number of at least 1, or None for all CPUs")
    jobs = [Job(point, seed) for point in points for seed in seeds]
    if results is not None:
        refuse_if_not_writable(Path(results), "results")
    file = SweepFile(Path(results), describe(run)) if results is not None else None
    done = file.read() if file else {}
    to_do = [(i, job) for i, job in enumerate(jobs) if done.get(job.key, (None, "not there"))[1] is not None]
    found: dict[int, tuple[dict[str, Any] | None, str | None]] = {}
    execute = get_backend(backend)
    with _progress_bar(len(jobs), len(jobs) - len(to_do), progress) as advance:
        for place, outcome in execute(run, [job for _, job in to_do], workers or os.cpu_count() or 1):
            i, job = to_do[place]
            found[i] = outcome
            if file:
                file.append(job, *outcome)
            advance()
    outcomes = [found[i] if i in found else done[job.key] for i, job in enumerate(jobs)]
    return SweepResult([SweepRow(job.point, job.seed, *out) for job, out in zip(jobs, outcomes, strict=True)])


def describe(run: Callable[..., Measured]) -> str:
    """What a sweep is of: the function, and the object that it belongs to."""
    owner = getattr(run, "__self__", None)
    name = f"{run.__module__}.{getattr(run, '__qualname__', repr(run))}"
    if is_dataclass(owner) and not isinstance(owner, type):
        return f"{name} of {json.dumps(asdict(owner), sort_keys=True, default=repr)}"
    return name


@contextmanager
def _progress_bar(total: int, done: int, wanted: bool | None) -> Iterator[Callable[[], None]]:
    """A bar on standard error over `total` runs, `done` of which need not be made; yields what to call after each."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    hidden = not (console.is_terminal if wanted is None else wanted)
    columns = (TextColumn("simulating"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, disable=hidden) as progress:
        task = progress.add_task("", total=total, completed=done)
        yield lambda: progress.advance(task)
