"""The block pool: the ring of free blocks, owners, and the index of what is cached. Hashes are any bytes here."""

import re

import pytest

from mini_vllm.core.block_pool import NULL_BLOCK, BlockPool


def pool_with_cached(num_blocks, *hashes):
    """A pool whose blocks 1, 2, … carry these hashes and are idle, freed tail first, as a request frees them."""
    pool = BlockPool(num_blocks)
    blocks = pool.take(len(hashes))
    for block, block_hash in zip(blocks, hashes, strict=True):
        pool.register(block, block_hash)
    pool.free(blocks[::-1])
    return pool


def test_the_pool_starts_with_all_blocks_but_the_null_block():
    assert BlockPool(3).free_queue() == [1, 2, 3]
    assert BlockPool(3).num_free_blocks == 3


def test_blocks_are_taken_from_the_head():
    pool = BlockPool(4)
    assert pool.take(3) == [1, 2, 3]
    assert (pool.num_free_blocks, pool.free_queue()) == (1, [4])


def test_the_last_block_can_be_taken_and_given_back():
    pool = BlockPool(1)
    assert (pool.take(1), pool.free_queue(), pool.num_free_blocks) == ([1], [], 0)
    pool.free([1])
    assert (pool.free_queue(), pool.num_free_blocks) == ([1], 1)


def test_freed_blocks_without_a_hash_go_to_the_front_in_the_order_given():
    pool = BlockPool(5)
    pool.free(pool.take(3)[::-1])  # tail first
    assert pool.free_queue() == [3, 2, 1, 4, 5]


def test_freed_blocks_with_a_hash_go_to_the_back_in_the_order_given():
    assert pool_with_cached(5, b"a", b"b").free_queue() == [3, 4, 5, 2, 1]


def test_one_free_call_sorts_its_blocks_to_both_ends():
    pool = BlockPool(6)
    blocks = pool.take(4)  # two full ones, and a tail of two that is not worth keeping
    pool.register(blocks[0], b"a")
    pool.register(blocks[1], b"b")
    pool.free(blocks[::-1])
    assert pool.free_queue() == [4, 3, 5, 6, 2, 1]


def test_the_cached_block_that_was_freed_first_is_reused_first():
    pool = BlockPool(2)
    for block, block_hash in zip(pool.take(2), (b"old", b"new"), strict=True):
        pool.register(block, block_hash)
    pool.free([2])
    pool.free([1])
    assert pool.take(1) == [2]


def test_taking_a_block_evicts_what_is_cached_in_it():
    pool = pool_with_cached(1, b"a")
    assert pool.find(b"a") == 1
    pool.take(1)
    assert (pool.find(b"a"), pool.hash_of[1], pool.cached) == (None, None, {})


def test_an_idle_block_keeps_its_content_until_it_is_taken():
    pool = pool_with_cached(3, b"a")
    pool.take(2)
    assert pool.find(b"a") == 1


def test_touch_takes_a_block_out_of_the_middle_of_the_queue():
    pool = pool_with_cached(3, b"a", b"b", b"c")
    assert pool.free_queue() == [3, 2, 1]
    pool.touch([2])
    assert (pool.free_queue(), pool.num_free_blocks) == ([3, 1], 2)
    assert pool.find(b"b") == 2  # still there for others


@pytest.mark.parametrize("block", [1, 2, 3])
def test_the_ring_is_whole_after_a_touch_anywhere(block):
    pool = pool_with_cached(3, b"a", b"b", b"c")
    pool.touch([block])
    rest = [b for b in (3, 2, 1) if b != block]
    assert pool.take(2) == rest
    pool.free([block])
    assert pool.free_queue() == [block]


def test_a_touched_block_goes_to_the_back_when_it_is_freed_again():
    pool = pool_with_cached(3, b"a", b"b", b"c")
    pool.touch([3])
    pool.free([3])
    assert pool.free_queue() == [2, 1, 3]


def test_a_block_is_free_when_its_last_owner_has_gone():
    pool = pool_with_cached(1, b"a")
    pool.touch([1])
    pool.touch([1])
    assert pool.ref_count[1] == 2
    pool.free([1])
    assert (pool.ref_count[1], pool.num_free_blocks) == (1, 0)
    pool.free([1])
    assert (pool.ref_count[1], pool.num_free_blocks) == (0, 1)


def test_idle_means_without_an_owner():
    pool = pool_with_cached(3, b"a", b"b")
    pool.touch([1])
    assert pool.num_idle([1, 2]) == 1


def test_of_identical_blocks_the_one_registered_first_is_found():
    pool = BlockPool(3)
    pool.take(3)
    for block in (2, 3, 1):
        pool.register(block, b"same")
    assert pool.find(b"same") == 2


def test_when_it_is_gone_the_next_one_is_found():
    pool = BlockPool(2)
    pool.take(2)
    pool.register(1, b"same")
    pool.register(2, b"same")
    pool.free([1])
    assert pool.find(b"same") == 1
    assert pool.take(1) == [1]
    assert pool.find(b"same") == 2


def three_twins():
    """Blocks 2, 3 and 1 hold the same, registered in this order; all are idle."""
    pool = BlockPool(3)
    pool.take(3)
    for block in (2, 3, 1):
        pool.register(block, b"same")
    pool.free([1, 2, 3])
    pool.check_integrity([])
    return pool


