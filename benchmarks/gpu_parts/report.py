"""Rows and figures of one part: to the screen as they come, to a JSON file after each. Knows no GPU. Chapter 13."""

import json
import math
import os
import time
from pathlib import Path
from typing import Any

Row = dict[str, Any]


class Report:
    """What one part found. `path`: its JSON file, replaced whole at every change, so that a cut run leaves the rest.

    tables: name -> rows. figures: single numbers, some with a target. skipped: what was left out, and why.
    """

    def __init__(self, part: str, path: Path | None = None, quiet: bool = False) -> None:
        self.path, self.quiet = path, quiet
        self._started = time.monotonic()
        self.data: dict[str, Any] = {
            "part": part,
            "status": "running",
            "seconds": 0.0,
            "tables": {},
            "figures": [],
            "skipped": [],
            "samples": [],
        }
        self._save()

    def say(self, text: str) -> None:
        if not self.quiet:
            print(text, flush=True)

    def row(self, table: str, row: Row) -> None:
        """One row more of a table; the first one prints the head."""
        rows = self.data["tables"].setdefault(table, [])
        if not rows:
            self.say(f"\n  {table}\n    " + "  ".join(f"{name:>{_width(name, value)}}" for name, value in row.items()))
        rows.append(row)
        self.say("    " + "  ".join(f"{shown(value):>{_width(name, value)}}" for name, value in row.items()))
        self._save()

    def figure(self, name: str, value: float, unit: str = "", at_least: float | None = None, note: str = "") -> None:
        """A number that stands for the part; `at_least` is its target."""
        figure: Row = {"name": name, "value": value, "unit": unit}
        if at_least is not None:
            figure |= {"target": at_least, "met": value >= at_least}
        if note:
            figure["note"] = note
        self.data["figures"].append(figure)
        self.say("  " + figure_line(figure))
        self._save()

    def must(self, name: str, holds: bool, note: str = "") -> None:
        """A yes or no that is part of the proof."""
        self.data["figures"].append(
            {"name": name, "value": holds, "unit": "", "target": True, "met": holds, "note": note}
        )
        self.say("  " + figure_line(self.data["figures"][-1]))
        self._save()

    def skip(self, what: str, reason: str) -> None:
        self.data["skipped"].append({"what": what, "reason": reason})
        self.say(f"  skipped: {what}: {reason}")
        self._save()

    def sample(self, row: Row) -> None:
        """A measured engine step, for the simulator; all parts' samples end in one file."""
        self.data["samples"].append(row)

    def end(self, status: str, error: str = "") -> None:
        """The last word: "ok", "failed" or "out of time"."""
        self.data["status"] = status
        if error:
            self.data["error"] = error
        self._save()

    def _save(self) -> None:
        self.data["seconds"] = round(time.monotonic() - self._started, 1)
        if self.path:
            write_json(self.path, self.data)


def write_json(path: Path, data: Any) -> None:
    """Replace the file in one go: a reader, or a kill, never meets half of it."""
    half = path.with_name(path.name + ".part")
    half.write_text(json.dumps(_plain(data), indent=1, allow_nan=False) + "\n", encoding="utf-8")
    os.replace(half, path)


def _plain(data: Any) -> Any:
    """JSON has no word for infinity: the error of a kernel that wrote NaN becomes the text "inf"."""
    if isinstance(data, dict):
        return {key: _plain(value) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return [_plain(value) for value in data]
    return str(data) if isinstance(data, float) and not math.isfinite(data) else data


def read_json(path: Path) -> Any:
    """What `write_json` wrote, or None where nothing is."""
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None


def shown(value: Any) -> str:
    """A number as a table shows it: three digits that count."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "NO"
    if isinstance(value, float):
        if value and abs(value) < 1e-3:
            return f"{value:.1e}"
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def figure_line(figure: Row) -> str:
    target = ""
    if "target" in figure:
        wanted = "must be" if figure["target"] is True else f"target ≥ {shown(figure['target'])}"
        target = f"   {wanted}: {'met' if figure['met'] else 'MISSED'}"
    note = f"   ({figure['note']})" if figure.get("note") else ""
    return f"{figure['name']:<64} {shown(figure['value']):>9} {figure['unit']}{target}{note}"


def _width(name: str, value: Any) -> int:
    return max(len(name), 34 if isinstance(value, str) and len(value) > 12 else 9)
