"""Which attention backend serves a model on a device, and why. Knows their conditions; computes nothing. Chapter 13."""

import logging
from typing import Any

import torch

from mini_vllm.engine.attention.backend import AttentionBackend
from mini_vllm.engine.attention.cpu import CpuPagedAttention
from mini_vllm.engine.attention.torch import TorchPagedAttention
from mini_vllm.engine.device import current
from mini_vllm.errors import ConfigError, KernelModeError, MissingDependencyError
from mini_vllm.models.config import ModelConfig

_LOG = logging.getLogger(__name__)
ATTENTION_BACKENDS = ("auto", "torch", "triton")


def select_backend(
    name: str, config: ModelConfig, dtype: torch.dtype, device: torch.device, block_size: int = 16
) -> AttentionBackend:
    """The backend of that name. "auto": Triton's kernels on a GPU, the fastest in torch on a CPU.

    On a GPU the kernels are tried against the reference first; if they are wrong there, a warning says so and torch's
    attention serves. "triton" on a CPU runs in Triton's interpreter.
    Raises ConfigError for an unknown name and for a model without kernels, MissingDependencyError and KernelModeError
    where Triton cannot run and was asked for by name.
    """
    check_backend_name(name)
    if name == "triton" or (name == "auto" and device.type == "cuda"):
        try:
            return _triton(config, dtype, device, block_size)
        except (ConfigError, KernelModeError, MissingDependencyError, _NotHere) as error:
            if name == "triton" and not isinstance(error, _NotHere):
                raise
            _LOG.warning("attention: torch instead of our Triton kernels, which is slower: %s", error)
    if name == "auto" and CpuPagedAttention.can_serve(dtype, device, config.num_attention_heads, config.head_dim):
        return CpuPagedAttention(config.sliding_window)
    return TorchPagedAttention(config.sliding_window)


def check_backend_name(name: str) -> None:
    if name not in ATTENTION_BACKENDS:
        raise ConfigError(f"attention_backend={name!r} is not one of {', '.join(ATTENTION_BACKENDS)}")


class _NotHere(Exception):
    """The kernels do not work on this GPU: they are wrong, or have no tile."""


def _triton(config: ModelConfig, dtype: torch.dtype, device: torch.device, block_size: int) -> AttentionBackend:
    from mini_vllm.kernels import mode

    if device.type == "cpu":
        mode.use_interpreter()  # before anything below imports triton
    else:
        mode.require_triton()
    from mini_vllm.engine.attention.triton import TritonPagedAttention

    heads = (config.num_attention_heads, config.num_key_value_heads, config.head_dim)
    backend = TritonPagedAttention(*heads, dtype, device, config.sliding_window)
    if device.type == "cpu":
        _LOG.warning("attention: Triton's interpreter, because there is no GPU: right, and thousands of times slower")
        return backend
    if not backend.supports_cuda_graphs and backend.routed:
        raise _NotHere(f"no clean tile for this model on this card: {next(iter(backend.routed.values()))}")
    _test_kernels(device, *heads, dtype, block_size, config.sliding_window)
    if backend.routed:
        listed = "; ".join(f"{what}: {reason}" for what, reason in backend.routed.items())
        _LOG.warning("attention: torch serves what has no clean kernel on this card (%s)", listed)
    return backend


def _test_kernels(device: torch.device, *shape: Any) -> None:
    """shape: what `kernels.selftest.Shape` holds."""
    from mini_vllm.engine.attention.triton import DECODE_WIDTHS
    from mini_vllm.kernels.selftest import Shape, selftest

    try:
        with current(device):
            report = selftest(device, Shape(*shape), query_lens=DECODE_WIDTHS)
    except Exception as error:  # whatever a compiler or driver of another version makes of them
        raise _NotHere(f"the kernels' self-test broke off: {type(error).__name__}: {error}") from error
    if not report.ok:
        raise _NotHere(f"the kernels failed their self-test on this GPU: {'; '.join(report.failures)}")
