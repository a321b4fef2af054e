"""What a reader builds on a chapter's page is the code that runs: the build cell is the stage's class.

The cell carries the tag stage-chNN. Docstrings and the name of the base class may differ; comments are not compared.
"""

import ast
import re
from pathlib import Path

import pytest

from mini_vllm.stages import STAGES
from tests.repo.repository import ROOT, cells, name, notebooks, tags

TAG = re.compile(r"stage-ch(\d\d)")


def chapter_of(path: Path) -> int:
    return int(path.name[:2]) if path.name[:2].isdecimal() else -1


# A chapter of the book, not a page beside it such as 05-review.
CHAPTERS = [p for p in notebooks("notebooks") if chapter_of(p) in STAGES and "review" not in p.stem]


def bare_class(source: str) -> str:
    """The syntax tree of `class Scheduler` without docstrings and bases."""
    (tree,) = [n for n in ast.parse(source).body if isinstance(n, ast.ClassDef) and n.name == "Scheduler"]
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            if ast.get_docstring(node) is not None:
                del node.body[0]
    tree.bases = []
    return ast.dump(tree, indent=1)


def stage_source(chapter: int) -> str:
    return (ROOT / f"{STAGES[chapter].replace('.', '/')}.py").read_text(encoding="utf-8")


def built_in(path: Path) -> list[tuple[int, str]]:
    """(chapter, source) of the tagged cells."""
    tagged = [(TAG.fullmatch(tag), cell) for cell in cells(path, "code") for tag in tags(cell)]
    return [(int(found[1]), cell["source"]) for found, cell in tagged if found]


@pytest.mark.parametrize("path", CHAPTERS, ids=name)
def test_the_build_cell_is_the_stage(path):
    chapter = chapter_of(path)
    assert [number for number, _ in built_in(path)] == [chapter], "one code cell has the tag stage-chNN of its chapter"
    source = built_in(path)[0][1]
    assert bare_class(source) == bare_class(stage_source(chapter))


@pytest.mark.parametrize("path", CHAPTERS, ids=name)
def test_the_build_cell_shows_nothing_but_the_class(path):
    for _, source in built_in(path):
        others = [n for n in ast.parse(source).body if not isinstance(n, ast.Import | ast.ImportFrom)]
        assert [type(n) for n in others] == [ast.ClassDef]


def test_no_other_page_carries_the_tag():
    assert [name(p) for p in notebooks() if built_in(p) and p not in CHAPTERS] == []


def test_what_the_comparison_overlooks_and_what_not():
    one = "import x\nclass Scheduler(Base):\n    'Text.'\n    def f(self):\n        'More.'\n        return 1  # why\n"
    other = "class Scheduler(Stage4):\n    def f(self):\n        return 1\n"
    assert bare_class(one) == bare_class(other)
    assert bare_class(other) != bare_class(other.replace("return 1", "return 2"))
    assert bare_class(other) != bare_class(other.replace("def f", "def g"))
