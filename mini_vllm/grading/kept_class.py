"""A class of a notebook as a file of its own. Knows cells and imports; judges nothing. From chapter 4 on.

The class is taken with what it leads to: functions and classes of other cells, plain constants, imports.
"""

import ast
import inspect
import linecache
import textwrap
import types
from collections.abc import Mapping
from typing import Any

from mini_vllm.errors import GradingError
from mini_vllm.stages.reading_order import home_of, names_read

NOTEBOOK = "__main__"


def module_text(cls: type, header: str) -> str:
    """Source of a module that defines `cls` again. GradingError says what in it cannot be written down."""
    parts = _Parts(cls)
    return "\n".join(
        [
            f'"""{header}"""',
            "",
            *sorted(parts.imports),
            *(f"\n\n{text}" for text in parts.definitions.values()),
            f'\n\n__all__ = ["{cls.__name__}"]\n',
        ]
    )


class _Parts:
    """Imports, constants and definitions, each after what it needs."""

    def __init__(self, cls: type):
        self.imports: dict[str, None] = {}
        self.definitions: dict[str, str] = {}  # in the order in which they must stand
        self._visiting: set[str] = set()
        self._define(cls.__name__, cls)

    def _define(self, name: str, value: Any) -> None:
        source, names = _definition_of(value)
        self._visiting.add(name)
        for used in names_read(source):
            if used in names and used not in self.definitions and used not in self._visiting:
                self._bring(used, names[used])
        self.definitions[name] = source

    def _bring(self, name: str, value: Any) -> None:
        """Whatever the code means by `name`."""
        home = getattr(value, "__module__", None)
        if isinstance(value, types.ModuleType):
            self.imports[f"import {value.__name__} as {name}"] = None
        elif found := home_of(name, value):
            self.imports[f"from {found} import {name}"] = None
        elif isinstance(home, str) and home.startswith("my_mini_vllm."):
            self.imports["from mini_vllm.grading.my_stage import load_kept"] = None
            self.definitions[name] = f'{name} = load_kept("{home.rpartition(".")[2]}")'
        elif isinstance(value, type) and home_of(value.__name__, value):
            self.imports[f"from {home} import {value.__name__} as {name}"] = None
        elif isinstance(value, type | types.FunctionType) and home == NOTEBOOK:
            self._define(name, value)
        elif _is_plain(value):
            self.definitions[name] = f"{name} = {value!r}"
        else:
            raise GradingError(
                f"it uses {name} ({type(value).__name__}) of the notebook, which cannot be written down; make it in "
                "the class, or a plain constant"
            )


def _is_plain(value: Any) -> bool:
    try:
        return ast.literal_eval(repr(value)) == value
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return False


def _definition_of(value: Any) -> tuple[str, Mapping[str, Any]]:
    """The source of a function or class of a cell, and the names that it can look up."""
    function = value if inspect.isfunction(value) else next(filter(inspect.isfunction, vars(value).values()), None)
    if function is None:
        raise GradingError(f"{value.__name__} has no method of its own, so where its source stands cannot be told")
    cell = "".join(linecache.getlines(function.__code__.co_filename))
    found = [
        node
        for node in ast.walk(ast.parse(cell) if cell else ast.Module([], []))
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name == value.__name__
    ]
    if not found:
        raise GradingError(f"the source of {value.__name__} cannot be found; run its cell again, then the check")
    node = found[-1]
    first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
    lines = cell.splitlines()[first - 1 : node.end_lineno]
    return textwrap.dedent("\n".join(lines)), function.__globals__
