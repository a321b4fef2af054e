"""What the system says without torch: nvidia-smi, git. Knows no part. Chapter 13."""

import os
import subprocess
from pathlib import Path

QUERIES = (
    "name", "driver_version", "clocks.sm", "clocks.mem", "temperature.gpu", "power.draw", "clocks.max.sm",
    "clocks.max.mem", "power.limit", "persistence_mode", "ecc.mode.current", "mig.mode.current", "vbios_version",
    "clocks_throttle_reasons.active",
)  # fmt: skip
ROOT = Path(__file__).resolve().parent.parent.parent


def nvidia_smi() -> dict[str, str]:
    """Driver, clocks, temperature and power now; less of it from an old or new tool, nothing where there is none."""
    index = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")[0] or "0"
    for names in (QUERIES, QUERIES[:6]):
        found = _said(["nvidia-smi", f"--query-gpu={','.join(names)}", "--format=csv,noheader", f"--id={index}"])
        values = [value.strip() for value in found.splitlines()[0].split(",")] if found else []
        if len(values) == len(names):
            return dict(zip(names, values, strict=True))
    return {}


def commit() -> str:
    """Of the repository, "-changed" after it if files differ; "unknown" for a copy without git."""
    head = _said(["git", "rev-parse", "HEAD"])
    return head + ("-changed" if _said(["git", "status", "--porcelain", "--untracked-files=no"]) else "") or "unknown"


def _said(command: list[str]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, cwd=ROOT)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
