"""The first cell of every notebook. Knows what a machine without mini_vllm lacks; not what notebooks say.

One text for a laptop, JupyterLab and Colab. Where mini_vllm can be imported it installs nothing. Elsewhere it
uses the clone around the notebook, or installs the repository without its dependencies: Colab's own torch,
triton and numpy must stay as they are. Then come the small dependencies that are missing, each by name, and
with what they need themselves: harmless, because none of them leads to torch, triton or numpy (tested).
"""

import tomllib
from importlib import metadata
from pathlib import Path

DISTRIBUTION = "every-step-a-new-batch"

# Each name is both the one to install and the one to import.
SMALL_DEPENDENCIES = ("typer", "rich", "tokenizers", "safetensors", "jinja2", "nbval")

_TEMPLATE = """\
# Set-up, the same in every notebook. Where mini_vllm can be imported already, it only prints versions.
import importlib.util, os, pathlib, platform, shutil, subprocess, sys
from importlib import metadata

def install(*what):
    print("installing", what[-1])
    subprocess.run([sys.executable, "-m", "pip", "install", "-q", *what], check=True)
    importlib.invalidate_caches()

if not importlib.util.find_spec("mini_vllm"):
    clone = [f for f in pathlib.Path.cwd().parents if (f / "mini_vllm" / "__init__.py").is_file()]
    if clone:
        sys.path.insert(0, str(clone[0]))
    else:
        install("--no-deps", "git+@REPOSITORY@")
    for name in "@DEPENDENCIES@".split():
        if not importlib.util.find_spec(name):
            install(name)

listed = ""
if shutil.which("nvidia-smi"):
    listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True).stdout
gpu = listed.partition(" (")[0] if listed.startswith("GPU 0") else None
if not gpu:  # Triton reads this when it is imported: kernels run in its interpreter
    os.environ.setdefault("TRITON_INTERPRET", "1")
have = {d.name: d.version for d in metadata.distributions() if d.name in ("torch", "triton", "numpy")}
versions = [f"| {name} {version}" for name, version in sorted(have.items())]
print("Python", platform.python_version(), *versions, "|", gpu or "CPU")
"""


def repository_url() -> str:
    """The repository's address, from the one place where it stands: pyproject.toml."""
    project_file = Path(__file__).resolve().parent.parent / "pyproject.toml"
    if project_file.is_file():
        return tomllib.loads(project_file.read_text(encoding="utf-8"))["project"]["urls"]["Repository"]
    urls = metadata.metadata(DISTRIBUTION).get_all("Project-URL") or []
    return next(url.split(", ", 1)[1] for url in urls if url.startswith("Repository, "))


def setup_cell() -> str:
    """Source of the cell, without a final newline, as notebooks keep it."""
    text = _TEMPLATE.replace("@REPOSITORY@", repository_url())
    return text.replace("@DEPENDENCIES@", " ".join(SMALL_DEPENDENCIES)).rstrip("\n")
