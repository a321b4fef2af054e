"""The `mini-vllm` command. Knows which part does what; every command is a few lines over it."""

import json
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from mini_vllm.engine_options import (
    DEFAULT_MODEL,
    AttentionBackendName,
    AttentionOption,
    Device,
    DeviceOption,
    DraftsOption,
    Dtype,
    DtypeOption,
    MaxTokensOption,
    ModelOption,
    SeedOption,
    TemperatureOption,
    TopPOption,
    make_llm,
    sampling,
)
from mini_vllm.errors import (
    ConfigError,
    EmptyPromptError,
    MiniVLLMError,
    PromptTooLongError,
)
from mini_vllm.output_file import refuse_if_not_writable, refuse_same_file
from mini_vllm.roofline.samples import write_samples
from mini_vllm.sim.command import simulate
from mini_vllm.trace.command import app as trace_app
from mini_vllm.trace.command import play

app = typer.Typer(
    help="mini_vllm: the engine of the course 'Every Step a New Batch'.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_show_locals=False,
)
model_app = typer.Typer(help="Look into model files.", no_args_is_help=True)
app.add_typer(model_app, name="model")


@app.command()
def doctor():
    """Say what is installed, which device there is, and what works with it."""
    from mini_vllm.doctor import findings

    for line in findings(DEFAULT_MODEL):
        typer.echo(line)


@app.command()
def fetch(
    name: Annotated[str, typer.Argument(help="A known model name.")] = DEFAULT_MODEL,
    force: Annotated[bool, typer.Option(help="Fetch again, even if it is there.")] = False,
):
    """Put a model into the cache folder (once); nothing else is downloaded later."""
    from mini_vllm.loaders.fetch import fetch as fetch_model

    typer.echo(f"{name}: {fetch_model(name, force=force)}")


@model_app.command()
def inspect(
    model: Annotated[
        str, typer.Argument(help="A known name, or the path of a .gguf file or model folder.")
    ] = DEFAULT_MODEL,
):
    """Print a model's shape, its tensors by type, and what one token of KV costs."""
    from mini_vllm.loaders.inspect import describe

    typer.echo(describe(model))


@app.command()
def generate(
    prompts: Annotated[list[str] | None, typer.Argument(help="One or several prompts; they run in one batch.")] = None,
    model: ModelOption = DEFAULT_MODEL,
    dtype: DtypeOption = Dtype.auto,
    device: DeviceOption = Device.auto,
    attention_backend: AttentionOption = AttentionBackendName.auto,
    max_tokens: MaxTokensOption = 64,
    temperature: TemperatureOption = 0.0,
    top_p: TopPOption = 1.0,
    seed: SeedOption = None,
    stop: Annotated[list[str] | None, typer.Option(help="A text that ends an answer; may be given again.")] = None,
    drafts: DraftsOption = 0,
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON object a prompt; its text ends at a whole character.")
    ] = False,
    trace: Annotated[Path | None, typer.Option(help="Write the step records of the run to this file.")] = None,
    samples: Annotated[Path | None, typer.Option(help="Write step times to this file, for a step-time model.")] = None,
    stats: Annotated[bool, typer.Option("--stats", help="Say at the end what the steps did and took.")] = False,
):
    """Continue prompts. Without arguments: one prompt a line from standard input."""
    outputs = {option: file for option, file in (("--trace", trace), ("--samples", samples)) if file}
    for option, file in outputs.items():
        refuse_if_not_writable(file, option)
    refuse_same_file(outputs)
    prompts = prompts or _prompts_from_standard_input()
    params = sampling(max_tokens, temperature, top_p, seed, stop)
    llm = make_llm(
        model,
        dtype,
        device,
        attention_backend,
        num_speculative_tokens=drafts,
        trace_file=trace,
        trace_steps=None if samples else 0,
    )
    for output in llm.generate(prompts, params):
        if as_json:
            fields = ("request_id", "prompt", "text", "token_ids", "finish_reason")
            typer.echo(json.dumps({name: getattr(output, name) for name in fields}, ensure_ascii=False))
        else:
            typer.echo(f"[{output.request_id}, {len(output.token_ids)} tokens] {output.prompt}{output.text}\n")
    llm.close()
    if trace:
        typer.echo(f"trace: {trace}; look at it with `mini-vllm play {trace}`", err=True)
    if samples:
        write_samples(samples, llm.step_time_samples())
        typer.echo(f"samples: {samples}; mini_vllm.roofline.calibrate fits a step-time model to them", err=True)
    if stats:
        typer.echo(llm.stats, err=True)


def _prompts_from_standard_input() -> list[str]:
    if sys.stdin.isatty():
        typer.echo("one prompt a line; Ctrl-D runs them", err=True)
    try:
        prompts = [line.rstrip("\r\n") for line in sys.stdin if line.strip()]
    except UnicodeDecodeError as error:
        raise ConfigError(f"standard input is no {error.encoding} text ({error.reason}); convert it first") from error
    if not prompts:
        raise EmptyPromptError("no prompts: give them as arguments, or one a line on standard input")
    return prompts


CHAT_HELP = """\
/new    starts a new conversation
/help   prints this
/quit   ends the talk, as exit, an empty line and Ctrl-D do
Ctrl-C stops an answer. To send a message that begins with /, put a space before it."""


