"""Where the engine runs, and with which numbers. Knows devices and dtypes; knows no model. Chapters 13 and 14."""

import logging
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext

import numpy as np
import torch

from mini_vllm.errors import ConfigError

_LOG = logging.getLogger(__name__)
DTYPES = ("auto", "float32", "bfloat16", "float16")
FIRST_WITH_BFLOAT16 = (8, 0)  # Ampere. Turing (a T4, 7.5) has tensor cores for float16 only


def resolve_device(device: str | torch.device = "auto") -> torch.device:
    """ "auto" is the first NVIDIA GPU, or else the CPU. Raises ConfigError for what is not there."""
    name = str(device)
    if name == "auto":
        return torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")
    kind, _, index = name.partition(":")
    if kind == "cpu" and not index:
        return torch.device("cpu")
    if kind != "cuda" or (index and not index.isdecimal()):
        raise ConfigError(f"device={name!r} is not one of auto, cpu, cuda, cuda:0, cuda:1, …")
    if not torch.cuda.is_available():
        built = "this PyTorch is built without CUDA" if torch.version.cuda is None else "PyTorch sees no NVIDIA GPU"
        raise ConfigError(f"device={name!r}, but {built}; take device='cpu', or 'auto' for whatever is there")
    number = int(index or 0)
    if number >= torch.cuda.device_count():
        raise ConfigError(f"device={name!r}, but there are {torch.cuda.device_count()} GPUs, numbered from 0")
    return torch.device("cuda", number)


def resolve_dtype(dtype: str | torch.dtype, device: torch.device) -> str:
    """The dtype of weights, activations and KV: "float32", "bfloat16" or "float16".

    "auto" asks the device, not the checkpoint: float32 on a CPU (exact), bfloat16 on a GPU that has it, else float16.
    Raises ConfigError for bfloat16 on a GPU without it.
    """
    name = str(dtype).removeprefix("torch.")
    if name not in DTYPES:
        raise ConfigError(f"dtype={name!r} is not one of {', '.join(DTYPES)}")
    if device.type == "cpu":
        return "float32" if name == "auto" else name
    capability = torch.cuda.get_device_capability(device)
    if capability >= FIRST_WITH_BFLOAT16:
        return "bfloat16" if name == "auto" else name
    card = f"{torch.cuda.get_device_name(device)} (compute capability {capability[0]}.{capability[1]})"
    if name == "bfloat16":
        raise ConfigError(
            f"dtype='bfloat16' on {card}: bfloat16 needs capability {FIRST_WITH_BFLOAT16[0]}.{FIRST_WITH_BFLOAT16[1]}; "
            "take dtype='float16' (fast), 'float32' (exact, twice the memory), or 'auto'"
        )
    if name == "auto":
        _LOG.warning("dtype: float16, because %s has no bfloat16", card)
        return "float16"
    return name


def to_device(
    values: Sequence[int] | np.ndarray, device: torch.device, dtype: torch.dtype = torch.int64
) -> torch.Tensor:
    """A small list as a tensor on the device, without waiting for the work that the device has to do."""
    host = torch.as_tensor(values, dtype=dtype)
    if device.type != "cuda":
        return host
    return host.pin_memory().to(device, non_blocking=True)  # torch keeps the pinned memory until the copy is done


def current(device: torch.device) -> AbstractContextManager:
    """`with current(device)`: of several GPUs the one where this thread's kernels are launched."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()
