"""The difference of a stage to the one before: each method whole, with what is new in it and what went."""

import re
import subprocess
import sys

import pytest

from mini_vllm.errors import ConfigError
from mini_vllm.stages import STAGES, load_stage
from mini_vllm.stages.reading_order import methods_in_order, source_of
from mini_vllm.viz.stage_diff import stage_diff

later = pytest.mark.parametrize("chapter", [n for n in STAGES if n > 4])


class Base:
    def schedule(self):
        return self.admit()

    def admit(self):
        """Lets in."""
        return self.old()

    def old(self):
        return 1


class Grown(Base):
    def admit(self):
        """Lets in."""
        return self.new(1 < 2)

    def new(self, a):
        return a


def test_a_small_difference_as_text():
    assert str(stage_diff(Grown)) == "\n".join(
        [
            "Grown against Base",
            "",
            "admit replaced",
            "  def admit(self):",
            '      """Lets in."""',
            "-     return self.old()",
            "+     return self.new(1 < 2)",
            "",
            "new added",
            "+ def new(self, a):",
            "+     return a",
            "",
            "no longer called: old",
        ]
    )


@later
def test_with_the_difference_one_stage_becomes_the_next(chapter):
    before, after = (methods_in_order(load_stage(n)) for n in (chapter - 1, chapter))
    changed = dict(stage_diff(chapter).parts)
    for heading, changes in changes_by_name(changed).items():
        kept = [line[2:] for line in changes if line[:1] != "+"]
        now = [line[2:] for line in changes if line[:1] != "-"]
        assert now == source_of(after[heading]).splitlines()
        assert kept == (source_of(before[heading]).splitlines() if heading in before else [])
    untouched = after.keys() - changes_by_name(changed).keys()
    assert all(after[name] is before[name] for name in untouched)
    assert stage_diff(chapter).gone == [name for name in before if name not in after]


def changes_by_name(parts):
    return {heading.split()[0]: changes for heading, changes in parts.items()}


def test_the_page_holds_the_same_lines_and_escapes_them():
    bundle = stage_diff(Grown)._repr_mimebundle_()
    assert bundle["text/plain"] == str(stage_diff(Grown))
    text = bundle["text/html"]
    assert "1 &lt; 2" in text and "1 < 2" not in text
    assert "<code>new</code> added" in text and "no longer called: <code>old</code>" in text
    assert len(re.findall(r"<span style=", text)) == 4  # one line went, three came


def test_the_page_loads_nothing_and_suits_both_modes():
    text = stage_diff(5)._repr_mimebundle_()["text/html"]
    assert not re.search(r"<script|<link|<img|https?:|src=|url\(", text)
    grounds = re.findall(r"background:([^;\"]+)", text)
    assert {ground.split("(")[0] for ground in grounds} == {
        "rgba",
        "transparent",
    }  # the page's own ground shows through
    assert set(re.findall(r"(?<![-\w])color:([^;\"]+)", text)) == {"inherit"}


def test_the_same_bytes_in_another_process():
    code = "from mini_vllm.viz.stage_diff import stage_diff; print(stage_diff(6)._repr_mimebundle_()['text/html'])"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert run.stdout.rstrip("\n") == stage_diff(6)._repr_mimebundle_()["text/html"].rstrip("\n")


@pytest.mark.parametrize("given", [4, Base])
def test_nothing_to_compare_with(given):
    with pytest.raises(ConfigError, match="extends no other scheduler"):
        stage_diff(given)


def test_an_unknown_chapter():
    with pytest.raises(ConfigError, match="chapter 11 has no stage"):
        stage_diff(11)
