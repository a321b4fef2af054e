"""`mini-vllm simulate`. Knows arguments and words; the work is elsewhere. Chapter 12."""

import json
from collections.abc import Callable
from dataclasses import asdict, fields
from pathlib import Path
from typing import Annotated, Any

import typer

from mini_vllm.errors import ConfigError, KVPoolTooSmallError, MissingDependencyError, PromptTooLongError
from mini_vllm.output_file import refuse_if_not_writable, refuse_same_file
from mini_vllm.roofline.hardware import known_hardware
from mini_vllm.roofline.known_models import known_models
from mini_vllm.sim.metrics import SLO, Metrics, e2e_ms, summarize, ttft_ms
from mini_vllm.sim.progress import with_bar
from mini_vllm.sim.result import SimResult
from mini_vllm.sim.scenario import ARRIVALS, RANDOM, Scenario
from mini_vllm.sim.systems import SYSTEMS
from mini_vllm.sim.trace_files import SAMPLES
from mini_vllm.trace.writer import TraceWriter

BASE = Scenario()
# Options that only some scenarios read: which, and what to choose so that they do.
READ_BY: dict[str, tuple[Callable[[Scenario], bool], str]] = {
    "rate": (lambda s: s.arrivals not in ("at-once", "closed"), "arrivals with a rate, such as --arrivals poisson"),
    "cv": (lambda s: s.arrivals in ("gamma", "bursty"), "--arrivals gamma or bursty"),
    "users": (lambda s: s.arrivals == "closed", "--arrivals closed"),
    "prompt": (lambda s: s.workload == RANDOM, f"--workload {RANDOM}"),
    "output": (lambda s: s.workload == RANDOM, f"--workload {RANDOM}"),
    "spread": (lambda s: s.workload == RANDOM, f"--workload {RANDOM}"),
}
LONGEST_HEADING = 9  # of four columns in a window of 80 characters
EXAMPLES = """
    mini-vllm simulate --rate 4 --slo ttft=1000,tpot=50

    mini-vllm simulate --compare vllm-v0 sarathi,max_num_batched_tokens=256

    mini-vllm simulate --workload random --prompt 2000 --output 100 --hardware H100-SXM --model llama-3.1-8b
"""


def simulate(
    ctx: typer.Context,
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
    outputs = {"--plot": plot, "--trace-out": trace_out, "--json": json_out}
    files = {option: path for option, path in outputs.items() if path}
    for option, path in files.items():
        refuse_if_not_writable(path, option, [Path(workload), *([calibration] if calibration else [])])
    refuse_same_file(files)
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
        slo=None if slo is None else parse_slo(slo),
        limits=parse_changes(limit or [], "--set"),
        calibration=str(calibration) if calibration else None,
    )
    scenarios = {what: variant(base, what) for what in compare} if compare else {base.system: base}
    if len(scenarios) < len(compare or (base,)):
        raise ConfigError(f"--compare {compare[0]} {compare[1]}: both are the same" if compare else "")
    _refuse_idle_options(ctx, list(scenarios.values()))
    results: dict[str, SimResult] = {}
    for name, scenario in scenarios.items():
        try:
            results[name] = _run(name, scenario, trace_out, drop_unfittable)
        except (KVPoolTooSmallError, PromptTooLongError) as error:
            raise type(error)(f"{error}; or pass over such requests: --drop-unfittable") from error
    metrics = {name: summarize(results[name], scenario.slo) for name, scenario in scenarios.items()}
    _print(scenarios, metrics)
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
        if name.strip() in changes:
            raise ConfigError(f"{option} gives {name.strip()} twice; give it once")
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
    with with_bar(name, scenario) as workload:
        return scenario.simulator().run(
            workload,
            warmup_s=scenario.warmup_s,
            until_s=scenario.until_s,
            drop_unfittable=drop_unfittable,
            trace=TraceWriter(trace_out) if trace_out else False,
        )


def _refuse_idle_options(ctx: typer.Context, scenarios: list[Scenario]) -> None:
    """Raise ConfigError if an option was given that no scenario reads: whoever gave it expects another run."""
    for name, (is_read, needs) in READ_BY.items():
        source = ctx.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE" and not any(map(is_read, scenarios)):
            raise ConfigError(f"--{name} {ctx.params[name]} changes nothing here: it needs {needs}")


def _print(scenarios: dict[str, Scenario], metrics: dict[str, Metrics]) -> None:
    from rich.console import Console

    from mini_vllm.sim.report import report

    def say(text: str) -> None:
        console.print(text, highlight=False)

    console = Console()
    are_short = all(len(name) <= LONGEST_HEADING for name in scenarios)
    headings = {name: name if are_short else letter for name, letter in zip(scenarios, "AB", strict=False)}
    abouts = {name: _about(scenario) for name, scenario in scenarios.items()}
    in_common = len(set(abouts.values())) == 1
    if in_common:
        say(next(iter(abouts.values())))
    for name, scenario in scenarios.items():
        config = scenario.config()
        say(
            (name if are_short else f"{headings[name]} = {name}")
            + ("" if in_common else f": {abouts[name]}")
            + f": {config.num_gpu_blocks:,} KV blocks of {config.block_size}, at most {config.max_num_seqs} "
            f"requests and {config.max_num_batched_tokens:,} tokens a step"
        )
    console.print(report({headings[name]: found for name, found in metrics.items()}))


def _about(s: Scenario) -> str:
    """Model, card and load of a scenario in words."""
    lengths = f"random lengths of {s.prompt_mean:g} + {s.output_mean:g} tokens" if s.workload == RANDOM else s.workload
    arrivals = s.arrivals
    if s.arrivals == "closed":
        arrivals += f" with {s.users} users"
    elif s.rate is not None and s.arrivals != "at-once":
        arrivals += f" at {s.rate:g}/s"
    return (
        f"{s.model} in {s.dtype} on {s.hardware}: {s.num_requests:,} requests of {lengths}, {arrivals}, seed {s.seed}"
    )


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
