"""Stop texts: found across pieces, and never half given out. Chapter 14."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mini_vllm.engine.stop_strings import StopStringFinder


def pieces(text, stop, sizes, include=False):
    finder, out, at = StopStringFinder(stop, include), [], 0
    while at < len(text):
        size = next(sizes)
        out.append(finder.add(text[at : at + size]))
        at += size
    return out, finder


def test_a_stop_text_over_three_pieces():
    finder = StopStringFinder(["END"])
    assert [finder.add(piece) for piece in ("so E", "N", "D and more", "later")] == ["so ", "", "", ""]
    assert finder.found == "END" and finder.flush() == ""


def test_what_only_looked_like_one_is_given_out():
    finder = StopStringFinder(["END"])
    assert [finder.add(piece) for piece in ("so EN", "EN", "!")] == ["so ", "EN", "EN!"]
    assert finder.found is None and finder.flush() == ""


def test_the_rest_comes_at_the_end():
    finder = StopStringFinder(["END"])
    assert finder.add("an E") == "an " and finder.flush() == "E" and finder.flush() == ""


def test_it_may_be_kept():
    finder = StopStringFinder(["END"], include=True)
    assert finder.add("so EN") == "so " and finder.add("D.") == "END" and finder.found == "END"


def test_the_first_ends_it():
    finder = StopStringFinder(["cd", "bcde", "bc"])
    assert finder.add("abcdef") == "a" and finder.found == "bc"


def test_without_stop_texts_nothing_waits():
    assert StopStringFinder([]).add("abc") == "abc"


@given(
    st.text("ab", max_size=40),
    st.lists(st.text("ab", min_size=1, max_size=5), max_size=3),
    st.integers(0, 99),
    st.booleans(),
)
def test_any_text_in_any_pieces(text, stop, seed, include):
    """The same answer whatever the pieces, and at no moment any of a stop text."""
    rng = random.Random(seed)
    out, finder = pieces(text, stop, iter(lambda: rng.randint(1, 4), 0), include)
    ends = [(text.index(s), len(s), s) for s in stop if s in text]
    total = "".join(out) + finder.flush()
    if not ends:
        assert total == text and finder.found is None
        return
    # It ends at the stop text that is complete first; in one piece several may become so at once.
    assert finder.found in stop
    at = text.index(finder.found)
    assert total == text[: at + (len(finder.found) if include else 0)]
    if not include:
        assert all(s not in total for s in stop)


@pytest.mark.parametrize("size", [1, 2, 7])
def test_long_stop_texts_cost_little(size):
    text, stop = "a" * 3000, ["a" * 999 + "b"]
    out, finder = pieces(text, stop, iter(lambda: size, 0))
    assert "".join(out) + finder.flush() == text
