"""KV memory in one piece and in blocks: tiny memories read by eye, then random ones with invariants. Knows no page."""

import random

import pytest

from mini_vllm.errors import KVPoolTooSmallError
from mini_vllm.sim.contiguous import EMPTY, FREE, TOKEN, InBlocks, OnePiece, picture, play

DRAWN = {FREE: ".", EMPTY: "_", TOKEN: "#"}


def drawn(memory):
    return "".join(DRAWN[state] for state in picture(memory))


def test_first_fit_leaves_holes_that_do_not_add_up():
    memory = OnePiece(12)
    for name, tokens, last in (("a", 2, 3), ("b", 4, 4), ("c", 1, 3)):
        assert memory.enter(name, tokens, last)
    assert drawn(memory) == "##_####" + "#__" + ".."
    memory.leave("b")
    assert drawn(memory) == "##_...." + "#__" + ".."
    assert not memory.enter("d", 1, 5), "six slots are free, in holes of four and two"
    assert memory.enter("e", 2, 2) and drawn(memory) == "##_##..#__.."
    assert memory.grow("e") is True


def test_holes_that_touch_become_one():
    memory = OnePiece(6)
    for name in "abc":
        memory.enter(name, 2, 2)
    for name in "acb":
        memory.leave(name)
    assert memory.holes == [range(6)] and memory.enter("d", 6, 6)


def test_everybody_gets_the_longest():
    memory = OnePiece(10, longest=4)
    assert memory.enter("a", 1, 2) and memory.enter("b", 1, 2) and not memory.enter("c", 1, 1)
    assert drawn(memory) == "#___#___.."


def test_blocks_lie_anywhere_and_only_last_ones_are_part_filled():
    memory = InBlocks(8, block_size=2)
    assert memory.enter("a", 3, 9) and memory.enter("b", 2, 9) and memory.enter("c", 1, 9)
    assert drawn(memory) == "###_###_"
    memory.leave("b")
    assert drawn(memory) == "###_..#_"
    assert memory.grow("a") and memory.grow("a") and drawn(memory) == "#####_#_"
    assert not memory.enter("d", 1, 1) and "d" not in memory.requests
    assert memory.grow("c") and not memory.grow("c"), "its block is full, and no other is free"


def test_a_run_step_by_step():
    """Three requests of 2 + 2 tokens in five slots: the KV of the last token is never computed, so each takes 3."""
    moments = list(play(OnePiece(5), [(2, 2)] * 3))
    assert [(m.num_residents, m.num_waiting, m.num_held, m.num_tokens) for m in moments] == [
        (1, 2, 3, 2), (1, 2, 3, 3), (1, 1, 3, 2), (1, 1, 3, 3), (1, 0, 3, 2), (1, 0, 3, 3),
    ]  # fmt: skip
    assert not any(m.has_room_in_pieces for m in moments)


def test_room_in_pieces_is_seen():
    """a and c leave the first and the last slot; d needs two, and gets them when b in the middle has ended."""
    moments = list(play(OnePiece(6), [(1, 1), (2, 3), (1, 1), (2, 1)]))
    assert [(m.num_residents, m.num_held, m.has_room_in_pieces) for m in moments] == [
        (3, 6, False), (1, 4, True), (1, 4, True), (1, 2, False),
    ]  # fmt: skip


def test_who_finds_no_block_sends_the_last_comer_away():
    """Two requests of 1 + 4 tokens, three blocks of one: both enter, and the second gives way."""
    moments = list(play(InBlocks(3, block_size=1), [(1, 3)] * 2))
    assert [m.num_residents for m in moments] == [2, 1, 1, 1, 1]
    assert moments[-1].num_evicted == 1


def test_what_can_never_fit_is_an_error():
    with pytest.raises(KVPoolTooSmallError, match="request 0 of 9 tokens finds no room in all 8 slots"):
        list(play(OnePiece(8), [(5, 5)]))


@pytest.mark.parametrize("make", [lambda n: OnePiece(n), lambda n: OnePiece(n, 30), lambda n: InBlocks(n, 4)])
def test_random_runs_serve_everybody_and_count_right(make):
    for seed in range(20):
        rng = random.Random(seed)
        lengths = [(rng.randint(1, 15), rng.randint(1, 15)) for _ in range(rng.randint(1, 25))]
        memory = make(rng.choice([32, 48, 96]))
        for moment in play(memory, lengths):
            states = picture(memory)
            assert states.count(TOKEN) == moment.num_tokens
            assert states.count(TOKEN) + states.count(EMPTY) == moment.num_held <= memory.num_slots
            if isinstance(memory, InBlocks):
                memory.manager.check_integrity()
                assert moment.num_held - moment.num_tokens <= 3 * moment.num_residents
        assert picture(memory).count(FREE) == memory.num_slots
