"""What is installed here and what works with it, line by line. Knows packages by name; loads only torch."""

import importlib.metadata
import importlib.util
import os
import platform
from collections.abc import Iterator

from mini_vllm import __version__

# What a reader may want to do, the modules that it takes, and the way to them.
WORKS = [
    (
        "read the book (make serve-book)",
        ["jupyter_book", "matplotlib", "ipywidgets"],
        "in the repository `make serve-book` installs it",
    ),
    (
        "engine on this CPU (mini-vllm chat)",
        ["torch", "numpy", "tokenizers", "safetensors", "jinja2"],
        "in the repository run `make chat`, or pip install -e '.[engine]'",
    ),
    (
        "exercises and grading (make work, make grade)",
        ["ipykernel", "nbval", "matplotlib"],
        "in the repository `make grade` installs it",
    ),
]


def findings(model: str) -> Iterator[str]:
    """Versions, the device, whether the model is here, and a verdict for each thing that one may want to do."""
    yield f"mini_vllm {__version__}, Python {platform.python_version()}, {platform.system()} {platform.machine()}"
    yield f"CPU cores: {os.cpu_count()}"
    for package in ("torch", "triton", "tokenizers", "safetensors", "jinja2", "jupyter-book", "matplotlib", "nbval"):
        try:
            yield f"  {package:12} {importlib.metadata.version(package)}"
        except importlib.metadata.PackageNotFoundError:
            yield f"  {package:12} not installed"
    broken, has_gpu = set(), False
    if importlib.util.find_spec("torch"):
        try:
            import torch

            has_gpu = torch.cuda.is_available()
            gpu = torch.cuda.get_device_name() if has_gpu else "none; the engine runs on the CPU"
        except Exception as error:  # a broken installation is what a doctor is called for
            broken.add("torch")
            gpu = f"unknown: torch does not load ({type(error).__name__}: {error})"
        yield f"GPU: {gpu}"
    from mini_vllm.loaders.fetch import cached_path

    cached = cached_path(model)
    yield f"{model}: {cached or 'not here yet; get it with `mini-vllm fetch ' + model + '`'}"
    yield ""
    for what, modules, way in WORKS:
        missing = [name for name in modules if name in broken or not importlib.util.find_spec(name)]
        yield f"{what}: " + (f"not yet, no {', '.join(missing)}; {way}" if missing else "ok")
    yield f"our GPU kernels (--attention-backend triton): {_kernels(has_gpu)}"


def _kernels(has_gpu: bool) -> str:
    if not importlib.util.find_spec("triton"):
        return "not yet, no triton; pip install 'triton>=3.4' (it has builds for Linux only)"
    return "ok" if has_gpu else "no GPU here, so Triton's interpreter runs them: right, and thousands of times slower"
