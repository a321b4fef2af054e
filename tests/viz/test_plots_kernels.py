"""Kernels drawn: slots go through the table, tiles are those that the kernel's bounds name. Knows tiny cases."""

import random

import pytest
from matplotlib.patches import Rectangle

from mini_vllm.errors import ConfigError
from mini_vllm.viz.kernel_plots import FULL, MASKED, SKIPPED, kv_reads, prefill_tiles, slots_read, tile_map
from tests.viz.plot_gallery import ALT


def kernel_bounds(first_row, query_len, seq_len, group, block_m, block_n, window):
    """The bounds of one program as `_paged_prefill` writes them: (first tile, first full, full end, end tile)."""
    history = seq_len - query_len
    oldest = history + first_row // group
    newest = history + (min(first_row + block_m, query_len * group) - 1) // group
    first_tile = max(oldest - window + 1, 0) // block_n
    end_tile = -(-max(newest + 1, 0) // block_n)
    full_first = -(-max(newest - window + 1, 0) // block_n)
    return first_tile, full_first, max(max(oldest + 1, 0) // block_n, full_first), end_tile


def test_slots_go_through_the_table():
    assert slots_read([5, 2], 5, 3) == [15, 16, 17, 6, 7]
    with pytest.raises(ConfigError, match="a table of 2 blocks of 3 does not hold seq_len=7"):
        slots_read([5, 2], 7, 3)


def test_every_slot_of_the_request_carries_its_tile_and_no_other_does():
    """Blocks of 3, tiles of 4: tile 1 reads positions 4 to 6, the end of block 2 and the beginning of block 0."""
    (ax,) = kv_reads([1, 2, 0], 7, block_size=3, block_n=4, num_blocks=4, alt=ALT).figure.axes
    cells = [p for p in ax.patches if isinstance(p, Rectangle) and p.get_width() == 1]
    slots = {round(p.get_x()) for p in cells if p.get_y() > 1}
    assert slots == {3, 4, 5, 6, 7, 8, 0} and len(cells) == 14
    tiles = [t.get_text() for t in ax.texts if t.get_position()[1] < 1]
    assert tiles == ["0", "0", "0", "0", "1", "1", "1"]
    assert [(round(x[1] - 0.5), y[1]) for x, y in (line.get_data() for line in ax.lines)] == [
        (7, 2.18), (8, 2.18), (0, 2.18),
    ]  # fmt: skip


def test_a_picture_of_too_much_is_refused():
    with pytest.raises(ConfigError, match="at most 48 slots"):
        kv_reads([1, 2], 20, block_size=16, block_n=8, num_blocks=4, alt=ALT)
    with pytest.raises(ConfigError, match="block 9 of a pool of 4 blocks"):
        kv_reads([9], 2, block_size=3, block_n=8, num_blocks=4, alt=ALT)


def test_a_causal_piece_skips_what_lies_ahead():
    found = tile_map(4, 8, group=2, block_m=4, block_n=2)
    assert found.kinds == [[FULL, FULL, MASKED, SKIPPED], [FULL, FULL, FULL, MASKED]]
    assert (found.count(FULL), found.count(MASKED), found.count(SKIPPED)) == (5, 2, 1)
    with pytest.raises(ConfigError, match="query_len=9 must be at least 1 and at most seq_len=8"):
        tile_map(9, 8, group=2, block_m=4, block_n=2)


def test_the_map_is_what_the_kernel_loops_over():
    rng = random.Random(13)
    for _ in range(300):
        query_len, block_m, block_n = rng.randint(1, 30), rng.choice([4, 16, 32]), rng.choice([2, 8, 16])
        seq_len, group = query_len + rng.choice([0, rng.randint(0, 60)]), rng.choice([1, 3, 4])
        window = rng.choice([None, rng.randint(1, 40)])
        found = tile_map(query_len, seq_len, group=group, block_m=block_m, block_n=block_n, sliding_window=window)
        for program, line in enumerate(found.kinds):
            first, full_first, full_end, end = kernel_bounds(
                program * block_m, query_len, seq_len, group, block_m, block_n, window or 2**30
            )
            for tile, kind in enumerate(line):
                reads = first <= tile < end
                unmasked = full_first <= tile < full_end
                assert (kind == SKIPPED) == (not reads), (program, tile, found)
                # The kernel may mask a tile that it need not; never the other way round.
                assert kind == FULL or not unmasked, (program, tile, found)


def test_a_panel_has_a_line_for_each_program():
    whole = tile_map(4, 8, group=2, block_m=4, block_n=2)
    figure = prefill_tiles(
        {"all": whole, "window": tile_map(4, 8, group=2, block_m=4, block_n=2, sliding_window=2)}, alt=ALT
    ).figure
    assert [ax.get_title(loc="left") for ax in figure.axes] == ["all", "window"]
    assert [label.get_text() for label in figure.axes[0].get_yticklabels()] == ["program 0", "program 1"]
    assert len(figure.axes[0].patches) == 8
    assert [t.get_text() for t in figure.legends[0].get_texts()] == [FULL, MASKED, SKIPPED]
