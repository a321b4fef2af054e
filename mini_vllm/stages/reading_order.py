"""A class that grew over several files, as one text in the order in which it runs. Knows source, no rule. Chapter 4."""

import ast
import builtins
import inspect
import sys
import textwrap
from collections.abc import Callable, Iterator
from typing import Any

ENTRY_POINTS = (
    "__init__",
    "add_request",
    "has_unfinished_requests",
    "schedule",
    "update_from_output",
    "finish_requests",
)
MISSING = object()


def source_of(function: Callable) -> str:
    """The source of a method, from column 0."""
    return textwrap.dedent(inspect.getsource(function))


def methods_in_order(cls: type) -> dict[str, Callable]:
    """The methods that a run can reach, in the order in which they are first called."""
    found: dict[str, Callable] = {}

    def visit(name: str) -> None:
        method = getattr(cls, name, None)
        if name not in found and inspect.isfunction(method):
            found[name] = method
            for used in attributes_of_self(method):
                visit(used)

    for name in ENTRY_POINTS:
        visit(name)
    return found


def attributes_of_self(method: Callable) -> Iterator[str]:
    """Names after `self.` in a method, in the order of its text."""
    nodes = [node for node in ast.walk(ast.parse(source_of(method))) if isinstance(node, ast.Attribute)]
    for node in sorted(nodes, key=lambda node: (node.lineno, node.col_offset, node.end_col_offset)):
        if isinstance(node.value, ast.Name) and node.value.id == "self":
            yield node.attr


def names_read(source: str) -> list[str]:
    """Names that the code reads and does not define itself, built-in ones left out."""
    read, given = dict[str, None](), set(dir(builtins))
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            read[node.id] = None
        elif isinstance(node, ast.Name):
            given.add(node.id)
        elif isinstance(node, ast.arg):
            given.add(node.arg)
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            given.add(node.name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            given |= {(alias.asname or alias.name).partition(".")[0] for alias in node.names}
    return [name for name in read if name not in given]


def home_of(name: str, value: Any) -> str | None:
    """The module from which `value` can be imported under this name, or None."""
    for home in (getattr(value, "__module__", None), type(value).__module__):
        if isinstance(home, str) and home != "__main__" and getattr(sys.modules.get(home), name, MISSING) is value:
            return home
    return None


def flattened(cls: type) -> str:
    """The whole class in one piece, with its imports: a module that can be run."""
    methods = methods_in_order(cls)
    imports: dict[str, set[str]] = {}
    for method in methods.values():
        for name in names_read(source_of(method)):
            if home := home_of(name, method.__globals__.get(name)):
                imports.setdefault(home, set()).add(name)
    lines = [f"from {home} import {', '.join(sorted(names, key=str.lower))}" for home, names in sorted(imports.items())]
    parts = [f'    """{cls.__doc__}"""', *(textwrap.indent(source_of(m).strip(), "    ") for m in methods.values())]
    return "\n".join(lines) + f"\n\n\nclass {cls.__name__}:\n" + "\n\n".join(parts) + "\n"
