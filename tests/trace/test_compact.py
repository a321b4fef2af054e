"""A record written as what changed, and made whole again: tiny cases by eye, then random runs."""

import pytest

from mini_vllm.trace.compact import pack, unpack
from tests.trace.runs import random_trace, tiny_trace

BEFORE = {"step": 7, "running": ["a", "b"], "waiting": ["c"], "blocks": {"a": [1, 4], "b": [2]}, "free": 1}


def test_a_record_after_nothing_stays_whole():
    assert pack(BEFORE, None) == BEFORE
    assert unpack(BEFORE, None) == BEFORE


def test_only_what_changed_is_written():
    after = {"step": 8, "running": ["a", "b"], "waiting": [], "blocks": {"a": [1, 4, 5], "b": [2]}, "free": 0}
    assert pack(after, BEFORE) == {
        "step": 8, "waiting": [], "free": 0, "same": ["running"], "blocks_change": {"a": [2, [5]]}
    }  # fmt: skip


@pytest.mark.parametrize(
    ("after", "change"),
    [
        ({"a": [1, 4], "b": [2]}, {}),
        ({"a": [1, 4], "b": [2], "c": [9, 8]}, {"c": [0, [9, 8]]}),
        ({"b": [2]}, {"a": None}),
        ({}, {"a": None, "b": None}),
        ({"a": [1, 7, 8], "b": [2]}, {"a": [1, [7, 8]]}),
        ({"a": [0, 4], "b": [2]}, {"a": [0, [0, 4]]}),
        ({"a": [1], "b": [2]}, {"a": [1, []]}),
    ],
    ids=["nothing", "a new table", "one gone", "all gone", "another tail", "the window moved", "a shorter one"],
)
def test_a_change_of_a_block_table(after, change):
    row = pack({**BEFORE, "blocks": after}, BEFORE)
    assert row["blocks_change"] == change
    assert unpack(row, BEFORE)["blocks"] == after


def test_fields_that_nobody_knows_come_through():
    after = {**BEFORE, "step": 8, "mood": "fine", "running": ["a"]}
    assert unpack(pack(after, BEFORE), BEFORE) == after


def test_a_field_that_appears_or_disappears_is_not_called_the_same():
    without = {"step": 8, "scheduled": []}
    assert unpack(pack(without, BEFORE), BEFORE) == without
    assert unpack(pack(BEFORE, without), without) == BEFORE


def test_the_fields_of_a_line_stand_in_the_order_of_happening():
    first, second, _ = tiny_trace().steps
    assert list(unpack(pack(second, first), first)) == list(second)


def test_nothing_that_was_is_changed_by_what_comes_after():
    row = pack({**BEFORE, "blocks": {"a": [1, 4, 5]}}, BEFORE)
    unpack(row, BEFORE)["blocks"]["a"].append(99)
    assert BEFORE["blocks"] == {"a": [1, 4], "b": [2]}


@pytest.mark.parametrize("seed", range(40))
def test_random_runs_come_through(seed):
    previous_in = previous_out = None
    for record in random_trace(seed).steps:
        row = pack(record, previous_in)
        record_out = unpack(row, previous_out)
        assert record_out == record
        previous_in, previous_out = record, record_out
