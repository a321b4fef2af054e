"""Says whether a function leads into a module that graded runs hide. Reads code objects, calls nothing. All chapters.

It follows what the function looks up: names of its module, its closure and its defaults, imports inside it, and the
functions and classes of the same module that it reaches by these. What it does not see, a graded run still refuses.
"""

import dis
import functools
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

LOOK_UP = {"LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS"}
ATTRIBUTE = {"LOAD_ATTR", "LOAD_METHOD"}
MODULE_NAME = re.compile(r"\w+(\.\w+)+")


def hidden_reach(fn: Callable, hidden: Sequence[str]) -> str | None:
    """The hidden module that `fn` uses or was defined in, or None."""
    own = {"__main__", getattr(fn, "__module__", None)}
    to_visit: list[Any] = [fn]
    seen: dict[int, Any] = {}  # keeps what it has seen alive, so that no id comes twice
    while to_visit:
        thing = to_visit.pop(0)
        if id(thing) in seen:
            continue
        seen[id(thing)] = thing
        if isinstance(thing, str):  # what an import statement or import_module names
            name = thing
        else:
            name = thing.__name__ if isinstance(thing, ModuleType) else _home(thing)
        if found := _hidden_part(name, hidden):
            return found
        to_visit += _leads_to(thing, own)
    return None


def _hidden_part(name: str, hidden: Sequence[str]) -> str | None:
    return next((module for module in hidden if name == module or name.startswith(module + ".")), None)


def _home(thing: Any) -> str:
    home = getattr(thing, "__module__", None)
    return home if isinstance(home, str) else type(thing).__module__


def _leads_to(thing: Any, own: set[str | None]) -> Iterator[Any]:
    """What `thing` looks up, where `thing` is code of the learner's own module."""
    if isinstance(thing, str):
        return
    if isinstance(thing, functools.partial):
        yield thing.func
    elif isinstance(thing, MethodType):
        yield thing.__func__
    elif _home(thing) not in own:
        return
    elif isinstance(thing, FunctionType):
        yield from _looked_up(thing.__code__, thing.__globals__)
        yield from (thing.__defaults__ or ())
        for cell in thing.__closure__ or ():
            try:
                yield cell.cell_contents
            except ValueError:  # not filled yet
                continue
    elif isinstance(thing, type):
        yield from thing.__mro__[1:]
        yield from vars(thing).values()
    else:
        yield from filter(None, [getattr(thing, "__wrapped__", None), type(thing)])


def _looked_up(code: CodeType, names: dict[str, Any]) -> Iterator[Any]:
    """Values of global names, of attributes of modules, and names of modules as text."""
    value: Any = None
    for step in dis.get_instructions(code):
        if step.opname in LOOK_UP:
            value = names.get(step.argval)
        elif step.opname in ATTRIBUTE:
            value = _attribute(value, step.argval)
        elif step.opname == "IMPORT_NAME":  # what becomes of it is not followed: every attribute is looked up in it
            yield step.argval
            module = sys.modules.get(step.argval)
            yield from (_attribute(module, name) for name in code.co_names)
        yield value
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _looked_up(constant, names)
        elif isinstance(constant, str) and MODULE_NAME.fullmatch(constant):
            yield constant


def _attribute(module: Any, name: str) -> Any:
    if not isinstance(module, ModuleType):
        return None
    try:
        return getattr(module, name, None)
    except Exception:  # a name that loads lazily, of a library that is not installed
        return None
