"""`mini-vllm trace …` and `mini-vllm play`. Knows arguments, words and exit codes; the work is elsewhere. Chapter 4."""

import re
import webbrowser
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from mini_vllm.config import SchedulerConfig
from mini_vllm.errors import ConfigError, MiniVLLMError, TraceFormatError
from mini_vllm.output_file import refuse_if_not_writable
from mini_vllm.trace.convert import from_vllm_recording, is_recording, load_run, replayed
from mini_vllm.trace.diff import Comparison, compare
from mini_vllm.trace.perfetto import export_perfetto
from mini_vllm.trace.reader import is_trace
from mini_vllm.trace.schema import step_fields
from mini_vllm.trace.trace import Trace

app = typer.Typer(help="Look into traces: show, validate, compare, export, replay.", no_args_is_help=True)

RUN = "A trace (JSON lines, also .gz) or a recorded run of vLLM (.json)."
RunFile = Annotated[Path, typer.Argument(help=RUN)]
Partial = Annotated[bool, typer.Option("--partial", help="Take the whole steps of a file that was cut off.")]
LIMITS = ("max_num_seqs", "max_num_batched_tokens", "max_model_len", "num_gpu_blocks", "block_size")


class Format(StrEnum):
    perfetto = "perfetto"
    jsonl = "jsonl"


class Lock(StrEnum):
    step = "step"
    time = "time"


@contextmanager
def _errors_as_one_line(exit_code: int = 1) -> Iterator[None]:
    try:
        yield
    except MiniVLLMError as error:
        typer.echo(f"error: {error}", err=True)
    except BrokenPipeError:  # the reader of our output has had enough
        raise
    except OSError as error:
        typer.echo(f"error: {error.filename or 'file'}: {error.strerror or error}", err=True)
    else:
        return
    raise typer.Exit(exit_code)


def _load(file: Path, partial: bool = False) -> Trace:
    _refuse_if_no_file(file, f"make one with `mini-vllm generate … --trace {file}`")
    return load_run(file, partial=partial)


def _refuse_if_no_file(file: Path, way_out: str) -> None:
    if not file.exists():
        raise TraceFormatError(f"{file} does not exist; {way_out}")
    if file.is_dir():
        raise TraceFormatError(f"{file} is a folder; give a file in it, or {way_out}")


def _check_target(target: Path, inputs: Iterable[Path], may_replace_traces: bool = False) -> None:
    """A recording cannot be made again, nor can a trace of another run by writing something else over it."""
    refuse_if_not_writable(target, "--out", inputs)
    if target.is_file():
        holds = "a recorded run of vLLM" if is_recording(target) else "a trace" if is_trace(target) else ""
        if holds and not (may_replace_traces and holds == "a trace"):
            raise ConfigError(f"--out {target} holds {holds}; give another name, or delete it first")


def play(
    file: RunFile,
    other: Annotated[Path | None, typer.Argument(help="A second run of the same requests, to play beside it.")] = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Where to write the page; beside FILE if left out.")
    ] = None,
    open_browser: Annotated[bool, typer.Option("--open/--no-open", help="Open it in the browser.")] = True,
    lock: Annotated[Lock, typer.Option(help="Two runs: show the same step of both, or the same moment.")] = Lock.step,
    partial: Partial = False,
) -> None:
    """Open a run in the step player, or two runs side by side: one page that needs no network."""
    from mini_vllm.viz import ABPlayer, StepPlayer

    with _errors_as_one_line():
        run, second = _load(file, partial), _load(other, partial) if other else None
        page = out or file.with_name(_page_name(file, other))
        _check_target(page, [file, other] if other else [file])
        if second is None or other is None:
            StepPlayer(run).save(page)
        else:
            both = ABPlayer(run, second, _labels(file, other), lock=lock.value)
            both.save(page)
            typer.echo(both.verdict() or "two runs on one clock")
        typer.echo(f"player: {page}")
        if open_browser and not webbrowser.open(page.resolve().as_uri()):
            typer.echo(f"no browser found; open it yourself: {page.resolve().as_uri()}", err=True)


def _page_name(file: Path, other: Path | None) -> str:
    names = [each.name.removesuffix(".gz").rpartition(".")[0] or each.name for each in (file, other) if each]
    return "-against-".join(names) + ".html"


def _labels(a: Path, b: Path) -> tuple[str, str]:
    """File names; whole paths where the names are the same, and letters where it is one file twice."""
    for one, other in ((a.name, b.name), (str(a), str(b))):
        if one != other:
            return one, other
    return f"{a.name} (A)", f"{b.name} (B)"


