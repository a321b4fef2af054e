"""Each stage is one short file of decisions that a reader can take in: a few methods more, each of them whole."""

import ast
import inspect
import sys

import pytest

from mini_vllm.errors import ConfigError
from mini_vllm.stages import STAGES, load_stage
from mini_vllm.stages.reading_order import methods_in_order

MOST_LINES = {4: 90} | dict.fromkeys(range(5, 11), 60)  # without docstrings: what a chapter may ask to take in
later = pytest.mark.parametrize("chapter", [n for n in STAGES if n > 4])
every = pytest.mark.parametrize("chapter", STAGES)


def tree_of(chapter):
    return ast.parse(inspect.getsource(sys.modules[load_stage(chapter).__module__]))


def logical_lines(tree):
    """Statements, however many lines they are written on; a docstring is none."""
    statements = [node for node in ast.walk(tree) if isinstance(node, ast.stmt)]
    texts = [n for n in statements if isinstance(n, ast.Expr) and isinstance(n.value, ast.Constant)]
    return len(statements) - len(texts)


def test_logical_lines_counts_statements():
    tree = ast.parse('def f(\n    a,\n):\n    """Text."""\n    if a: return g(\n        a)\n')
    assert logical_lines(tree) == 3


@every
def test_a_stage_is_short(chapter):
    assert logical_lines(tree_of(chapter)) <= MOST_LINES[chapter]


@later
def test_a_stage_extends_the_one_before(chapter):
    assert load_stage(chapter).__mro__[1] is load_stage(chapter - 1)


@every
def test_a_method_is_replaced_whole(chapter):
    """With `super()` neither the flattened class nor the difference would be the code that runs."""
    calls = [node for node in ast.walk(tree_of(chapter)) if isinstance(node, ast.Call)]
    assert not [call for call in calls if isinstance(call.func, ast.Name) and call.func.id == "super"]


@later
def test_what_a_stage_writes_is_run(chapter):
    cls = load_stage(chapter)
    own = [name for name, value in vars(cls).items() if inspect.isfunction(value)]
    assert own and set(own) <= set(methods_in_order(cls))
    same = [name for name in own if getattr(cls.__mro__[1], name, None) is getattr(cls, name)]
    assert not same


@every
def test_a_stage_holds_decisions_only(chapter):
    """Blocks, hashes, queues and plans come from core: a stage has one class, and ways to vary it."""
    first, *others = [node for node in tree_of(chapter).body if isinstance(node, ast.ClassDef)]
    assert first.name == "Scheduler"
    assert all(isinstance(o.bases[0], ast.Name) and o.bases[0].id == "Scheduler" for o in others)


def test_no_other_chapter_has_a_stage():
    with pytest.raises(ConfigError, match=r"chapter 3 has no stage .* \[4, 5, 6, 7, 8, 9, 10\]"):
        load_stage(3)
