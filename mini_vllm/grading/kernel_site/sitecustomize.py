"""Runs first in every Python process of a graded run: hides the answers. Knows names of modules only. All chapters.

The grader puts this folder on PYTHONPATH and, in MINI_VLLM_GRADED_FOLDER, a folder with cases.json. A hidden module
cannot be imported, and its file cannot be opened, from here on; each attempt is written to answers.jsonl with the
exercise whose cell made it. It keeps the honest honest: who is after the grader itself needs a container around it.
"""

import importlib
import json
import linecache
import os
import re
import sys

MARKER = re.compile(r"^\s*#\s*EXERCISE\s+(c\d\d-[eb]\d+)\b", re.MULTILINE)


def install(folder):
    with open(os.path.join(folder, "cases.json"), encoding="utf-8") as file:
        asked = json.load(file)
    hidden = tuple(asked["hidden_modules"])
    hidden_paths = tuple(asked["hidden_paths"])  # absolute; a module's stands for its folder and for its .py file
    answers = os.path.join(folder, "answers.jsonl")
    busy = []  # not empty while this module itself opens a file

    def exercise_at_work():
        """The exercise whose cell is running, from the source of the innermost frame that has a marker."""
        frame = sys._getframe(2)
        while frame:
            cached = linecache.cache.get(frame.f_code.co_filename)
            found = MARKER.search("".join(cached[2])) if cached and len(cached) == 4 else None
            if found:
                return found[1]
            frame = frame.f_back
        return None

    def report(what):
        busy.append(what)
        try:
            with open(answers, "a", encoding="utf-8") as file:
                file.write(json.dumps({"exercise": exercise_at_work(), "hidden": what}) + "\n")
        finally:
            busy.pop()

    class HiddenModules:
        """First of the import finders: refuses the hidden names, knows nothing of all others."""

        @staticmethod
        def find_spec(name, *where):
            if not name.startswith("mini_vllm."):
                return None
            if any(name == module or name.startswith(module + ".") for module in hidden):
                report(name)
                raise ImportError(f"{name} is hidden while this exercise is graded: write it yourself", name=name)
            return None

    def watch_open(event, arguments):
        if event != "open" or busy or not isinstance(arguments[0], str | bytes):
            return
        path = os.path.realpath(os.fsdecode(arguments[0]))
        if any(path.removesuffix(".py") == hide or path.startswith(hide + os.sep) for hide in hidden_paths):
            report(os.path.basename(path))
            raise PermissionError(f"{os.path.basename(path)} is hidden while this exercise is graded")

    sys.meta_path.insert(0, HiddenModules)
    sys.addaudithook(watch_open)


def run_the_one_that_we_shadow():
    """Some systems have a sitecustomize of their own: load it too."""
    here = os.path.dirname(os.path.abspath(__file__))
    entries = [entry for entry in sys.path if os.path.abspath(entry) == here]
    for entry in entries:
        sys.path.remove(entry)
    mine = sys.modules.pop("sitecustomize", None)
    try:
        importlib.import_module("sitecustomize")
    except ModuleNotFoundError:
        pass
    finally:
        sys.modules.setdefault("sitecustomize", mine)


def hold_the_lock_of_the_living(folder):
    """Lock a file for as long as this kernel lives: the grader sees at once when it is gone. nbval would wait."""
    try:
        import fcntl
    except ImportError:  # not a POSIX system: nbval's own limit has to do
        return
    descriptor = os.open(os.path.join(folder, "alive"), os.O_CREAT | os.O_RDWR)
    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)


if os.environ.get("MINI_VLLM_GRADED_FOLDER"):
    if any("ipykernel" in argument for argument in sys.orig_argv):
        hold_the_lock_of_the_living(os.environ["MINI_VLLM_GRADED_FOLDER"])
    install(os.environ["MINI_VLLM_GRADED_FOLDER"])
run_the_one_that_we_shadow()