@app.command()
def show(
    file: RunFile,
    steps: Annotated[str | None, typer.Option(help='Steps to tell in words: "7", "3-12", "30-" or "all".')] = None,
    partial: Partial = False,
) -> None:
    """Say what a run is: its limits, its requests, what held them up; with --steps also step by step in words."""
    with _errors_as_one_line():
        trace = _load(file, partial)
        told = _told(trace, steps) if steps is not None else []
        for line in (*_about(trace), *_request_table(trace), *told):
            typer.echo(line)


@app.command()
def validate(
    files: Annotated[list[Path], typer.Argument(help=f"Each: {RUN}")],
    partial: Partial = False,
) -> None:
    """Check files line by line against the schema. Exit code 1 if one of them is broken."""
    num_broken = 0
    for file in files:
        try:
            trace = _load(file, partial)
        except (MiniVLLMError, OSError) as error:
            num_broken += 1
            typer.echo(f"error: {error}", err=True)
            continue
        unknown = sorted({name for record in trace.steps for name in record} - set(step_fields()))
        note = f"; fields that the schema does not know: {', '.join(unknown)}" if unknown else ""
        typer.echo(f"{file}: ok, {_size(trace)}{note}")
    raise typer.Exit(1 if num_broken else 0)


@app.command()
def diff(
    a: RunFile,
    b: RunFile,
    reasons: Annotated[bool, typer.Option("--reasons", help="Compare blocked_reason, too.")] = False,
    partial: Partial = False,
) -> None:
    """Find the first step and field in which two runs differ.

    Exit code 0: no difference; 1: a difference; 2: the files cannot be compared.
    """
    with _errors_as_one_line(exit_code=2):
        runs = [_load(file, partial) for file in (a, b)]
        comparison = compare(*runs, reasons=reasons)
        for name, file, trace in zip("AB", (a, b), runs, strict=True):
            typer.echo(f"{name}  {file}: {_size(trace)}")
        for line in _comparison_lines(comparison):
            typer.echo(line)
    raise typer.Exit(1 if comparison.difference else 0)


@app.command()
def export(
    file: RunFile,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Where to write it; beside FILE if left out.")] = None,
    format: Annotated[
        Format, typer.Option("--format", "-f", help="perfetto: for ui.perfetto.dev; jsonl: a trace file of ours.")
    ] = Format.perfetto,
    partial: Partial = False,
) -> None:
    """Write a run in another format; .gz at the end of --out compresses it.

    perfetto: a timeline that ui.perfetto.dev and chrome://tracing open. jsonl: what `play`, `diff` and Trace.load read;
    turns a recorded run of vLLM into a trace.
    """
    with _errors_as_one_line():
        trace = _load(file, partial)
        stem = file.name.removesuffix(".gz").rpartition(".")[0] or file.name
        target = out or file.with_name(stem + (".trace.jsonl" if format is Format.jsonl else ".perfetto.json"))
        _check_target(target, [file], may_replace_traces=format is Format.jsonl)
        if format is Format.jsonl:
            typer.echo(f"trace: {trace.save(target)}")
        else:
            typer.echo(f"perfetto: {export_perfetto(trace, target)}; open it at https://ui.perfetto.dev")


@app.command()
def replay(
    recording: Annotated[Path, typer.Argument(help="A recorded run of vLLM (.json).")],
    out: Annotated[Path, typer.Option("--out", "-o", help="Where to write our run.")],
) -> None:
    """Run our scheduler on the requests of a recorded vLLM run and write the trace, to play or compare with it."""
    with _errors_as_one_line():
        _refuse_if_no_file(recording, "recorded runs are in the repository, in tests/data/vllm_traces")
        if not is_recording(recording):
            raise TraceFormatError(f"{recording} is no recorded run of vLLM: it needs a scenario and a trace")
        _check_target(out, [recording], may_replace_traces=True)
        ours = replayed(recording)
        ours.save(out)
        difference = compare(from_vllm_recording(recording), ours).difference
        typer.echo(f"trace: {out}, {_size(ours)}")
        typer.echo(f"against vLLM: {difference or 'no difference'}; see both: mini-vllm play {recording} {out}")


