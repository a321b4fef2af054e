"""The folder of one graded run: what goes in, who may see it, what came out. Knows files; starts nothing. All chapters.

    control/   the notebook, the plans and the log, for the grader alone
    package/   mini_vllm without what would answer the exercise; imports come from here
    run/       where the kernel works: cases.json lies there, answers.jsonl comes there; the only place it may write to

`solutions/`, the class folder and the real package are in none of them.
"""

import json
import os
import shutil
import stat
import sys
from dataclasses import dataclass
from pathlib import Path

from mini_vllm.grading.feedback import GRADED_FOLDER
from mini_vllm.grading.nbval_log import LOG
from mini_vllm.loaders.cache_folder import CACHE_VARIABLE, default_cache_folder
from mini_vllm.sandbox import protection
from mini_vllm.sandbox.protection import Protection

PACKAGE_ROOT = Path(__file__).resolve().parents[2]
KERNEL_SITE = Path(__file__).resolve().parent / "kernel_site"
NEVER_NEEDED = {"mini_vllm.grading.notebooks", "mini_vllm.grading.reference"}
KEPT_VARIABLES = ("PATH", "LANG", "TZ", "LD_LIBRARY_PATH", "VIRTUAL_ENV", "CONDA_PREFIX", "TRITON_INTERPRET")
KEPT_PREFIXES = ("LC_", "CUDA_", "NVIDIA_", "OMP_", "MKL_")
MAX_FILE_BYTES, MAX_THREADS = 256 << 20, 512
MAX_ANSWERS_BYTES = 64 << 20


@dataclass(frozen=True)
class RunFolder:
    """The paths of one run. `uid`: the user that the kernel runs as; None for the grader's own."""

    base: Path
    uid: int | None

    @property
    def control(self) -> Path:
        return self.base / "control"

    @property
    def package(self) -> Path:
        return self.base / "package"

    @property
    def run(self) -> Path:
        return self.base / "run"

    @property
    def supervise_plan(self) -> Path:
        return self.control / "supervise.json"

    def last_words(self) -> str:
        """What the jail and pytest said, for when nothing ran."""
        return " ".join(_text(self.control / name)[-600:].strip() for name in ("jail.log", "log.txt")).strip()

    def cells(self) -> list[dict]:
        """The lines of `nbval_log`; the last one may be cut off where the run was ended."""
        return [entry for line in _text(self.control / "cells.jsonl").splitlines() if (entry := _object(line))]

    def answers(self) -> list[dict | None]:
        """The lines that the kernel wrote; None for one that is no JSON object. Anything may stand in them."""
        return [_object(line) for line in _text(self.run / "answers.jsonl", MAX_ANSWERS_BYTES).splitlines()]


def _text(path: Path, limit: int = 1 << 30) -> str:
    """A file's text, if it is a plain file of at most `limit` bytes: not a link, not a pipe that would block."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return ""
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode) or status.st_size > limit:
        os.close(descriptor)
        return ""
    with open(descriptor, encoding="utf-8", errors="replace") as file:
        return file.read()


def _object(line: str) -> dict | None:
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return entry if isinstance(entry, dict) else None


def make(base: Path, uid: int | None, nb: dict, asked: dict, limits, shield: Protection) -> RunFolder:
    """Write everything that a run needs into `base`. `asked`: what cases.json says to the kernel."""
    folder = RunFolder(base, uid)
    for path in (folder.control, folder.run, folder.run / "tmp"):
        path.mkdir()
    folder.control.chmod(0o700)
    stage_package(folder.package, asked["hidden_modules"])
    (folder.run / "cases.json").write_text(json.dumps(asked), encoding="utf-8")
    (folder.control / "graded.ipynb").write_text(json.dumps(nb), encoding="utf-8")
    (folder.control / "pytest.ini").write_text("[pytest]\n", encoding="utf-8")
    _write_kernel_spec(folder)
    (folder.control / "jail.json").write_text(json.dumps(_jail_plan(folder, asked, limits, shield)), encoding="utf-8")
    folder.supervise_plan.write_text(json.dumps(_supervise_plan(folder, limits)), encoding="utf-8")
    if uid is not None:
        _hand_over(folder, uid)
    return folder


def _hand_over(folder: RunFolder, uid: int) -> None:
    """Let the kernel's user read its inputs, whatever modes the originals have, and write to run/."""
    folder.base.chmod(0o711)
    for path in [folder.package, *folder.package.rglob("*")]:
        path.chmod(0o755 if path.is_dir() else 0o644)
    (folder.run / "cases.json").chmod(0o644)
    for path in (folder.run, folder.run / "tmp"):
        os.chown(path, uid, uid)


def stage_package(target: Path, hidden: list[str]) -> None:
    """Copy mini_vllm without the modules that hold an answer. Copies, not links: a link would lead to the rest."""
    left_out = NEVER_NEEDED | set(hidden)

    def ignore(folder: str, names: list[str]) -> set[str]:
        parent = ".".join(Path(folder).relative_to(PACKAGE_ROOT).parts)
        return {n for n in names if n == "__pycache__" or f"{parent}.{n.removesuffix('.py')}" in left_out}

    shutil.copytree(PACKAGE_ROOT / "mini_vllm", target / "mini_vllm", ignore=ignore)
    shutil.copy(KERNEL_SITE / "sitecustomize.py", target / "sitecustomize.py")


