"""Every Python file opens with what it knows, and fits in a reader's head."""

import ast

import pytest

from tests.repo.repository import name, python_files

LONGEST = 300


@pytest.mark.parametrize("path", python_files(), ids=name)
def test_first_line_says_what_the_file_knows(path):
    docstring = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
    assert docstring and docstring.strip(), "the first statement is a docstring"


def test_files_are_short():
    counts = {name(path): len(path.read_text(encoding="utf-8").splitlines()) for path in python_files()}
    long = [f"{count} lines: {file}" for file, count in sorted(counts.items()) if count > LONGEST]
    print(*long, sep="\n")
    to_split = [line for line in long if ": tests/" not in line]
    assert not to_split, "one noun each: split these files"
