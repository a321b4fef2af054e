"""`mini-vllm simulate`. Knows arguments and words; the work is elsewhere. Chapter 12."""

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, fields
from pathlib import Path
from typing import Annotated, Any

import typer

from mini_vllm.errors import ConfigError, KVPoolTooSmallError, MissingDependencyError, PromptTooLongError
from mini_vllm.output_file import refuse_if_not_writable
from mini_vllm.roofline.hardware import known_hardware
from mini_vllm.roofline.known_models import known_models
from mini_vllm.sim.metrics import SLO, Metrics, e2e_ms, summarize, ttft_ms
from mini_vllm.sim.result import SimResult
from mini_vllm.sim.scenario import ARRIVALS, RANDOM, Scenario
from mini_vllm.sim.systems import SYSTEMS
from mini_vllm.sim.trace_files import SAMPLES
from mini_vllm.sim.workloads import Arrival, Source
from mini_vllm.trace.writer import TraceWriter

BASE = Scenario()
EXAMPLES = """
    mini-vllm simulate --rate 4 --slo ttft=1000,tpot=50

    mini-vllm simulate --compare vllm-v0 sarathi,max_num_batched_tokens=256

    mini-vllm simulate --workload random --prompt 2000 --output 100 --hardware H100-SXM --model llama-3.1-8b
"""


def simulate(
    model: Annotated[str, typer.Option("--model", "-m", help=", ".join(known_models()))] = BASE.model,
    hardware: Annotated[str, typer.Option(help=", ".join(known_hardware()))] = BASE.hardware,
    dtype: Annotated[str, typer.Option(help="Of weights and KV cache: float16, bfloat16, float32.")] = BASE.dtype,
    system: Annotated[str, typer.Option(help=f"Way to serve: {', '.join(SYSTEMS)}")] = BASE.system,
    workload: Annotated[
        str, typer.Option("--workload", "-w", help=f"{', '.join(SAMPLES)}, the file of a trace, or {RANDOM}.")
    ] = BASE.workload,
    rate: Annotated[
        float | None,
        typer.Option(
            "--rate", "-r", help="Requests per second, 2 if left out; recorded arrivals are stretched to it if given."
        ),
    ] = None,
    arrivals: Annotated[str, typer.Option(help=", ".join(ARRIVALS))] = BASE.arrivals,
    cv: Annotated[float, typer.Option(help="Unevenness of gamma arrivals, peak over mean of bursty ones.")] = BASE.cv,
    users: Annotated[int, typer.Option(help="Of closed arrivals: each waits for an answer.")] = BASE.users,
    prompt: Annotated[float, typer.Option(help="Mean prompt tokens of random lengths.")] = BASE.prompt_mean,
    output: Annotated[float, typer.Option(help="Mean output tokens of random lengths.")] = BASE.output_mean,
    spread: Annotated[float, typer.Option(help="Standard deviation over mean of random lengths; 0: all alike.")] = 1.0,
    requests: Annotated[int, typer.Option("--requests", "-n", help="How many.")] = BASE.num_requests,
    seed: Annotated[int, typer.Option(help="Another seed is another workload of the same kind.")] = BASE.seed,
    warmup: Annotated[float, typer.Option(help="Seconds whose arrivals are served but not measured.")] = 0.0,
    until: Annotated[float, typer.Option(help="Second at which to stop.")] = BASE.until_s,
    slo: Annotated[
        str | None, typer.Option(help="Bounds in ms for goodput: ttft=1000,tpot=50; also e2e and gap (longest ITL).")
    ] = None,
    limit: Annotated[
        list[str] | None,
        typer.Option("--set", help="A limit of the scheduler, NAME=VALUE; may be repeated. E.g. num_gpu_blocks=2000."),
    ] = None,
    calibration: Annotated[Path | None, typer.Option(help="Step-time constants of a measured machine.")] = None,
    compare: Annotated[
        tuple[str, str] | None,
        typer.Option(metavar="A B", help="Two runs side by side: each a system, NAME=VALUE, or several with commas."),
    ] = None,
    drop_unfittable: Annotated[
        bool, typer.Option("--drop-unfittable", help="Count requests that could never fit as refused, and go on.")
    ] = False,
    plot: Annotated[Path | None, typer.Option(help="Draw TTFT and latency as curves: .png, .svg or .pdf.")] = None,
    trace_out: Annotated[
        Path | None, typer.Option(help="Write every step to this file, for `mini-vllm play`. For a few requests.")
    ] = None,
    json_out: Annotated[Path | None, typer.Option("--json", help="Write scenario and metrics to this file.")] = None,
) -> None:
    """Predict how a server does under a load: the real scheduler, on a clock that a model of the card drives."""
    for path, option in ((plot, "--plot"), (trace_out, "--trace-out"), (json_out, "--json")):
        if path:
            refuse_if_not_writable(path, option)
    if trace_out and compare:
        raise ConfigError("--trace-out writes one run and --compare makes two; run them one by one")
    base = Scenario(
        model=model,
        hardware=hardware,
        dtype=dtype,
        system=system,
        workload=workload,
        rate=BASE.rate if rate is None and arrivals != "recorded" else rate,
        arrivals=arrivals,
        cv=cv,
        users=users,
        prompt_mean=prompt,
        prompt_cv=spread,
        output_mean=output,
        output_cv=spread,
        num_requests=requests,
        seed=seed,
        warmup_s=warmup,
        until_s=until,
        slo=parse_slo(slo) if slo else None,
        limits=parse_changes(limit or [], "--set"),
        calibration=str(calibration) if calibration else None,
    )
    scenarios = {what: variant(base, what) for what in compare} if compare else {base.system: base}
    if len(scenarios) < len(compare or (base,)):
        raise ConfigError(f"--compare {compare[0]} {compare[1]}: both are the same" if compare else "")
    results: dict[str, SimResult] = {}
    for name, scenario in scenarios.items():
        try:
            results[name] = _run(name, scenario, trace_out, drop_unfittable)
        except (KVPoolTooSmallError, PromptTooLongError) as error:
            raise type(error)(f"{error}; or pass over such requests: --drop-unfittable") from error
    metrics = {name: summarize(results[name], scenario.slo) for name, scenario in scenarios.items()}
    _print(base, scenarios, metrics)
    if trace_out:
        typer.echo(f"trace: {trace_out}; look at it with `mini-vllm play {trace_out}`", err=True)
    if plot:
        _plot(results, plot)
    if json_out:
        rows = {
            name: {"scenario": _plain(scenarios[name]), "metrics": found.to_dict()} for name, found in metrics.items()
        }
        json_out.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


