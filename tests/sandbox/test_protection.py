"""What a machine can put around a process, and what it says about the rest. Starts nothing."""

import sys
from pathlib import Path

import pytest

from mini_vllm.sandbox import landlock, protection, users
from mini_vllm.sandbox.protection import Protection, available


@pytest.fixture
def machine(monkeypatch):
    """A machine of one's choice."""

    def make(*, root: bool, rules: int, shared_python: bool) -> Protection:
        monkeypatch.setattr(protection.os, "geteuid", lambda: 0 if root else 1000)
        monkeypatch.setattr(landlock, "version", lambda: rules)
        monkeypatch.setattr(users, "everybody_may_read", lambda path: shared_python)
        available.cache_clear()
        return available()

    yield make
    available.cache_clear()


@pytest.mark.parametrize(
    ("root", "rules", "shared", "name", "reads_everywhere"),
    [
        (True, 7, True, "own user and file rules", False),
        (True, 7, False, "own user and file rules", True),
        (True, 0, True, "own user", False),
        (True, 0, False, "none", False),  # the right to read past file modes is only given with file rules
        (False, 7, True, "file rules", False),
        (False, 0, True, "none", False),
    ],
)
def test_what_there_is(machine, root, rules, shared, name, reads_everywhere):
    found = machine(root=root, rules=rules, shared_python=shared)
    assert found.name == name
    assert found.reads_everywhere == reads_everywhere


def test_a_gap_is_said_with_the_way_out(monkeypatch):
    secret = Path("/x/reference/__init__.py")
    assert Protection(False, True).gap(secret) == Protection(True, True).gap(secret) == ""
    assert "use a container" in Protection(False, False).gap(secret)
    monkeypatch.setattr(users, "everybody_may_read", lambda path: True)
    assert Protection(True, False).gap(secret).endswith("graded notebooks too: chmod -R o-rwx its folder")
    monkeypatch.setattr(users, "everybody_may_read", lambda path: False)
    assert Protection(True, False).gap(secret) == ""


def test_what_a_program_needs_is_readable_and_a_clone_is_not():
    clone = Path("/somewhere/clone")
    sys.path.insert(0, str(clone))
    try:
        readable = protection.readable(but_not=clone)
    finally:
        sys.path.remove(str(clone))
    assert {"/usr", sys.prefix, sys.base_prefix} <= set(readable)
    assert str(clone) not in readable and "/etc/shadow" not in readable and "" not in readable
