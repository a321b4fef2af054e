"""Counting the work of a step, against a count token by token."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mini_vllm.errors import ConfigError
from mini_vllm.roofline import StepWork


def test_a_prompt_of_three():
    # Token 1 looks at 1, token 2 at 2, token 3 at 3.
    assert StepWork.prefill(3) == StepWork(3, 0, kv_tokens=3, attention_pairs=6, n_seqs=1, n_sampled=1)


def test_a_chunk_of_two_after_ten():
    # Tokens 11 and 12 look at 11 and 12 tokens; no end of the prompt, so nothing is sampled.
    assert StepWork.prefill(2, computed=10, sampled=False) == StepWork(2, 0, 12, 23, 1, 0)


def test_two_decodes():
    assert StepWork.decode(2, context=5) == StepWork(0, 2, 10, 10, 2, 2)


def test_a_mixed_step_is_the_sum():
    mixed = StepWork.mixed([StepWork.prefill(3), StepWork.decode(2, 5)])
    assert mixed == StepWork(3, 2, 13, 16, 3, 3)
    assert mixed.new_tokens == 5


def test_no_parts_are_an_empty_step():
    assert StepWork.mixed([]) == StepWork()


@given(st.lists(st.tuples(st.integers(1, 40), st.integers(0, 60)), min_size=1, max_size=6))
def test_pairs_and_kv_token_by_token(sequences):
    work = StepWork.mixed(StepWork.prefill(new, computed) for new, computed in sequences)
    pairs = sum(1 for new, computed in sequences for i in range(new) for _ in range(computed + i + 1))
    assert work.attention_pairs == pairs
    assert work.kv_tokens == sum(new + computed for new, computed in sequences)
    assert work.n_seqs == len(sequences)


@given(st.integers(1, 300), st.integers(1, 300))
def test_chunks_of_a_prompt_do_the_same_attention(first, second):
    whole = StepWork.prefill(first + second)
    chunks = [StepWork.prefill(first, sampled=False), StepWork.prefill(second, computed=first)]
    assert sum(chunk.attention_pairs for chunk in chunks) == whole.attention_pairs


@pytest.mark.parametrize("value", [-1, 1.0, float("nan"), True, "3", None])
def test_counts_are_whole_numbers(value):
    with pytest.raises(ConfigError, match=r"n_decode=.* whole number"):
        StepWork(n_decode=value)
    with pytest.raises(ConfigError, match="whole number"):
        StepWork.prefill(value)
    with pytest.raises(ConfigError, match="whole number"):
        StepWork.decode(2, value)


def test_contradictions_are_refused():
    with pytest.raises(ConfigError, match="kv_tokens=4 is less than the 5 new tokens"):
        StepWork(5, 0, kv_tokens=4, attention_pairs=15, n_seqs=1)
    with pytest.raises(ConfigError, match="attention_pairs=4 is less"):
        StepWork(5, 0, kv_tokens=5, attention_pairs=4, n_seqs=1)
    with pytest.raises(ConfigError, match="n_seqs=1 does not fit 0 prefill and 2 decode"):
        StepWork(0, 2, kv_tokens=2, attention_pairs=2, n_seqs=1)
    with pytest.raises(ConfigError, match="n_seqs=3 does not fit"):
        StepWork(2, 0, kv_tokens=2, attention_pairs=3, n_seqs=3)
    with pytest.raises(ConfigError, match="n_sampled=2 is above n_seqs=1"):
        StepWork(2, 0, kv_tokens=2, attention_pairs=3, n_seqs=1, n_sampled=2)
