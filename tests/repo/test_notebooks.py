"""Notebooks read the same in the book and in Colab, and their stored outputs were really run."""

import re

import pytest

from tests.repo.repository import cells, name, notebooks, tags

DIRECTIVE = re.compile(r"^\s*(?:`{3,}\{[\w:-]+\}|:{3,})", re.MULTILINE)
ROLE = re.compile(r"\{[a-z][\w:.-]*\}`")
LABEL = re.compile(r"^\([\w:-]+\)=\s*$", re.MULTILINE)
BOX = re.compile(r"<div class=\"admonition[^>]*>(.*?)</div>", re.DOTALL)
ALL = pytest.mark.parametrize("path", notebooks(), ids=name)


def without_code(markdown: str) -> str:
    return re.sub(r"(?ms)^```(?!\{).*?^```|(?<!`)``[^`]+``", "", markdown)


def test_there_are_notebooks():
    assert notebooks("notebooks") and notebooks("exercises") and notebooks("solutions")


@ALL
def test_no_myst_syntax(path):
    found = [
        match[0].strip()
        for cell in cells(path, "markdown")
        for pattern in (DIRECTIVE, ROLE, LABEL)
        for match in pattern.finditer(without_code(cell["source"]))
    ]
    assert not found, "Colab shows directives, roles and labels as raw text"


@ALL
def test_boxes_have_a_title_and_no_blank_line(path):
    for cell in cells(path, "markdown"):
        for box in BOX.findall(cell["source"]):
            assert box.strip().startswith('<p class="title">'), f"a box starts with its title: {box[:80]!r}"
            assert "\n\n" not in box, f"a blank line ends the box in Jupyter: {box[:80]!r}"


@ALL
def test_images_say_what_they_show(path):
    for cell in cells(path, "markdown"):
        assert "![](" not in cell["source"]
        for image in re.findall(r"<img[^>]*>", cell["source"]):
            assert re.search(r'alt="[^"]+"', image), image


@ALL
def test_few_outputs_are_not_compared(path):
    code = [cell for cell in cells(path, "code") if "setup" not in tags(cell)]
    ignored = [c for c in code if "nbval-ignore-output" in tags(c) or "NBVAL_IGNORE_OUTPUT" in c["source"]]
    assert len(ignored) * 4 <= len(code), f"{len(ignored)} of {len(code)} cells are not compared; one in four may"


@pytest.mark.parametrize("path", notebooks("notebooks", "solutions"), ids=name)
def test_every_cell_was_run_in_order_without_error(path):
    code = cells(path, "code")
    assert [cell["execution_count"] for cell in code] == list(range(1, len(code) + 1)), "run make execute"
    for cell in code:
        errors = [output for output in cell["outputs"] if output["output_type"] == "error"]
        assert not errors or "raises-exception" in tags(cell), errors
