"""Names for KV blocks: two blocks share one exactly if everything before them, salt and adapter are the same too."""

import itertools

import pytest

from mini_vllm.core.prefix_cache import block_hash, extend_hashes, root_hash
from mini_vllm.request import Request


def chain(*tokens, block_size=2, **who):
    request = Request("A", list(tokens), **who)
    return extend_hashes(request, block_size, len(tokens) // block_size)


def test_the_same_tokens_have_the_same_names():
    assert chain(10, 20, 21, 22) == chain(10, 20, 21, 22)
    assert len(chain(10, 20, 21, 22)) == 2


def test_only_full_blocks_have_a_name():
    assert chain(10, 20, 21) == chain(10, 20)


@pytest.mark.parametrize("changed", [0, 1, 2, 3])
def test_a_name_depends_on_the_whole_prefix(changed):
    tokens = [10, 20, 21, 22, 30, 31]
    other = [*tokens]
    other[changed] += 1
    same = changed // 2
    assert chain(*tokens)[:same] == chain(*other)[:same]
    assert not set(chain(*tokens)[same:]) & set(chain(*other)[same:])  # its own block, and every one behind it


def test_equal_blocks_of_one_request_have_different_names():
    assert len(set(chain(7, 7, 7, 7, 7, 7))) == 3


def test_the_order_of_tokens_counts():
    assert chain(10, 20) != chain(20, 10)


def test_token_ids_have_a_fixed_width():
    assert block_hash(b"", [1, 256]) != block_hash(b"", [256, 1])
    assert block_hash(b"", [0x0102]) != block_hash(b"", [0x01, 0x02])


def test_a_name_is_as_long_as_sha_256():
    assert {len(name) for name in chain(10, 20, 21, 22)} == {32}


def test_salt_and_adapter_part_everything():
    callers = [{}, {"cache_salt": "x"}, {"cache_salt": "y"}, {"adapter": "x"}, {"cache_salt": "x", "adapter": "x"}]
    chains = [chain(10, 20, 21, 22, **who) for who in callers]
    for one, other in itertools.combinations(chains, 2):
        assert not set(one) & set(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (("ab", "c"), ("a", "bc")),
        (("a", "b"), ("b", "a")),
        ((None, "a"), ("a", None)),
        ((None, ""), ("", None)),
        ((None, None), ("", "")),
        (("-", None), (None, "-")),
        (("1:a/1:b", None), ("a", "b")),
        (("", "0:"), ("0:/", "")),
        (("é", "a"), ("e", "a")),
    ],
)
def test_two_different_callers_never_start_at_one_root(one, other):
    assert root_hash(*one) != root_hash(*other)
    assert root_hash(*one) == root_hash(*one)


def test_the_chain_is_extended_not_made_anew():
    request = Request("A", [10, 20, 21, 22])
    first = list(extend_hashes(request, 2, 1))
    assert len(first) == 1
    assert extend_hashes(request, 2, 2)[:1] == first
    assert len(extend_hashes(request, 2, 1)) == 2  # what is known stays


def test_outputs_are_named_like_a_prompt():
    """The second turn of a chat sends the first answer back as part of its prompt."""
    request = Request("A", [10, 20])
    request.token_ids += [21, 22]
    assert extend_hashes(request, 2, 2) == chain(10, 20, 21, 22)
