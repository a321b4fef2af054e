"""The `mini-vllm` command. Knows which part does what; every command is a few lines over it."""

import importlib.metadata
import importlib.util
import json
import os
import platform
import sys
import webbrowser
from pathlib import Path
from typing import Annotated

import typer

from mini_vllm import __version__
from mini_vllm.errors import MiniVLLMError, MissingDependencyError

app = typer.Typer(
    help="mini_vllm: the engine of the course 'Every Step a New Batch'.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_show_locals=False,
)
model_app = typer.Typer(help="Look into model files.", no_args_is_help=True)
app.add_typer(model_app, name="model")

DEFAULT_MODEL = "smollm2-135m"
ModelOption = Annotated[str, typer.Option("--model", "-m", help="A known name, or the path of a .gguf file.")]
DtypeOption = Annotated[str, typer.Option(help="float32 (exact) or bfloat16 (half the memory, faster).")]
MaxTokensOption = Annotated[int, typer.Option("--max-tokens", "-n", help="New tokens at most.")]


def _make_llm(model: str, dtype: str):
    try:
        from mini_vllm.engine.llm import LLM
    except ModuleNotFoundError as error:
        raise MissingDependencyError(
            f"the engine needs the package {error.name!r}, which is not installed; in the repository run "
            "`make chat`, or install the extra: pip install -e '.[engine]'"
        ) from error
    return LLM(model, dtype=dtype)


@app.command()
def doctor():
    """Say what is installed, which device there is, and what works with it."""
    typer.echo(f"mini_vllm {__version__}, Python {platform.python_version()}, {platform.system()} {platform.machine()}")
    typer.echo(f"CPU cores: {os.cpu_count()}")
    for package in ("torch", "triton", "tokenizers", "safetensors", "jinja2", "matplotlib", "nbval"):
        try:
            typer.echo(f"  {package:12} {importlib.metadata.version(package)}")
        except importlib.metadata.PackageNotFoundError:
            typer.echo(f"  {package:12} not installed")
    if importlib.util.find_spec("torch"):
        import torch

        gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else "none; the engine runs on the CPU"
        typer.echo(f"GPU: {gpu}")
    from mini_vllm.loaders.fetch import cached_path

    cached = cached_path(DEFAULT_MODEL)
    typer.echo(f"{DEFAULT_MODEL}: {cached or 'not here yet; get it with `mini-vllm fetch ' + DEFAULT_MODEL + '`'}")


@app.command()
def fetch(
    name: Annotated[str, typer.Argument(help="A known model name.")] = DEFAULT_MODEL,
    force: Annotated[bool, typer.Option(help="Fetch again, even if it is there.")] = False,
):
    """Put a model into the cache folder (once); nothing else is downloaded later."""
    from mini_vllm.loaders.fetch import fetch as fetch_model

    typer.echo(f"{name}: {fetch_model(name, force=force)}")


@model_app.command()
def inspect(model: Annotated[str, typer.Argument(help="A known name, or the path of a .gguf file.")] = DEFAULT_MODEL):
    """Print a model's shape, its tensors by type, and what one token of KV costs."""
    from mini_vllm.loaders.inspect import describe

    typer.echo(describe(model))


@app.command()
def generate(
    prompts: Annotated[list[str] | None, typer.Argument(help="One or several prompts; they run in one batch.")] = None,
    model: ModelOption = DEFAULT_MODEL,
    dtype: DtypeOption = "bfloat16",
    max_tokens: MaxTokensOption = 64,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a prompt.")] = False,
    trace: Annotated[Path | None, typer.Option(help="Write the step records of the run to this file.")] = None,
):
    """Continue prompts. Without arguments: one prompt a line from standard input."""
    from mini_vllm.sampling_params import SamplingParams

    prompts = prompts or [line.rstrip("\n") for line in sys.stdin if line.strip()]
    params = SamplingParams(max_tokens=max_tokens)
    llm = _make_llm(model, dtype)
    for output in llm.generate(prompts, params):
        if as_json:
            fields = ("request_id", "prompt", "text", "token_ids", "finish_reason")
            typer.echo(json.dumps({name: getattr(output, name) for name in fields}, ensure_ascii=False))
        else:
            typer.echo(f"[{output.request_id}, {len(output.token_ids)} tokens] {output.prompt}{output.text}\n")
    if trace:
        typer.echo(f"trace: {llm.trace.save(trace)}; look at it with `mini-vllm play {trace}`", err=True)


@app.command()
def chat(
    model: ModelOption = DEFAULT_MODEL,
    dtype: DtypeOption = "bfloat16",
    max_tokens: MaxTokensOption = 256,
    system: Annotated[str | None, typer.Option(help="The system prompt; the template's own by default.")] = None,
):
    """Talk to the model. An empty line or Ctrl-D ends the talk, Ctrl-C the answer, /new starts afresh."""
    from mini_vllm.sampling_params import SamplingParams

    llm = _make_llm(model, dtype)
    params = SamplingParams(max_tokens=max_tokens)
    opening = [{"role": "system", "content": system}] if system else []
    messages = list(opening)
    typer.echo(f"{model} ({dtype}). An empty line ends the talk, /new starts afresh, Ctrl-C stops an answer.")
    while True:
        try:
            text = input("> ").strip()
        except (EOFError, KeyboardInterrupt):
            break
        if not text:
            break
        if text == "/new":
            messages = list(opening)
            continue
        asked = [*messages, {"role": "user", "content": text}]
        answer = ""
        try:
            for delta in llm.stream(asked, params):
                answer += delta.text
                print(delta.text, end="", flush=True)
        except KeyboardInterrupt:
            answer += " …"
        except MiniVLLMError as error:  # a talk that outgrew the context, say: the talk so far is kept
            typer.echo(f"not sent: {error}", err=True)
            continue
        print()
        messages = [*asked, {"role": "assistant", "content": answer}]


@app.command()
def play(
    file: Annotated[Path, typer.Argument(help="A trace: JSON lines, as `generate --trace` writes them.")],
    out: Annotated[Path | None, typer.Option(help="Where to write the page; beside the trace by default.")] = None,
    open_browser: Annotated[bool, typer.Option("--open/--no-open", help="Open it in the browser.")] = True,
):
    """Open a trace in the step player."""
    from mini_vllm.viz.player import StepPlayer

    page = out or file.with_suffix(".html")
    StepPlayer(file).save(page)
    typer.echo(f"player: {page}")
    if open_browser:
        webbrowser.open(page.resolve().as_uri())


@app.command()
def grade(
    paths: Annotated[list[Path], typer.Argument(help="Exercise notebooks, or folders of them.")],
    json_out: Annotated[Path | None, typer.Option("--json", help="Write the report as JSON to this file.")] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of the hidden cases; random by default.")] = None,
    timeout_s: Annotated[int, typer.Option(help="Seconds for one notebook at most.")] = 120,
    pristine: Annotated[Path | None, typer.Option(help="Folder of the untouched exercise notebooks.")] = None,
):
    """Grade exercise notebooks: your cells, on the untouched notebook, in a fresh process."""
    from mini_vllm.grading.command import grade_command

    raise typer.Exit(grade_command(paths, json_out, seed, timeout_s, pristine))


def main():
    """Entry point: an error that we raise on purpose is one line, not a traceback."""
    try:
        app()
    except MiniVLLMError as error:
        typer.echo(f"error: {error}", err=True)
        raise SystemExit(1) from None


if __name__ == "__main__":
    main()