def _comparison_lines(comparison: Comparison) -> Iterator[str]:
    difference = comparison.difference
    yield from (f"note: {note}" for note in comparison.notes)
    if difference is None:
        yield f"no difference in {_count(comparison.num_steps, 'step')}"
    else:
        yield f"first difference: step {difference.step}, {difference.place}"
        yield f"  A  {difference.a}"
        yield f"  B  {difference.b}"
        if difference.also:
            yield f"  the same step also differs in: {', '.join(difference.also)}"
        yield f"  the same before it: {_count(comparison.num_steps, 'step')}"
    yield f"compared: {', '.join(comparison.compared)}"
    by_reason: dict[str, list[str]] = {}
    for name, reason in comparison.not_compared.items():
        by_reason.setdefault(reason, []).append(name)
    yield from (f"not compared: {', '.join(names)} ({reason})" for reason, names in by_reason.items())


def _size(trace: Trace) -> str:
    """ "vllm, Scheduler, 83 steps (0 to 82), 5 requests"."""
    header, steps = trace.header, trace.steps
    who = [str(header[name]) for name in ("kind", "scheduler") if header.get(name)]
    span = f" ({steps[0]['step']} to {steps[-1]['step']})" if steps else ""
    return ", ".join([*who, _count(len(steps), "step") + span, _count(len(header.get("requests", {})), "request")])


def _count(n: int, noun: str) -> str:
    return f"{n} {noun}" if n == 1 else f"{n} {noun}s"


def _about(trace: Trace) -> Iterator[str]:
    header, steps = trace.header, trace.steps
    if header.get("title"):
        yield header["title"]
    yield _size(trace) + (f", vLLM {header['vllm_version']}" if "vllm_version" in header else "")
    if header.get("dropped_steps"):
        yield f"the {_count(header['dropped_steps'], 'step')} before are not kept; counts and tables tell of the others"
    config, usual = header.get("config", {}), asdict(SchedulerConfig())
    shown = [name for name in config if name in LIMITS or config[name] != usual.get(name, config[name])]
    yield "limits: " + (", ".join(f"{name} {config[name]}" for name in shown) or "not recorded")
    tokens = sum(n for record in steps for _, n in record["scheduled"])
    counts = {name: sum(len(record.get(name, ())) for record in steps) for name in ("preempted", "aborted", "finished")}
    sampled = sum(len(token_ids) for token_ids in trace.outputs().values())
    yield f"{tokens} tokens scheduled, {sampled} sampled; " + ", ".join(f"{n} {name}" for name, n in counts.items())
    reasons = Counter(record["blocked_reason"] for record in steps if record.get("blocked_reason"))
    if reasons:
        yield "the head of the queue waited: " + ", ".join(
            f"{_count(n, 'step')} for {why}" for why, n in reasons.most_common()
        )


def _request_table(trace: Trace) -> Iterator[str]:
    requests, first, last = trace.header.get("requests", {}), trace.first_token_step(), trace.finish_step()
    evicted = Counter(req_id for record in trace.steps for req_id in record.get("preempted", ()))
    rows = [("request", "arrives", "prompt", "max_tokens", "first token", "finishes", "preempted")]
    for req_id, facts in requests.items():
        known = [facts.get(name, "-") for name in ("arrival_step", "prompt_len", "max_tokens")]
        rows.append((req_id, *map(str, [*known, first.get(req_id, "-"), last.get(req_id, "-"), evicted[req_id]])))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for name, *cells in rows if requests else ():
        yield "  ".join([name.ljust(widths[0]), *(c.rjust(w) for c, w in zip(cells, widths[1:], strict=True))])


def _told(trace: Trace, steps: str) -> list[str]:
    """The chosen steps in words."""
    from mini_vllm.viz import StepPlayer

    wanted = re.fullmatch(r"(\d+)(?:(-)(\d*))?|all", steps)
    if wanted is None:
        raise ConfigError(f'--steps {steps}: give a step ("7"), a range ("3-12", "30-") or "all"')
    first, dash, last = wanted.groups()
    low = int(first or 0)
    high = float("inf") if steps == "all" or (dash and not last) else int(last or first)
    if low > high:
        raise ConfigError(f"--steps {steps} begins after it ends")
    numbers = [record["step"] for record in trace.steps]
    if not any(low <= number <= high for number in numbers):
        there = f"the steps are {numbers[0]} to {numbers[-1]}" if numbers else "this run has no steps"
        raise ConfigError(f"--steps {steps}: {there}")
    sentences = zip(numbers, StepPlayer(trace).events(), strict=True)
    return [sentence for number, sentence in sentences if low <= number <= high]
