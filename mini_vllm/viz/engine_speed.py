"""The engine's stored speed beside its targets, and what was tried. Knows two result files, measures nothing. Ch. 0."""

from collections.abc import Mapping
from typing import Any

from mini_vllm.viz.bar_plots import stacked_bars
from mini_vllm.viz.stored_results import ResultTable
from mini_vllm.viz.style import Picture

# field: (what it is, the target, does the target want it higher, how it is written)
TARGETS: dict[str, tuple[str, float, bool, str]] = {
    "ratio_to_best_peer": ("speed against the best of transformers' ways", 1.5, True, "{:.2f}"),
    "share_of_gemm_bound": ("matrix products alone, of the run's time", 0.65, True, "{:.0%}"),
    "batch_1_share_of_floor": ("reading the weights once, of a lone decode step", 0.50, True, "{:.0%}"),
    "share_outside_the_runner": ("scheduler, watch, trace and text, of the run's time", 0.05, False, "{:.1%}"),
}
MEMORY = {
    "as_used": "memory beside weights and KV pool, the pool as used",
    "whole_pool": "the same, with the whole pool in use",
}
QUIET_LOAD = 0.5


def measured_on(result: Mapping[str, Any]) -> str:
    """Machine, versions, settings and load of a run, in one sentence."""
    machine, versions = result["machine"], result["versions"]
    settings = "".join(f", {name}={value}" for name, value in result.get("waiting", {}).items() if value)
    return (
        f"Measured on {machine['device']}, {result['threads']} threads, {machine['date']}, torch {versions['torch']}, "
        f"Python {versions['python']}{settings}, {_load(result)}."
    )


def _load(result: Mapping[str, Any]) -> str:
    load = result["load_average_before"]
    others = ", so others may have been working" if load > QUIET_LOAD else ""
    return f"load average of the minute before {load:.1f}{others}"


def speed_bars(result: Mapping[str, Any]) -> Picture:
    """Useful output tokens a second of each system, fastest first."""
    rates = sorted(result["tokens_per_s"].items(), key=lambda item: -item[1])
    words = ", ".join(f"{name} {rate:.0f}" for name, rate in rates)
    label = "useful output tokens a second"
    return stacked_bars(
        {name: {label: rate} for name, rate in rates},
        x_label=label,
        alt=f"Bars of useful output tokens a second, fastest first: {words}.",
    )


def speed_table(result: Mapping[str, Any], memory: Mapping[str, Any] | None = None) -> ResultTable:
    """Each number that has a target, with the target and whether it is met. What was not measured says so.

    memory: what benchmarks/peak_memory.py stored.
    """
    rows = []
    for field, (what, target, is_higher_better, form) in TARGETS.items():
        target = result.get("targets", {}).get(field, target)
        value = result[field]
        sign = "≥" if is_higher_better else "≤"
        if value is None:
            reached, verdict = "not measured", ""
        else:
            is_met = value >= target if is_higher_better else value <= target
            reached, verdict = form.format(value), "yes" if is_met else "no"
        rows.append((what, reached, f"{sign} {form.format(target)}", verdict))
    for field, run in (memory or {}).items():
        if field not in MEMORY:
            continue
        beside, allowed = f"{run['beside_weights_and_pool_mb']:.0f} MB", f"≤ {run['allowed_mb']} MB"
        rows.append((MEMORY[field], beside, allowed, "yes" if run["within"] else "no"))
    return ResultTable(["what", "reached", "target", "met"], rows, align="lrrl", note=measured_on(result))


def alone_table(result: Mapping[str, Any]) -> ResultTable:
    """Prefill and decode by themselves, by the number of requests in the step."""
    header = ["requests in a step", "prefill, tokens/s", "a decode step, ms", "decode, tokens/s"]
    rows = [
        (
            part["batch"],
            f"{part['prefill_tokens_per_s']:,.0f}",
            f"{part['decode_step_ms']:,.1f}",
            f"{part['decode_tokens_per_s']:,.1f}",
        )
        for part in result["alone"]
    ]
    floor = f"Reading all weights once takes {result['read_floor_ms']:.1f} ms on this machine."
    return ResultTable(header, rows, align="rrrr", note=floor)


def tried_table(result: Mapping[str, Any]) -> ResultTable:
    """What was tried, what it gave, and whether it stayed; null results are rows like the others."""
    rows = [(row["what"], row["gave"], row["kept"]) for row in result["tried"]]
    places = " and ".join(dict.fromkeys(row["measured_on"] for row in result["tried"]))
    return ResultTable(["tried", "gave", "kept"], rows, align="lll", note=f"Measured on {places}, {_load(result)}.")
