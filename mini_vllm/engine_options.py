"""Options that the engine's commands share, and the engine they ask for. Knows names; loads torch late. Chapter 14.

Names that the engine knows stand here once more, because `--help` must not need torch; tests compare them.
"""

import secrets
from enum import StrEnum
from typing import Annotated

import typer

from mini_vllm.errors import MissingDependencyError


class Dtype(StrEnum):
    """Numbers of weights, activations and KV."""

    auto = "auto"
    float32 = "float32"
    bfloat16 = "bfloat16"
    float16 = "float16"


class Device(StrEnum):
    """Where the engine runs."""

    auto = "auto"
    cpu = "cpu"
    cuda = "cuda"


class AttentionBackendName(StrEnum):
    """Who computes attention."""

    auto = "auto"
    torch = "torch"
    triton = "triton"


DEFAULT_MODEL = "smollm2-135m"
ModelOption = Annotated[
    str, typer.Option("--model", "-m", help="A known name, or the path of a .gguf file or model folder.")
]
DtypeOption = Annotated[
    Dtype,
    typer.Option(
        help="float32 is exact, the others take half the memory. auto: bfloat16, or float16 on a GPU without it."
    ),
]
DeviceOption = Annotated[Device, typer.Option(help="auto: an NVIDIA GPU if there is one, else the CPU.")]
AttentionOption = Annotated[
    AttentionBackendName,
    typer.Option(
        "--attention-backend",
        help="triton: our kernels, on a CPU in Triton's slow interpreter. auto: those on a GPU, else torch.",
    ),
]
MaxTokensOption = Annotated[int, typer.Option("--max-tokens", "-n", help="New tokens at most.")]
TemperatureOption = Annotated[float, typer.Option("--temperature", "-t", help="0 takes the most likely token.")]
TopPOption = Annotated[float, typer.Option(help="Only the likeliest tokens that together reach this share.")]
SeedOption = Annotated[int | None, typer.Option(help="Repeats the same answers; random by default.")]
DraftsOption = Annotated[
    int, typer.Option(help="Tokens to guess ahead from the text so far; a wrong guess costs time only.")
]


def make_llm(model: str, dtype: Dtype, device: Device, attention: AttentionBackendName, **settings):
    """The `LLM` that a command line asks for. Raises MissingDependencyError without torch and its like."""
    try:
        from mini_vllm.engine.device import resolve_device
        from mini_vllm.engine.llm import LLM
    except ModuleNotFoundError as error:
        raise MissingDependencyError(
            f"the engine needs the package {error.name!r}, which is not installed; in the repository run "
            "`make chat`, or install the extra: pip install -e '.[engine]'"
        ) from error
    where = resolve_device(device.value)
    if dtype is Dtype.auto and where.type == "cpu":
        dtype = Dtype.bfloat16  # a command is for the speed, LLM(...) for the exact numbers
    return LLM(model, dtype=dtype.value, device=str(where), attention_backend=attention.value, **settings)


def sampling(max_tokens: int, temperature: float, top_p: float, seed: int | None, stop: list[str] | None = None):
    from mini_vllm.sampling_params import SamplingParams

    if seed is None and temperature > 0:
        seed = secrets.randbits(32)
    return SamplingParams(
        max_tokens=max_tokens, temperature=temperature, top_p=top_p, seed=seed, stop=tuple(stop or ())
    )