@pytest.mark.parametrize(
    ("order", "found"),
    [
        ([2, 3, 1], [3, 1, None]),  # the first holder goes first
        ([3, 2, 1], [2, 1, None]),
        ([1, 3, 2], [2, 2, None]),
        ([3, 1, 2], [2, 2, None]),
        ([2, 1, 3], [3, 3, None]),
    ],
)
def test_twins_may_go_in_any_order(order, found):
    pool = three_twins()
    for block, still_found in zip(order, found, strict=True):
        pool.touch([block])
        pool.forget_hash(block)
        assert pool.find(b"same") == still_found
        pool.check_integrity([b for b in order if pool.ref_count[b]])
    assert (pool.cached, pool.twins) == ({}, {})


def test_taking_twins_evicts_one_after_the_other():
    pool = three_twins()
    assert [pool.take(1) + [pool.find(b"same")] for _ in range(3)] == [[1, 2], [2, 3], [3, None]]
    assert (pool.cached, pool.twins) == ({}, {})


def test_the_only_holder_has_no_twin():
    pool = three_twins()
    pool.take(2)
    assert (pool.cached, pool.twins) == ({b"same": 3}, {})


def test_one_who_comes_back_is_the_last_of_the_twins():
    pool = three_twins()
    pool.forget_hash(2)
    pool.register(2, b"same")
    pool.forget_hash(3)
    assert pool.find(b"same") == 1
    pool.check_integrity([])


@pytest.mark.parametrize("num_holders", [1, 2])
def test_registering_the_same_again_changes_nothing(num_holders):
    pool = pool_with_cached(2, *[b"same"] * num_holders)
    before = (dict(pool.cached), {h: list(blocks) for h, blocks in pool.twins.items()})
    for block in range(1, num_holders + 1):
        pool.register(block, b"same")
    assert (pool.cached, {h: list(blocks) for h, blocks in pool.twins.items()}) == before


def test_what_was_never_registered_is_not_found():
    assert BlockPool(2).find(b"a") is None


def test_the_null_block_among_hits_is_neither_owned_nor_idle():
    pool = pool_with_cached(2, b"a")
    assert pool.num_idle([NULL_BLOCK, 1, NULL_BLOCK]) == 1
    pool.touch([NULL_BLOCK, 1])
    assert (pool.ref_count[NULL_BLOCK], pool.free_queue()) == (0, [2])
    pool.check_integrity([NULL_BLOCK, 1])


def test_the_null_block_is_never_taken_nor_freed():
    pool = BlockPool(2)
    pool.free([NULL_BLOCK, *pool.take(2)])
    assert NULL_BLOCK not in pool.free_queue()
    assert pool.ref_count[NULL_BLOCK] == 0
    assert sorted(pool.take(2)) == [1, 2]


# --- check_integrity names what is broken ---


def lost(pool):
    pool._unlink(3)


def miscounted(pool):
    pool.num_free_blocks += 1


def negative(pool):
    pool.ref_count[3] = -1


def free_and_owned(pool):
    pool._link(NULL_BLOCK, 1)


def hash_without_index(pool):
    pool.hash_of[1] = b"a"


def index_without_hash(pool):
    pool.cached[b"a"] = 1


def link_back_elsewhere(pool):
    pool._prev[4] = 1


def twins_of_one(pool):
    pool.register(1, b"a")
    pool.twins[b"a"] = {1: None}


def twins_with_another_first(pool):
    pool.register(1, b"a")
    pool.register(2, b"a")
    pool.cached[b"a"] = 2


@pytest.mark.parametrize(
    ("spoil", "owners", "message"),
    [
        (lost, [1, 2], "free queue [4], blocks without an owner [3, 4]"),
        (free_and_owned, [1, 2], "free queue [1, 3, 4], blocks without an owner [3, 4]"),
        (miscounted, [1, 2], "free queue [3, 4], count 3"),
        (negative, [1, 2], "block tables count [0, 1, 1, 0, 0], the pool [0, 1, 1, -1, 0]"),
        (hash_without_index, [1, 2], "the index and the blocks disagree on {(1, b'a')}"),
        (index_without_hash, [1, 2], "the index and the blocks disagree on {(1, b'a')}"),
        (link_back_elsewhere, [1, 2], "a back link is wrong"),
        (twins_of_one, [1, 2], "twins [1], of which one is found"),
        (twins_with_another_first, [1, 2], "twins [1, 2], of which one is found"),
        (lambda pool: None, [1], "block tables count [0, 1, 0, 0, 0], the pool [0, 1, 1, 0, 0]"),
        (lambda pool: None, [1, 1, 2], "block tables count [0, 2, 1, 0, 0], the pool [0, 1, 1, 0, 0]"),
    ],
)
def test_check_integrity_names_what_is_broken(spoil, owners, message):
    pool = BlockPool(4)
    pool.take(2)
    pool.check_integrity([1, 2])
    spoil(pool)
    with pytest.raises(AssertionError, match=re.escape(message)):
        pool.check_integrity(owners)


def test_the_null_block_in_a_table_counts_for_nothing():
    pool = BlockPool(2)
    pool.take(1)
    pool.check_integrity([NULL_BLOCK, NULL_BLOCK, 1])
