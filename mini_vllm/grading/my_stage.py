"""The learner's own schedulers, kept from chapter to chapter. Knows one small file a chapter; judges none. Chapter 4.

A class that passes its chapter's check is written to `my_mini_vllm/chNN.py` beside the learner's work: to the clone, or
to the folder where the notebook runs. Only the learner's own notebooks load it. A graded run and a test never read or
write it; they get the reference.
"""

import contextlib
import inspect
import os
import sys
import traceback
import types
from pathlib import Path

from mini_vllm.config import SchedulerConfig
from mini_vllm.errors import ConfigError, GradingError
from mini_vllm.grading.kept_class import module_text
from mini_vllm.grading.progress_file import PROGRESS_FILE
from mini_vllm.stages import STAGES, load_stage
from mini_vllm.stages.reading_order import attributes_of_self

FOLDER = "my_mini_vllm"


def my_stage(chapter: str, *, to_extend: bool = False) -> type:
    """Your scheduler of a chapter, such as "ch04", or else the reference. Prints one line that says which.

    to_extend: it is to be the base of the next chapter's class, so it must have all that those are built on.
    Raises ConfigError for a chapter without a scheduler.
    """
    reference = load_stage(_number(chapter))
    path = _path(chapter)
    if path is None or not path.exists():
        print(f'my_stage("{chapter}"): the reference, {reference.__module__}')
        return reference
    shown = f"{FOLDER}/{path.name}"
    try:
        mine = load_kept(chapter)
        if to_extend and (missing := _missing(mine, _number(chapter))):
            raise GradingError(f"lacks {', '.join(missing)}, on which the next chapter builds")
    except GradingError as error:
        print(f'my_stage("{chapter}"): the reference, {reference.__module__}; {shown} {error}')
        return reference
    print(f'my_stage("{chapter}"): yours, {shown}')
    return mine


def load_kept(chapter: str) -> type:
    """The class in `my_mini_vllm/chNN.py`. GradingError says what is wrong with the file."""
    path = _path(chapter)
    if path is None:
        raise GradingError("is not read in a test or a graded run")
    try:
        return _class_of(path.read_text(encoding="utf-8"), chapter, str(path))
    except OSError as error:
        raise GradingError(f"cannot be read ({error.strerror})") from error
    except UnicodeDecodeError as error:
        raise GradingError("is broken: no UTF-8 text") from error


def keep(chapter: str, cls: type) -> None:
    """Write a class that has passed to the learner's folder and say so; say why, where that cannot be done."""
    path = _path(chapter)
    if path is None:
        return
    shown = f"{FOLDER}/{path.name}"
    try:
        text = module_text(cls, f"Your scheduler of {chapter}, as it passed its check; written by check().")
        _class_of(text, chapter, shown)
        path.parent.mkdir(parents=True, exist_ok=True)
        beside = path.with_name(f"{path.name}.{os.getpid()}.part")
        beside.write_text(text, encoding="utf-8")
        beside.replace(path)
    except GradingError as error:
        print(f"not kept as {shown}: {error}")
    except OSError as error:
        print(f"not kept as {shown}: {error.strerror}")
    else:
        print(f"kept as {shown}: the next chapters go on with it")


def stages_from(chapter: str) -> list[str]:
    """Modules that hold the schedulers of this chapter and of later ones: what a graded run of it must not import."""
    return [module for number, module in STAGES.items() if number >= _number(chapter)]


def _number(chapter: str) -> int:
    numbers = {f"ch{number:02}": number for number in STAGES}
    if chapter not in numbers:
        raise ConfigError(f"{chapter!r} is no chapter with a scheduler; there are {', '.join(numbers)}")
    return numbers[chapter]


def _path(chapter: str) -> Path | None:
    """Where the class is kept, whether it is there or not; None in a test, a graded run or an author's run."""
    from mini_vllm.grading.feedback import GRADED_FOLDER

    number = _number(chapter)
    if {"PYTEST_VERSION", GRADED_FOLDER} & os.environ.keys() or os.environ.get(PROGRESS_FILE) == "off":
        return None
    here = Path.cwd()
    around = [f for f in (here, *here.parents) if (f / FOLDER).is_dir() or (f / "mini_vllm" / "__init__.py").is_file()]
    return (around[0] if around else here) / FOLDER / f"ch{number:02}.py"


def _class_of(text: str, chapter: str, file_name: str) -> type:
    """Run the file's text and take its class. Compiled here, so that no stale byte code is ever used."""
    module = types.ModuleType(f"{FOLDER}.{chapter}")
    module.__file__ = file_name
    sys.modules[module.__name__] = module  # so that `inspect` finds the source
    try:
        with contextlib.redirect_stdout(None):
            exec(compile(text, file_name, "exec"), vars(module))
        cls = vars(module)[module.__all__[0]]
        if not isinstance(cls, type):
            raise TypeError(f"{module.__all__[0]} is no class")
    except (Exception, SystemExit) as error:
        del sys.modules[module.__name__]
        lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == file_name]
        line = error.lineno if isinstance(error, SyntaxError) else lines[-1] if lines else None
        where = f"line {line}: " if line else ""
        what = error.msg if isinstance(error, SyntaxError) else error
        raise GradingError(f"is broken: {where}{type(error).__name__}: {what}") from error
    return cls


def _missing(cls: type, number: int) -> list[str]:
    """What the next chapter's class calls or replaces in the one it extends, and `cls` does not have."""
    if number + 1 not in STAGES:
        return []
    config = SchedulerConfig()
    reference, following = load_stage(number)(config), load_stage(number + 1)
    try:
        mine = cls(config)
    except Exception as error:
        raise GradingError(f"cannot be built: {type(error).__name__}: {error}") from error
    own = {name: value for name, value in vars(following).items() if inspect.isfunction(value)}
    called = [name for method in own.values() for name in attributes_of_self(method) if name not in own]
    return [n for n in dict.fromkeys([*own, *called]) if hasattr(reference, n) and not hasattr(mine, n)]
