"""All static pictures under one name, `from mini_vllm.viz.plots import …`. Knows where each is drawn; draws nothing.

Pictures of a run: slot_time, gantt, kv_occupancy, queue_lengths, itl_strip. Curves: lines, cdf, pareto, roofline.
Each takes `alt`, the text for those who do not see it, and returns a `Picture`. Needs matplotlib.
"""

from mini_vllm.viz.curve_plots import cdf, lines
from mini_vllm.viz.lane_plots import gantt, slot_time
from mini_vllm.viz.pareto_plot import pareto, pareto_front
from mini_vllm.viz.roofline_plot import roofline
from mini_vllm.viz.run_plots import itl_strip, kv_occupancy, queue_lengths
from mini_vllm.viz.style import Picture, house_style

__all__ = [
    "Picture",
    "cdf",
    "gantt",
    "house_style",
    "itl_strip",
    "kv_occupancy",
    "lines",
    "pareto",
    "pareto_front",
    "queue_lengths",
    "roofline",
    "slot_time",
]