def _write_kernel_spec(folder: RunFolder) -> None:
    """nbval starts kernels by name; this name leads through the jail."""
    place = folder.control / "jupyter" / "kernels" / "graded"
    place.mkdir(parents=True)
    jail = [sys.executable, "-P", "-S", "-m", "mini_vllm.sandbox.jail", str(folder.control / "jail.json")]
    spec = {"argv": [*jail, "{connection_file}"], "display_name": "graded", "language": "python"}
    (place / "kernel.json").write_text(json.dumps(spec), encoding="utf-8")


def _jail_plan(folder: RunFolder, asked: dict, limits, shield: Protection) -> dict:
    kernel = [sys.executable, "-m", "ipykernel_launcher", "--HistoryManager.enabled=False", "-f"]
    cache = default_cache_folder()
    return {
        "command": kernel,
        "cwd": str(folder.run),
        "env": _kernel_environment(folder, cache),
        "log": str(folder.control / "jail.log"),
        "uid": folder.uid,
        "limits": _system_limits(folder, limits),
        "landlock": shield.file_rules,
        "reads_everywhere": shield.reads_everywhere,
        "readable": [*protection.readable(but_not=PACKAGE_ROOT), str(folder.package), str(cache)],
        "writable": [str(folder.run), *protection.devices()],
        "hidden": asked["hidden_paths"],
    }


def _kernel_environment(folder: RunFolder, cache: Path) -> dict[str, str]:
    """A few variables of the grader's, none of its secrets, and everything that a program would write into run/."""
    kept = {k: v for k, v in os.environ.items() if k in KEPT_VARIABLES or k.startswith(KEPT_PREFIXES)}
    others = [p for p in os.environ.get("PYTHONPATH", "").split(os.pathsep) if p and Path(p).resolve() != PACKAGE_ROOT]
    return {
        "PATH": os.defpath,
        "OMP_WAIT_POLICY": "PASSIVE",
        **kept,
        **dict.fromkeys(("HOME", "IPYTHONDIR", "MPLCONFIGDIR", "TRITON_CACHE_DIR", GRADED_FOLDER), str(folder.run)),
        "TMPDIR": str(folder.run / "tmp"),
        "USER": "learner",
        "LOGNAME": "learner",
        CACHE_VARIABLE: str(cache),
        "PYTHONPATH": os.pathsep.join([str(folder.package), *others]),
        "PYTHONHASHSEED": "0",
        "PYTHONDONTWRITEBYTECODE": "1",
        "MPLBACKEND": "module://matplotlib_inline.backend_inline",
        "NO_COLOR": "1",
    }


def _system_limits(folder: RunFolder, limits) -> dict[str, int]:
    """By name in `resource`. Behind the supervisor's: they hold even for what is faster than it looks."""
    wanted = {
        "RLIMIT_CORE": 0,
        "RLIMIT_FSIZE": MAX_FILE_BYTES,
        "RLIMIT_CPU": int(limits.run_s) * (os.cpu_count() or 1) + 1,
        "RLIMIT_NPROC": MAX_THREADS + (0 if folder.uid is not None else _threads_of_this_user()),
    }
    # Memory asked for, touched or not: four times what may be in use. A CUDA driver asks for far more than it touches.
    if sys.platform == "linux" and not Path("/dev/nvidiactl").exists():
        wanted["RLIMIT_DATA"] = 4 * limits.memory_mb << 20
    return wanted


def _threads_of_this_user() -> int:
    import psutil

    processes = psutil.process_iter(["uids", "num_threads"])
    return sum(p.info["num_threads"] or 1 for p in processes if p.info["uids"] and p.info["uids"].real == os.getuid())


def _supervise_plan(folder: RunFolder, limits) -> dict:
    pytest = [sys.executable, "-P", "-m", "pytest", "-q", "-c", "pytest.ini", "--rootdir", ".", "--color=no"]
    plugins = ["-p", "mini_vllm.grading.nbval_log", "-p", "nbval.plugin", "-p", "no:cacheprovider"]
    nbval = ["--nbval-lax", "--nbval-kernel-name", "graded", "--nbval-cell-timeout", str(limits.cell_s)]
    steering = ("PYTEST_", "COV_", "NBVAL_", "JUPYTER_", "IPYTHON")
    kept = {k: v for k, v in os.environ.items() if not k.startswith(steering)}
    return {
        "command": [*pytest, *plugins, *nbval, "graded.ipynb"],
        "cwd": str(folder.control),
        "env": {
            **kept,
            LOG: str(folder.control / "cells.jsonl"),
            "PYTHONPATH": os.pathsep.join(filter(None, [str(PACKAGE_ROOT), os.environ.get("PYTHONPATH", "")])),
            "PYTHONDONTWRITEBYTECODE": "1",
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
            "IPYTHONDIR": str(folder.control),
            "JUPYTER_PATH": str(folder.control / "jupyter"),
            "JUPYTER_RUNTIME_DIR": str(folder.control),
            "JUPYTER_PLATFORM_DIRS": "1",
        },
        "log": str(folder.control / "log.txt"),
        "uid": folder.uid,
        "run_s": limits.run_s,
        "memory_mb": limits.memory_mb,
        "processes": limits.processes,
    }
