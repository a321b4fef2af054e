"""The environment in which notebooks run, the same for execute.py and for nbval. Knows no notebook."""

import os
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def notebook_env() -> dict[str, str]:
    """This process's environment with all that could change an output fixed."""
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
    return {
        **os.environ,
        "PYTHONPATH": path,
        "PYTHONHASHSEED": "0",
        "MPLBACKEND": "module://matplotlib_inline.backend_inline",
        "MATPLOTLIBRC": str(ROOT / "tools" / "matplotlibrc"),
        "SOURCE_DATE_EPOCH": "0",
        "COLUMNS": "100",
        "NO_COLOR": "1",
        "TERM": "dumb",
        "OMP_WAIT_POLICY": "PASSIVE",  # see mini_vllm/engine/__init__.py
        "MINI_VLLM_PROGRESS": "off",  # an author's run is no learner's progress
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        "TOKENIZERS_PARALLELISM": "false",
    }