simulate.__doc__ = f"{simulate.__doc__}\n\nExamples:\n{EXAMPLES}"


def parse_slo(text: str) -> SLO:
    """ "ttft=1000,tpot=50" in milliseconds. Raises ConfigError that names the part."""
    bounds = parse_changes(text.split(","), "--slo")
    known = [field.name.removesuffix("_ms") for field in fields(SLO)]
    for name, value in bounds.items():
        if name not in known or not isinstance(value, int | float):
            usage = ", ".join(f"{n}=MILLISECONDS" for n in known)
            raise ConfigError(f"--slo {name}={value!r}: give one or more of {usage}, with commas between them")
    return SLO(**{f"{name}_ms": value for name, value in bounds.items()})


def parse_changes(parts: list[str], option: str) -> dict[str, Any]:
    """NAME=VALUE each; values are numbers, true, false, none, or else words."""
    changes: dict[str, Any] = {}
    for part in parts:
        name, equals, value = part.strip().partition("=")
        if not equals or not name:
            raise ConfigError(f"{option} {part!r}: give NAME=VALUE")
        changes[name.strip()] = _value(value.strip())
    return changes


def _value(text: str) -> Any:
    words = {"true": True, "false": False, "none": None}
    if text.lower() in words:
        return words[text.lower()]
    for number in (int, float):
        try:
            return number(text)
        except ValueError:
            pass
    return text


def variant(base: Scenario, what: str) -> Scenario:
    """A scenario changed by words: "sarathi,max_num_batched_tokens=256", "rate=4"."""
    changes: dict[str, Any] = {}
    for part in what.split(","):
        changes |= {"system": part.strip()} if "=" not in part else parse_changes([part], "--compare")
    return base.changed(**changes)


def _run(name: str, scenario: Scenario, trace_out: Path | None, drop_unfittable: bool) -> SimResult:
    with _counted(name, scenario) as workload:
        return scenario.simulator().run(
            workload,
            warmup_s=scenario.warmup_s,
            until_s=scenario.until_s,
            drop_unfittable=drop_unfittable,
            trace=TraceWriter(trace_out) if trace_out else False,
        )


@contextmanager
def _counted(name: str, scenario: Scenario) -> Iterator[Any]:
    """The workload, and where a person watches a bar of how many of its requests have come."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    workload = scenario.requests()
    columns = (TextColumn(name), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    hidden = not sys.stderr.isatty()
    with Progress(*columns, console=Console(stderr=True), disable=hidden, transient=True) as progress:
        task = progress.add_task("", total=scenario.num_requests)
        yield workload if hidden else _Counting(workload, lambda: progress.advance(task))


class _Counting:
    """A workload that says when one of its requests comes."""

    def __init__(self, workload: Any, advance: Callable[[], None]):
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


def _print(base: Scenario, scenarios: dict[str, Scenario], metrics: dict[str, Metrics]) -> None:
    from rich.console import Console

    from mini_vllm.sim.report import report

    console = Console()
    rate = f" at {base.rate:g}/s" if base.rate is not None and base.arrivals not in ("at-once", "closed") else ""
    console.print(
        f"{base.model} in {base.dtype} on {base.hardware}: {base.num_requests:,} requests of {base.workload}, "
        f"{base.arrivals}{rate}, seed {base.seed}",
        highlight=False,
    )
    for name, scenario in scenarios.items():
        config = scenario.config()
        console.print(
            f"{name}: {config.num_gpu_blocks:,} KV blocks of {config.block_size}, at most {config.max_num_seqs} "
            f"requests and {config.max_num_batched_tokens:,} tokens a step",
            highlight=False,
        )
    console.print(report(metrics))


def _plot(results: dict[str, SimResult], path: Path) -> None:
    try:
        from mini_vllm.viz.curve_plots import cdf
    except ModuleNotFoundError as error:
        raise MissingDependencyError(
            f"--plot needs {error.name!r}; in the repository: pip install -e '.[book]'"
        ) from error
    samples: dict[str, list[float]] = {}
    for name, result in results.items():
        rows = [row for row in result.log if row.arrived_s >= result.warmup_s]
        if waiting := sum(not row.finished for row in rows):
            raise ConfigError(
                f"--plot shows whole runs; {waiting} requests of {name} are unfinished: leave out --until"
            )
        for metric, words in ((ttft_ms, "TTFT"), (e2e_ms, "E2E")):
            samples[f"{words}, {name}" if len(results) > 1 else words] = [metric(row) for row in rows]
    alt = f"Share of requests by time to first token and by end-to-end latency: {', '.join(results)}"
    cdf(samples, x_label="milliseconds", log_x=True, alt=alt).save(path)
    typer.echo(f"plot: {path}", err=True)


def _plain(scenario: Scenario) -> dict[str, Any]:
    stored = asdict(scenario)
    return {**stored, "until_s": None if scenario.until_s == float("inf") else scenario.until_s}
