"""The `mini-vllm` command. Knows which part does what; every command is a few lines over it."""

import json
import secrets
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from mini_vllm.errors import (
    ConfigError,
    EmptyPromptError,
    MiniVLLMError,
    MissingDependencyError,
    PromptTooLongError,
)
from mini_vllm.output_file import refuse_if_not_writable
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


class Dtype(StrEnum):
    """What `load_model` takes; not imported from there, because `--help` must not need torch."""

    float32 = "float32"
    bfloat16 = "bfloat16"
    float16 = "float16"


DEFAULT_MODEL = "smollm2-135m"
ModelOption = Annotated[
    str, typer.Option("--model", "-m", help="A known name, or the path of a .gguf file or model folder.")
]
DtypeOption = Annotated[Dtype, typer.Option(help="float32 is exact, the others take half the memory.")]
MaxTokensOption = Annotated[int, typer.Option("--max-tokens", "-n", help="New tokens at most.")]
TemperatureOption = Annotated[float, typer.Option("--temperature", "-t", help="0 takes the most likely token.")]
TopPOption = Annotated[float, typer.Option(help="Only the likeliest tokens that together reach this share.")]
SeedOption = Annotated[int | None, typer.Option(help="Repeats the same answers; random by default.")]
DraftsOption = Annotated[
    int, typer.Option(help="Tokens to guess ahead from the text so far; a wrong guess costs time only.")
]


def _make_llm(model: str, dtype: Dtype, **settings):
    try:
        from mini_vllm.engine.llm import LLM
    except ModuleNotFoundError as error:
        raise MissingDependencyError(
            f"the engine needs the package {error.name!r}, which is not installed; in the repository run "
            "`make chat`, or install the extra: pip install -e '.[engine]'"
        ) from error
    return LLM(model, dtype=dtype.value, **settings)


def _sampling(max_tokens: int, temperature: float, top_p: float, seed: int | None, stop: list[str] | None = None):
    from mini_vllm.sampling_params import SamplingParams

    if seed is None and temperature > 0:
        seed = secrets.randbits(32)
    return SamplingParams(
        max_tokens=max_tokens, temperature=temperature, top_p=top_p, seed=seed, stop=tuple(stop or ())
    )


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
    dtype: DtypeOption = Dtype.bfloat16,
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
):
    """Continue prompts. Without arguments: one prompt a line from standard input."""
    if trace:
        refuse_if_not_writable(trace, "--trace")
    prompts = prompts or _prompts_from_standard_input()
    params = _sampling(max_tokens, temperature, top_p, seed, stop)
    llm = _make_llm(model, dtype, num_speculative_tokens=drafts)
    for output in llm.generate(prompts, params):
        if as_json:
            fields = ("request_id", "prompt", "text", "token_ids", "finish_reason")
            typer.echo(json.dumps({name: getattr(output, name) for name in fields}, ensure_ascii=False))
        else:
            typer.echo(f"[{output.request_id}, {len(output.token_ids)} tokens] {output.prompt}{output.text}\n")
    if trace:
        typer.echo(f"trace: {llm.trace.save(trace)}; look at it with `mini-vllm play {trace}`", err=True)


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
    dtype: DtypeOption = Dtype.bfloat16,
    max_tokens: MaxTokensOption = 256,
    temperature: TemperatureOption = 0.0,
    top_p: TopPOption = 1.0,
    seed: SeedOption = None,
    system: Annotated[str | None, typer.Option(help="The system prompt; the template's own by default.")] = None,
):
    """Talk to the model. /help lists the commands; an empty line, /quit or Ctrl-D ends the talk."""
    params = _sampling(max_tokens, temperature, top_p, seed)
    llm = _make_llm(model, dtype)
    opening = [{"role": "system", "content": system}] if system else []
    messages = list(opening)
    typer.echo(f"{model} ({dtype}). An empty line ends the talk, /new starts afresh, /help says more.")
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
    answer, reason, request_id = "", None, ""
    try:
        for delta in llm.stream(asked, params):
            answer += delta.text
            reason, request_id = delta.finish_reason, delta.request_id
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
        tokens = sum(len(step["sampled"].get(request_id, ())) for step in llm.trace.steps)
        full = "" if tokens == params.max_tokens else ": the conversation is as long as it may be; /new starts afresh"
        typer.echo(f"(cut at {tokens} tokens{full})")
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
