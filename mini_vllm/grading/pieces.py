"""Puts an answer together again that was split over several cells. Knows names in code; runs nothing. All chapters.

The rule for learners stays "one cell an exercise". But a slip of the keyboard splits a cell, so a neighbour without a
marker, with no text between, belongs to the answer if it defines a name that the answer needs. Cells to play in do not.
"""

import ast
import builtins

from mini_vllm.grading.diagnosis import parsed

ALWAYS_THERE = {*dir(builtins), "get_ipython", "display", "check", "hint", "predict", "reveal"}


def joined(sources: list[str], main: int, name: str) -> list[int]:
    """Places of the neighbouring cells that make up the answer which defines `name`, in order. `main` has the marker.

    A part of a function that was cut in the middle is no Python; together with the part below, or above, it is.
    """
    chosen = {main}
    for below in range(main + 1, len(sources)):
        cut_here = parsed(sources[below]) is None and parsed(_text(sources, {*chosen, below})) is not None
        if parsed(_text(sources, chosen)) is not None and not cut_here:
            break
        chosen.add(below)
    if parsed(_text(sources, chosen)) is None:
        return [main]
    while wanted := _needed(_text(sources, chosen), name):
        nearest = sorted((i for i in range(len(sources)) if i not in chosen), key=lambda i: (i < main, abs(i - main)))
        supplier = next((i for i in nearest if wanted & _bound(sources[i])), None)
        if supplier is None:
            break
        chosen.add(supplier)
    return sorted(chosen)


def defines(source: str, name: str) -> bool:
    return name in _bound(source)


def _text(sources: list[str], chosen: set[int]) -> str:
    return "\n".join(sources[i] for i in sorted(chosen))


def _bound(source: str) -> set[str]:
    """Names that a cell gives a meaning at its top: by def, class, import or assignment."""
    tree = parsed(source)
    names: set[str] = set()
    for node in tree.body if tree else []:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names |= {(alias.asname or alias.name).partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            names |= {n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    return names


def _needed(source: str, name: str) -> set[str]:
    """Names that the code reads and never gives a meaning, anywhere in it; and `name` itself until it is defined."""
    tree, bound = parsed(source), _bound(source)
    read, given = set[str](), set(bound)
    for node in ast.walk(tree) if tree else []:
        if isinstance(node, ast.Name):
            (read if isinstance(node.ctx, ast.Load) else given).add(node.id)
        elif isinstance(node, ast.arg):
            given.add(node.arg)
        elif isinstance(node, ast.ExceptHandler | ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and node.name:
            given.add(node.name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            given |= {(alias.asname or alias.name).partition(".")[0] for alias in node.names}
    return (read - given - ALWAYS_THERE) | ({name} - bound)
