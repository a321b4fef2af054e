"""What a scheduler adds to the one it extends, method by method. Knows source text; runs nothing. Chapters 4 to 10."""

import difflib
import html
import inspect
from collections.abc import Callable, Iterator

from mini_vllm.errors import ConfigError
from mini_vllm.stages import load_stage
from mini_vllm.stages.reading_order import methods_in_order, source_of

# Tints over whatever ground the page has, and the text in its own colour: right in light and in dark mode.
TINTS = {"+": "rgba(0,158,115,.22)", "-": "rgba(213,94,0,.22)"}
PRE = "margin:.2rem 0 1rem;padding:.5rem .6rem;overflow-x:auto;border:1px solid rgba(128,128,128,.45);font-size:.82rem"
PRE += ";line-height:1.35;background:transparent;color:inherit"


class StageDiff:
    """Three lists: methods that are new, methods that replace an inherited one, and those that nobody calls any more.

    `parts`: (heading, lines) of each method; a line begins with "+", "-" or a blank, as in a unified diff.
    """

    def __init__(self, scheduler_cls: type):
        base = scheduler_cls.__mro__[1]
        if base is object:
            raise ConfigError(f"{scheduler_cls.__name__} extends no other scheduler: there is nothing to compare with")
        now, before = methods_in_order(scheduler_cls), methods_in_order(base)
        own = [name for name in now if now[name] is not before.get(name)]
        self.title = f"{_where(scheduler_cls)} against {_where(base)}"
        self.parts: list[tuple[str, list[str]]] = []
        for name in own:
            inherited = before.get(name)
            heading = f"{name} replaced" if inherited else f"{name} added"
            self.parts.append((heading, [*_changes(inherited, now[name])]))
        self.gone = [name for name in before if name not in now]

    def __repr__(self) -> str:
        lines = [self.title]
        for heading, changes in self.parts:
            lines += ["", heading, *changes]
        return "\n".join([*lines, *self._last_words()])

    def _last_words(self) -> list[str]:
        return ["", f"no longer called: {', '.join(self.gone)}"] if self.gone else []

    def _repr_mimebundle_(self, include=None, exclude=None) -> dict[str, str]:
        parts = [f"<p><strong>{html.escape(self.title)}</strong></p>"]
        for heading, changes in self.parts:
            name, _, what = heading.partition(" ")
            rows = "".join(map(_row, changes))
            parts.append(f'<p style="margin:0"><code>{name}</code> {what}</p>')
            parts.append(f'<pre style="{PRE}" tabindex="0">{rows}</pre>')
        if self.gone:
            names = ", ".join(f"<code>{name}</code>" for name in self.gone)
            parts.append(f"<p>no longer called: {names}</p>")
        return {"text/html": f'<div class="stage-diff">{"".join(parts)}</div>', "text/plain": repr(self)}


def stage_diff(stage: int | type) -> StageDiff:
    """The difference of a chapter's scheduler, or of your own class, to the one that it extends.

    As the last value of a cell it shows; `print` gives it as text. Raises ConfigError for chapter 4 and for a class
    that extends none.
    """
    return StageDiff(load_stage(stage) if isinstance(stage, int) else stage)


def _where(cls: type) -> str:
    """ "chapter 5" for a stage, the name for another class."""
    module = inspect.getmodule(cls)
    name = module.__name__.rpartition(".")[2] if module else ""
    if name.startswith("ch") and cls.__name__ == "Scheduler":
        return f"chapter {int(name[2:4])}"
    return cls.__name__


def _changes(inherited: Callable | None, method: Callable) -> Iterator[str]:
    """The whole method, with what is new in it and what went."""
    before = source_of(inherited).splitlines() if inherited else []
    for line in difflib.ndiff(before, source_of(method).splitlines()):
        if line[0] != "?":  # ndiff points at the characters with these
            yield f"{line[0]} {line[2:]}".rstrip()


def _row(line: str) -> str:
    tint = TINTS.get(line[:1])
    style = f' style="background:{tint}"' if tint else ""
    return f"<span{style}>{html.escape(line) or ' '}</span>\n"
