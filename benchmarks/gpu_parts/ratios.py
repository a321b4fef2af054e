"""Figures that need the rows of two parts. Knows their tables; measures nothing. Chapter 13."""

from typing import Any

FASTER = 3.0  # than transformers' continuous batching, end to end


def ratios(parts: dict[str, Any]) -> list[dict[str, Any]]:
    """Our tokens a second over transformers', of each model of which both ran to the end on as many requests."""
    ours = {
        (row["model"], row["requests"]): row["tok/s"]
        for row in _rows(parts, "offline")
        if row["whole"] and row["with"].strip() == "all on"
    }
    theirs = {(row["model"], row["requests"]): row["tok/s"] for row in _rows(parts, "transformers") if row["whole"]}
    figures = []
    for (model, requests), rate in theirs.items():
        if (model, requests) in ours:
            value = ours[model, requests] / rate
            name = f"{model}, {requests} requests: times transformers' continuous batching"
            figures.append({"name": name, "value": value, "unit": "×", "target": FASTER, "met": value >= FASTER})
    return figures


def _rows(parts: dict[str, Any], name: str) -> list[dict[str, Any]]:
    return parts.get(name, {}).get("tables", {}).get(name, [])
