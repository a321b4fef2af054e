"""Runs first in every Python process of a graded run: says who reaches for an answer. Knows names only. All chapters.

The grader puts it on PYTHONPATH and, in MINI_VLLM_GRADED_FOLDER, a folder with cases.json. The answers are not in this
process's copy of mini_vllm at all; this file makes an attempt to get them a clear message, written to answers.jsonl
with the exercise whose cell made it. What keeps a process from the files it may not see is the jail around it.
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
    hidden_paths = tuple(asked["hidden_paths"])  # absolute folders
    answers = os.path.join(folder, "answers.jsonl")
    package = os.path.join(os.path.dirname(os.path.abspath(__file__)), "mini_vllm")
    busy = []  # not empty while this module itself opens a file

    def exercise_at_work(frame):
        """The exercise whose cell is running, from the source of the innermost frame that has a marker."""
        while frame:
            cached = linecache.cache.get(frame.f_code.co_filename)
            found = MARKER.search("".join(cached[2])) if cached and len(cached) == 4 else None
            if found:
                return found[1]
            frame = frame.f_back
        return None

    def asked_by_the_package(frame):
        """Whether a module of mini_vllm imports, for a reason of its own; its __init__ only passes names on."""
        while frame and ("importlib" in frame.f_code.co_filename or frame.f_code.co_filename == lazy_names):
            frame = frame.f_back
        return bool(frame) and frame.f_code.co_filename.startswith(package + os.sep)

    lazy_names = os.path.join(package, "__init__.py")

    def report(what, frame):
        busy.append(what)
        try:
            with open(answers, "a", encoding="utf-8") as file:
                file.write(json.dumps({"exercise": exercise_at_work(frame), "hidden": what}) + "\n")
        finally:
            busy.pop()

    class HiddenModules:
        """First of the import finders: refuses the hidden names, knows nothing of all others."""

        @staticmethod
        def find_spec(name, *where):
            if not name.startswith("mini_vllm."):
                return None
            if any(name == module or name.startswith(module + ".") for module in hidden):
                if not asked_by_the_package(sys._getframe(1)):
                    report(name, sys._getframe(1))
                raise ImportError(f"{name} is hidden while this exercise is graded: write it yourself", name=name)
            return None

    def watch_open(event, arguments):
        if event != "open" or busy or not isinstance(arguments[0], str | bytes):
            return
        path = os.path.realpath(os.fsdecode(arguments[0]))
        if path.endswith(".ipynb") or any(path == hide or path.startswith(hide + os.sep) for hide in hidden_paths):
            report(os.path.basename(path), sys._getframe(1))
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
        sys.path[:0] = entries


if os.environ.get("MINI_VLLM_GRADED_FOLDER"):
    install(os.environ["MINI_VLLM_GRADED_FOLDER"])
run_the_one_that_we_shadow()
