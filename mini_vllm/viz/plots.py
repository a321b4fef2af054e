"""All static pictures under one name, `from mini_vllm.viz.plots import …`. Knows where each is drawn; draws nothing.

Pictures of a run: slot_time, gantt, kv_occupancy, queue_lengths, itl_strip, twin_gauges.
Curves: lines, cdf, pareto, roofline. Quantities taken apart: stacked_bars. KV memory (chapter 6): memory_grid,
block_map, allocation. A prefix cache (chapter 7): hash_chains, free_queue (of the pool_state of each moment).
Attention kernels (chapter 13): kv_reads, prefill_tiles (of the tile_map of each piece).
Each takes `alt`, the text for those who do not see it, and returns a `Picture`. Needs matplotlib.
"""

from mini_vllm.viz.bar_plots import stacked_bars
from mini_vllm.viz.block_plots import allocation, block_map, memory_grid
from mini_vllm.viz.curve_plots import cdf, lines
from mini_vllm.viz.gauge_plot import twin_gauges
from mini_vllm.viz.kernel_plots import kv_reads, prefill_tiles, tile_map
from mini_vllm.viz.lane_plots import gantt, slot_time
from mini_vllm.viz.pareto_plot import pareto, pareto_front
from mini_vllm.viz.prefix_plots import free_queue, hash_chains, pool_state
from mini_vllm.viz.roofline_plot import roofline
from mini_vllm.viz.run_plots import itl_strip, kv_occupancy, queue_lengths
from mini_vllm.viz.style import Picture, house_style

__all__ = [
    "Picture",
    "allocation",
    "block_map",
    "cdf",
    "free_queue",
    "gantt",
    "hash_chains",
    "house_style",
    "itl_strip",
    "kv_occupancy",
    "kv_reads",
    "lines",
    "memory_grid",
    "pareto",
    "pareto_front",
    "pool_state",
    "prefill_tiles",
    "queue_lengths",
    "roofline",
    "slot_time",
    "stacked_bars",
    "tile_map",
    "twin_gauges",
]