@app.command()
def chat(
    model: ModelOption = DEFAULT_MODEL,
    dtype: DtypeOption = Dtype.auto,
    device: DeviceOption = Device.auto,
    attention_backend: AttentionOption = AttentionBackendName.auto,
    max_tokens: MaxTokensOption = 256,
    temperature: TemperatureOption = 0.0,
    top_p: TopPOption = 1.0,
    seed: SeedOption = None,
    system: Annotated[str | None, typer.Option(help="The system prompt; the template's own by default.")] = None,
):
    """Talk to the model. /help lists the commands; an empty line, /quit or Ctrl-D ends the talk."""
    params = sampling(max_tokens, temperature, top_p, seed)
    llm = make_llm(model, dtype, device, attention_backend)
    opening = [{"role": "system", "content": system}] if system else []
    messages = list(opening)
    loaded = llm.engine_core.model
    where = f"{str(loaded.dtype).removeprefix('torch.')}, {loaded.device}"
    typer.echo(f"{model} ({where}). An empty line ends the talk, /new starts afresh, /help says more.")
    while True:
        try:
            line = input("> ")
        except (EOFError, KeyboardInterrupt):
            break
        text, is_command = line.strip(), line.startswith("/")
        if not text or text in ("/quit", "/exit", "exit", "quit"):
            break
        if text == "/new" and is_command:
            messages = list(opening)
            typer.echo("new conversation")
        elif text == "/help" and is_command:
            typer.echo(CHAT_HELP)
        elif is_command:
            typer.echo(f"not sent: there is no command {text.split()[0]}; /help lists them", err=True)
        else:
            messages = _answered(llm, [*messages, {"role": "user", "content": text}], params)


def _answered(llm, asked: list[dict], params) -> list[dict]:
    """Print the answer as it comes; the conversation with it, or the one before where the message is refused."""
    answer, reason, num_tokens = "", None, 0
    try:
        stream = llm.stream(asked, params)
        for delta in stream:
            answer += delta.text
            reason, num_tokens = delta.finish_reason, len(stream.results[0].token_ids)
            print(delta.text, end="", flush=True)
    except KeyboardInterrupt:
        answer += " …"
    except PromptTooLongError:  # the talk so far is kept
        length, limit = len(llm.chat_template.encode(asked)), llm.engine_core.config.max_model_len
        typer.echo(
            f"not sent: with this message the conversation has {length} tokens, and max_model_len is {limit}: "
            "shorten it, or /new",
            err=True,
        )
        return asked[:-1]
    except MiniVLLMError as error:
        typer.echo(f"not sent: {error}", err=True)
        return asked[:-1]
    print()
    if reason == "length":
        full = (
            ": the conversation is as long as it may be; /new starts afresh" if num_tokens < params.max_tokens else ""
        )
        typer.echo(f"(cut at {num_tokens} tokens{full})")
    return [*asked, {"role": "assistant", "content": answer}]


app.command()(play)
app.command()(simulate)
app.add_typer(trace_app, name="trace")


class Backend(StrEnum):
    """Where notebooks are graded."""

    local = "local"
    ray = "ray"


GRADE_EPILOG = "Exit code: 0 all could be graded, whatever their marks; 1 some could not; 2 nothing was graded."


@app.command(epilog=GRADE_EPILOG)
def grade(
    paths: Annotated[list[Path], typer.Argument(help="Exercise notebooks, or folders of them.")],
    json_out: Annotated[Path | None, typer.Option("--json", help="Write everything as JSON to this file.")] = None,
    csv_out: Annotated[Path | None, typer.Option("--csv", help="Write a spreadsheet, one row a notebook.")] = None,
    gradescope: Annotated[Path | None, typer.Option(help="Write Gradescope's results.json, for one student.")] = None,
    classroom: Annotated[Path | None, typer.Option(help="Write what GitHub Classroom's reporter reads.")] = None,
    workers: Annotated[int | None, typer.Option(help="Notebooks at one time; one for each CPU by default.")] = None,
    backend: Annotated[Backend, typer.Option(help="ray: on the cluster at RAY_ADDRESS.")] = Backend.local,
    seed: Annotated[int | None, typer.Option(help="Seed of the hidden cases; random by default.")] = None,
    timeout_s: Annotated[int, typer.Option(help="Seconds for one run of one notebook.")] = 120,
    memory_mb: Annotated[int, typer.Option(help="MiB for one notebook with all its processes.")] = 2048,
    require_jail: Annotated[
        bool, typer.Option("--require-jail", help="Grade nothing where a notebook cannot be kept from your files.")
    ] = False,
    pristine: Annotated[Path | None, typer.Option(help="Folder of the untouched exercise notebooks.")] = None,
):
    """Grade exercise notebooks: the marked cells, on the untouched notebook, in a fresh process in a jail."""
    from mini_vllm.grading.command import Options, grade_command

    options = Options(
        *(json_out, csv_out, gradescope, classroom),
        seed=seed,
        timeout_s=timeout_s,
        memory_mb=memory_mb,
        pristine=pristine,
        workers=workers,
        backend=backend.value,
        require_jail=require_jail,
    )
    raise typer.Exit(grade_command(paths, options))


def main():
    """Entry point: an error that we raise on purpose is one line, not a traceback; so is what the system refuses."""
    try:
        app()
    except MiniVLLMError as error:
        typer.echo(f"error: {error}", err=True)
    except OSError as error:  # a file that may not be read, a disk that is full
        where = f"{error.filename}: " if error.filename else ""
        typer.echo(f"error: {where}{error.strerror or error}", err=True)
    else:
        return
    raise SystemExit(1)


if __name__ == "__main__":
    main()
