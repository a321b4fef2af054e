"""Who runs our Triton kernels: a GPU, or Triton's interpreter on the CPU. Knows no kernel. Chapter 13.

The interpreter is chosen once per process, by TRITON_INTERPRET at the moment when `triton` is first imported: its own
functions (`tl.sum`, `tl.max`) are made for one of the two worlds then. So it is set before, or not at all.
"""

import os
import re
import sys
from functools import cache
from importlib.metadata import PackageNotFoundError, version

import torch

from mini_vllm.errors import KernelModeError, MissingDependencyError

INTERPRET = "TRITON_INTERPRET"
FORCE = "MINI_VLLM_FORCE_INTERPRET"  # for tests on a machine with a GPU
RESTART = (
    "Restart Python (in a notebook: Kernel > Restart) and call mini_vllm.kernels.mode.use_interpreter() "
    f"before anything imports triton, or start it with {INTERPRET}=1."
)
OLDEST = (3, 4)
NEEDED = f"triton>={OLDEST[0]}.{OLDEST[1]}"


def require_triton() -> None:
    """Raises MissingDependencyError unless a Triton that our kernels work with is installed. Does not import it."""
    try:
        installed = version("triton")
    except PackageNotFoundError:
        way_out = f"pip install '{NEEDED}'"
        if sys.platform != "linux":
            way_out = f"it has no build for {sys.platform}; take attention_backend='torch' here, or Linux or Colab"
        raise MissingDependencyError(f"Our kernels need the package triton, not installed here: {way_out}.") from None
    if tuple(int(part) for part in re.findall(r"\d+", installed)[:2]) < OLDEST:
        raise MissingDependencyError(
            f"triton {installed} is too old: 3.3 aborts on a T4 (triton issue 6698), and our kernels were not tried "
            f"with older ones. Way out: pip install '{NEEDED}'."
        )


def use_interpreter() -> None:
    """From here on kernels run in the interpreter, on CPU tensors, thousands of times slower than on a GPU.

    Call it before anything imports triton. Raises KernelModeError if that is too late, or if there is a GPU.
    """
    require_triton()
    _refuse_with_gpu()
    if "triton" not in sys.modules:
        os.environ[INTERPRET] = "1"
    elif not _made_for_the_interpreter():
        raise KernelModeError(f"triton was imported before the interpreter was chosen: too late. {RESTART}")


@cache
def interpreting() -> bool:
    """True if kernels of this process run in the interpreter. Raises KernelModeError where the answer is unclear."""
    require_triton()
    made_for_it = _made_for_the_interpreter()
    wanted = os.environ.get(INTERPRET, "0").lower() in ("1", "true", "on", "yes", "y")
    if wanted and not made_for_it:
        raise KernelModeError(f"{INTERPRET} was set after triton had been imported: too late. {RESTART}")
    if made_for_it:
        _refuse_with_gpu()
    return made_for_it


def require_device(tensor: torch.Tensor) -> None:
    """Raises KernelModeError if a kernel cannot run on this tensor: a CPU tensor outside the interpreter."""
    if not tensor.is_cuda and not interpreting():
        raise KernelModeError(
            f"A kernel got a tensor on {tensor.device}. Move it to a GPU, or run kernels in the interpreter. {RESTART}"
        )


def _refuse_with_gpu() -> None:
    if torch.cuda.is_available() and os.environ.get(FORCE) != "1":
        raise KernelModeError(
            f"This machine has a GPU, {torch.cuda.get_device_name()}: in the interpreter kernels would run on its CPU, "
            f"thousands of times slower. Leave {INTERPRET} unset and restart Python; tests set {FORCE}=1."
        )


def _made_for_the_interpreter() -> bool:
    """Whether Triton's own device functions were made for the interpreter when triton was imported."""
    import triton
    import triton.language as tl

    return not isinstance(tl.sum, triton.JITFunction)
