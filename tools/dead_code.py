"""Finds code that nothing uses: vulture over the package, the tools, the tests and the notebooks' code cells.

Vulture does not read notebooks, and much of mini_vllm is there for notebooks; so their code is written out first.
Only findings in mini_vllm/ and tools/ count. Names that something outside Python calls: [tool.vulture].
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
COUNTED = ("mini_vllm/", "tools/")


def write_code_cells(folder: Path) -> None:
    """One Python file per notebook; lines that only IPython understands are left out."""
    for path in sorted([*ROOT.glob("notebooks/*.ipynb"), *ROOT.glob("solutions/*.ipynb")]):
        cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
        sources = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
        lines = [line for line in "\n".join(sources).splitlines() if not line.lstrip().startswith(("%", "!"))]
        (folder / f"{path.parent.name}_{path.stem.replace('-', '_')}.py").write_text("\n".join(lines), encoding="utf-8")


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        write_code_cells(Path(folder))
        command = [sys.executable, "-m", "vulture", "mini_vllm", "tools", "tests", folder]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    findings = [line for line in done.stdout.splitlines() if line.startswith(COUNTED)]
    print(*findings, done.stderr.strip(), sep="\n" if findings else "")
    print(f"dead code: {len(findings)} findings")
    return 1 if findings or done.returncode not in (0, 3) else 0


if __name__ == "__main__":
    sys.exit(main())
