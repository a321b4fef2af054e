"""The tensors of a step, by hand; and that they stay where they are from step to step."""

import random

import pytest
import torch

from mini_vllm.engine.input_batch import InputBatch
from mini_vllm.engine.request_state import UNKNOWN

CPU = torch.device("cpu")


def batch(**limits):
    return InputBatch(CPU, 4, **limits)


def test_three_pieces_by_hand():
    """A prompt of 5, a decode at position 6, and the second chunk of a prompt; rows need not stand in order."""
    made = batch()
    a, b, c = made.add_row([7, 2]), made.add_row([3, 5]), made.add_row([1])
    made.append_blocks(c, [9])
    inputs = made.fill([10, 11, 12, 13, 14, 20, 30, 31], [a, b, c], [0, 6, 3], [5, 1, 2])
    meta = inputs.meta
    assert inputs.input_ids.tolist() == [10, 11, 12, 13, 14, 20, 30, 31]
    assert inputs.positions.tolist() == [0, 1, 2, 3, 4, 6, 3, 4]
    assert meta.slot_mapping.tolist() == [28, 29, 30, 31, 8, 22, 7, 36]
    assert meta.query_start_loc.tolist() == [0, 5, 6, 8] and meta.query_lens == [5, 1, 2]
    assert meta.seq_lens.tolist() == meta.context_lens == [5, 7, 5]
    assert meta.block_table[:, :2].tolist() == [[7, 2], [3, 5], [1, 9]]
    assert (meta.max_query_len, meta.max_seq_len) == (5, 7)
    assert [inputs.input_ids.dtype, meta.slot_mapping.dtype] == [torch.int64] * 2
    assert {t.dtype for t in (meta.query_start_loc, meta.seq_lens, meta.block_table)} == {torch.int32}


def test_nothing_of_the_step_before_is_left():
    made = batch()
    a, b = made.add_row([7, 2]), made.add_row([3])
    made.fill(range(8), [a, b], [0, 0], [5, 3])
    meta = made.fill([1], [b], [3], [1], padded_to=3).meta
    assert meta.block_table.tolist()[0][0] == 3
    assert meta.slot_mapping.tolist() == [15, -1, -1] and meta.seq_lens.tolist() == [4, 0, 0]
    assert meta.query_start_loc.tolist() == [0, 1, 2, 3] and meta.query_lens == [1, 1, 1]
    made.clear_row(b)
    made.append_blocks(b, [6])
    assert made.fill([1], [b], [3], [1]).meta.slot_mapping.tolist() == [27]


def test_rows_that_no_request_owns_stand_last():
    made = batch()
    a = made.add_row([7, 2])
    made.fill(range(10, 18), [a], [0], [8])
    inputs = made.fill([5, 6], [a], [3], [2], min_rows=4)
    assert inputs.input_ids.tolist() == [5, 6, 0, 0] and inputs.positions.tolist() == [3, 4, 0, 0]
    assert len(inputs.meta.slot_mapping) == 2 and inputs.meta.query_start_loc.tolist() == [0, 2]
    assert made.fill([5, 6], [a], [3], [2], min_rows=1).input_ids.tolist() == [5, 6]


def test_a_row_is_given_away_empty():
    made = batch()
    row = made.add_row([7, 2, 5])
    made.free_row(row)
    assert made.add_row([4]) == row
    made.append_blocks(row, [8])
    assert made.fill([1], [row], [4], [1]).meta.block_table.tolist()[0][:2] == [4, 8]


def test_steps_within_the_limits_move_nothing_and_larger_ones_tell():
    made = batch(max_num_batched_tokens=16, max_num_seqs=4, max_model_len=32)
    version, rows = made.version, [made.add_row(range(1, 9)) for _ in range(4)]
    addresses = [made.input_ids.device.data_ptr(), made.block_table.device.data_ptr()]
    made.fill(range(16), rows, [0, 5, 28, 20], [4, 7, 4, 1])
    assert made.version == version
    assert addresses == [made.input_ids.device.data_ptr(), made.block_table.device.data_ptr()]
    made.fill(range(17), rows[:1], [0], [17])
    assert made.version > version
    made.append_blocks(rows[0], [11, 12])
    version = made.version
    assert made.fill([1], rows[:1], [39], [1]).meta.slot_mapping.tolist() == [12 * 4 + 3]
    assert made.version > version


def test_an_unknown_token_is_the_one_sampled_for_its_row():
    made = batch()
    rows = [made.add_row([i + 1]) for i in range(3)]
    made.sampled[torch.tensor(rows)] = torch.tensor([50, 51, 52])
    inputs = made.fill([UNKNOWN, 7, 8, UNKNOWN], [rows[2], rows[0], rows[1]], [1, 0, 3], [1, 2, 1])
    assert inputs.input_ids.tolist() == [52, 7, 8, 51]
    for _ in range(20):
        made.add_row([1])
    assert made.sampled[torch.tensor(rows)].tolist() == [50, 51, 52], "more requests do not lose what is in flight"


@pytest.mark.parametrize("seed", range(20))
def test_random_steps_against_the_plain_form(seed):
    rng = random.Random(seed)
    block_size = rng.choice([1, 3, 16])
    made, tables = InputBatch(CPU, block_size, max_num_batched_tokens=4, max_num_seqs=1, max_model_len=8), {}
    for _ in range(30):
        if rng.random() < 0.4 or not tables:
            blocks = [rng.randrange(1, 99) for _ in range(rng.randrange(1, 6))]
            tables[made.add_row(blocks)] = blocks
        if rng.random() < 0.2 and len(tables) > 1:
            gone = rng.choice(list(tables))
            made.free_row(gone)
            del tables[gone]
        grown = rng.choice(list(tables))
        more = [rng.randrange(1, 99) for _ in range(rng.randrange(4))]
        made.append_blocks(grown, more)
        tables[grown] += more
        rows = rng.sample(list(tables), rng.randrange(1, len(tables) + 1))
        pieces = []
        for row in rows:
            end = rng.randrange(1, len(tables[row]) * block_size + 1)
            pieces.append((rng.randrange(end), end))
        slots = [
            tables[row][p // block_size] * block_size + p % block_size
            for row, (first, end) in zip(rows, pieces, strict=True)
            for p in range(first, end)
        ]
        inputs = made.fill(range(len(slots)), rows, [f for f, _ in pieces], [e - f for f, e in pieces])
        assert inputs.meta.slot_mapping.tolist() == slots
        assert inputs.positions.tolist() == [p for first, end in pieces for p in range(first, end)]
        assert inputs.meta.seq_lens.tolist() == [end for _, end in pieces]
        for row, (_, end), there in zip(rows, pieces, inputs.meta.block_table.tolist(), strict=True):
            width = -(-end // block_size)
            assert there[:width] == tables[row][:width]


def test_numbers_that_a_copy_still_has_to_read_are_not_overwritten():
    """Beside a GPU a copy reads the host's side when its turn comes: until then the step before stands there."""
    made, seen = batch(), []
    row = made.add_row([1, 2])
    made.fill([41, 42], [row], [0], [2])

    class Copies:
        def synchronize(self):
            seen.append((made.input_ids.array[:2].tolist(), made.seq_lens.array[0], made.block_table.array[0, 0]))

    made._copied = Copies()
    made.append_blocks(row, [9])
    made.fill([51], [row], [8], [1])
    assert seen == [([41, 42], 2, 1)]
