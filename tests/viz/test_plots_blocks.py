"""KV memory drawn: what is drawn is what the manager, the trace and the memory say. Knows a few tiny pools."""

import random

import pytest
from matplotlib.patches import Rectangle

from mini_vllm.config import SchedulerConfig
from mini_vllm.core.kv_cache_manager import KVCacheManager
from mini_vllm.errors import ConfigError
from mini_vllm.request import Request
from mini_vllm.sim.contiguous import EMPTY, FREE, TOKEN
from mini_vllm.sim.driver import SimRequest, simulate
from mini_vllm.sim.examples import five_requests
from mini_vllm.viz.block_plots import allocation, block_map, memory_grid, watch_allocation
from tests.viz.plot_gallery import ALT


def texts(ax):
    return [text.get_text() for text in ax.texts]


def manager_with(num_blocks=6, size=4):
    return KVCacheManager(SchedulerConfig(num_gpu_blocks=num_blocks, block_size=size, max_model_len=64))


def running(manager, name, num_tokens):
    request = Request(name, [1] * num_tokens)
    manager.allocate_slots(request, num_tokens)
    request.num_computed_tokens = num_tokens
    request.token_ids.append(9)
    return request


def test_a_grid_shows_what_most_slots_of_a_cell_are():
    slots = [TOKEN, TOKEN, TOKEN, EMPTY] + [EMPTY] * 3 + [TOKEN] + [FREE] * 4 + [TOKEN] * 4
    (ax,) = memory_grid({"four cells": slots}, cell=4, alt=ALT).figure.axes
    assert ax.images[0].get_array().tolist() == [[TOKEN, EMPTY], [FREE, TOKEN]]


def test_a_map_names_owners_and_fill():
    """After step 16 of the five requests: R1 31 of 32 slots, R3 40 of 48, R4 12 of 16, and no block is free."""
    figure = block_map(simulate(*five_requests()), [16, 20], alt=ALT).figure
    rows = [label.get_text() for label in figure.axes[0].get_yticklabels()]
    assert rows == ["R1, 31 tokens", "R3, 40 tokens", "R4, 12 tokens", "the pool"]
    assert texts(figure.axes[0]) == [
        "1", "2", "4", "5", "6", "3", "1: R1", "2: R1", "3: R4", "4: R3", "5: R3", "6: R3",
    ]  # fmt: skip
    widths = [p.get_width() / 0.94 for p in figure.axes[0].patches if p.get_edgecolor()[3] == 0][:6]
    assert widths == pytest.approx([1, 15 / 16, 1, 1, 8 / 16, 12 / 16])
    assert "3: R1" in texts(figure.axes[1]), "R4 was evicted, and R1 has taken its block"


def test_a_map_of_a_window_shows_the_null_block_and_who_has_nothing():
    config = SchedulerConfig(num_gpu_blocks=6, block_size=4, max_model_len=64, sliding_window=4)
    trace = simulate([SimRequest("R", 6, 12)], config)
    assert texts(block_map(trace, [8], alt=ALT).figure.axes[0])[:2] == ["–", "–"]
    with pytest.raises(ConfigError, match="step 99 is not in the trace; it has steps 0 to 11"):
        block_map(trace, [8, 99], alt=ALT)


def test_a_watched_call_is_the_real_call():
    manager = manager_with()
    request = running(manager, "a", 8)
    call = watch_allocation(manager, request, 1)
    assert (call.owned, call.num_free, call.new_blocks) == ([1, 2], 4, [3])
    assert manager.get_block_ids("a") == [1, 2, 3]
    assert call.words == "1 must be free, 4 are: takes [3]"
    assert watch_allocation(manager, request, 1).words == "0 must be free, 3 are: takes []"


def test_a_newcomer_is_asked_for_all_it_knows_and_takes_what_it_computes():
    manager = manager_with()
    call = watch_allocation(manager, Request("a", [1] * 18), 8, full_sequence=True, watermark_blocks=1)
    assert call.words == "5 + 1 of watermark must be free, 6 are: takes [1, 2]"
    refused = watch_allocation(manager, Request("b", [1] * 13), 4, full_sequence=True, watermark_blocks=1)
    assert refused.words == "4 + 1 of watermark must be free, 4 are: None" and manager.num_free_blocks == 4
    figure = allocation({"a": call, "b": refused}, alt=ALT).figure
    spans = [
        [(round(p.get_x()), round(p.get_width())) for p in ax.patches if isinstance(p, Rectangle)] for ax in figure.axes
    ]
    assert spans[0] == [(0, 8), (8, 10), (0, 4), (4, 4), (8, 4), (12, 4), (16, 4)]
    assert spans[1] == [(0, 4), (4, 9), (0, 4), (4, 4), (8, 4), (12, 4)]
    assert texts(figure.axes[0]) == ["1", "2"] and texts(figure.axes[1]) == []
    assert [t.get_text() for t in figure.legends[0].get_texts()] == [
        "this step", "known, later", "new blocks", "must be free, not taken",
    ]  # fmt: skip


def test_lookahead_counts_and_is_drawn():
    manager = manager_with()
    call = watch_allocation(manager, running(manager, "a", 3), 1, num_lookahead_tokens=2)
    assert call.new_blocks == [2] and call.words == "1 must be free, 5 are: takes [2]"
    assert "lookahead" in [t.get_text() for t in allocation({"a": call}, alt=ALT).figure.legends[0].get_texts()]


def test_the_words_say_none_exactly_where_the_manager_does():
    rng = random.Random(3)
    for _ in range(300):
        manager = manager_with(rng.randint(1, 8))
        running(manager, "guest", rng.randint(1, 16))
        if rng.random() < 0.5:
            request = running(manager, "a", rng.randint(1, 12))
            if not manager.get_block_ids("a"):
                continue
            call = watch_allocation(manager, request, 1)
        else:
            request = Request("a", [1] * rng.randint(1, 20))
            new = rng.randint(1, request.num_tokens)
            call = watch_allocation(manager, request, new, full_sequence=True, watermark_blocks=rng.randint(0, 2))
        assert (call.new_blocks is None) == (call.num_required > call.num_free and call.num_required > 0), call
