"""Functions of our kernels as they stand in their files, set as code. Knows syntax; imports no kernel. Chapter 13."""

import ast
from pathlib import Path

from mini_vllm.errors import ConfigError

KERNELS = Path(__file__).resolve().parent.parent / "kernels"


class KernelCode:
    """Source of functions of one file of mini_vllm/kernels/, as the output of a cell; also where there is no Triton.

    Raises ConfigError for a file or a function that is not there.
    """

    def __init__(self, module: str, *functions: str) -> None:
        path = KERNELS / f"{module}.py"
        if not path.is_file():
            raise ConfigError(f"mini_vllm/kernels/{module}.py is not there; it has {_names(KERNELS.glob('*.py'))}")
        lines = path.read_text(encoding="utf-8").splitlines()
        found = {node.name: node for node in ast.parse("\n".join(lines)).body if isinstance(node, ast.FunctionDef)}
        if missing := [name for name in functions if name not in found]:
            raise ConfigError(f"mini_vllm/kernels/{module}.py has no function {missing[0]}; it has {', '.join(found)}")
        self.text = "\n\n\n".join(_source(found[name], lines) for name in functions)

    def _repr_mimebundle_(self, include=None, exclude=None):
        return {"text/markdown": f"```python\n{self.text}\n```", "text/plain": self.text}


def _source(function: ast.FunctionDef, lines: list[str]) -> str:
    """With its decorators, which `ast` counts as lines of their own."""
    first = min([function.lineno, *(decorator.lineno for decorator in function.decorator_list)])
    return "\n".join(lines[first - 1 : function.end_lineno])


def _names(paths) -> str:
    return ", ".join(sorted(path.stem for path in paths))
