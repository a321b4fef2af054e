"""Two runs of one workload side by side, locked together. Knows two timelines and where they part. Chapter 8."""

from __future__ import annotations

import json
import re
from typing import Any

from mini_vllm.errors import ConfigError
from mini_vllm.trace.diff import Comparison, compare
from mini_vllm.trace.trace import Trace
from mini_vllm.viz import static_picture
from mini_vllm.viz.event_words import step_words
from mini_vllm.viz.phrases import count, listed
from mini_vllm.viz.player_data import clean, run_data, seconds
from mini_vllm.viz.player_page import PlayerPage
from mini_vllm.viz.records import mapping, read_trace, take_trace
from mini_vllm.viz.timeline import Timeline, build_timeline

LOCKS = ("step", "time")
VALUE_MAX_CHARS = 80


class ABPlayer(PlayerPage):
    """Two traces of one workload with one set of controls; what they decided differently is marked.

    Each trace is anything that StepPlayer takes. `labels` names the two.

    lock        "step": both show the same step, and the first divergence is marked; "time": both show what had
                happened by the same second since their start, for two runs of the engine
    title       heading; the two labels by default
    panels      show queues and KV blocks at once; else the reader opens them (on a phone they always start closed)
    brief       only the map of both runs and, side by side, the text as it grows: a race to be watched in one glance
    the others  as in StepPlayer; start counts the moments of the common clock
    """

    def __init__(
        self,
        trace_a: Any,
        trace_b: Any,
        labels: tuple[str, str] = ("A", "B"),
        *,
        lock: str = "step",
        title: str | None = None,
        start: int = 0,
        height: int | None = None,
        autoplay: bool = False,
        future: str = "dim",
        count_from: int | None = None,
        link: str | None = None,
        panels: bool = True,
        brief: bool = False,
    ) -> None:
        if lock not in LOCKS:
            raise ConfigError(f"lock={lock!r} is unknown: choose one of {', '.join(LOCKS)}")
        if len(labels) != 2 or labels[0] == labels[1]:
            raise ConfigError(f"labels={labels!r}: give two different names, one for each run")
        self.labels, self.lock = (clean(str(labels[0])), clean(str(labels[1]))), lock
        name = title or f"{self.labels[0]} and {self.labels[1]}"
        super().__init__(name, start=start, height=height, autoplay=autoplay, future=future, link=link)
        self.panels, self.brief = panels and not brief, brief
        traces = [take_trace(trace_a), take_trace(trace_b)]
        _refuse_other_workload(traces[0].header, traces[1].header)
        first = min(trace.steps[0]["step"] for trace in traces)
        self.shift = 0 if count_from is None else count_from - first
        self.timelines = [build_timeline(*read_trace(trace), self.shift) for trace in traces]
        if lock == "time":
            for label, line in zip(self.labels, self.timelines, strict=True):
                _refuse_without_times(label, line)
        # By time, one step of the one has no counterpart in the other.
        self.comparison: Comparison | None = compare(*map(_decisions, traces)) if lock == "step" else None

    def _styles(self) -> list[str]:
        return [*super()._styles(), "brief.css"] if self.brief else super()._styles()

    def _height(self) -> int:
        return 215 + 43 * max(len(line.lanes) for line in self.timelines) if self.brief else super()._height()

    def verdict(self) -> str:
        """Whether and where the runs part, in words; "" if they are locked by time."""
        head, values, more = self._verdict()
        pairs = " · ".join(f"{label}: {value}" for label, value in zip(self.labels, values, strict=False))
        return ". ".join(part for part in (f"{head}: {pairs}" if pairs else head, *more) if part)

    def _verdict(self) -> tuple[str, list[str], list[str]]:
        """Headline, the two values, further remarks."""
        if self.comparison is None:
            return "", [], []
        notes = [re.sub(r"\bin ([AB])\b", self._in_label, note) for note in self.comparison.notes]
        found = self.comparison.difference
        if found is None:
            return f"No divergence in {count(self.comparison.num_steps, 'step')}", [], notes
        step = found.step + self.shift
        also = [f"Also in this step: {listed(found.also)}"] if found.also else []
        if found.field == "step":
            return f"First divergence: only one run has a step {step}", [str(found.a), str(found.b)], notes
        return f"First divergence: step {step}, {found.place}", [_shown(found.a), _shown(found.b)], also + notes

    def _in_label(self, found: re.Match[str]) -> str:
        return f"in “{self.labels['AB'.index(found[1])]}”"

    def data(self) -> dict[str, Any]:
        """Both runs for run.js, with their lanes in one order."""
        order = list(dict.fromkeys(rid for line in self.timelines for rid in line.by_id))
        runs = [run_data(line, order) for line in self.timelines]
        data: dict[str, Any] = {"labels": list(self.labels), "lock": self.lock, "panels": self.panels, "runs": runs}
        if self.lock == "time":
            for run, line in zip(runs, self.timelines, strict=True):
                run["times"] = _from_zero(seconds(line))
        else:
            found = self.comparison and self.comparison.difference
            numbers = sorted({number for line in self.timelines for number in line.numbers})
            moment = numbers.index(found.step + self.shift) if found else None
            head, values, more = self._verdict()
            data["verdict"] = {"moment": moment, "head": clean(head), "values": [clean(v) for v in values]}
            data["verdict"]["more"] = clean(". ".join(more))
        return data

    def text(self) -> str:
        """The verdict and both slot × time pictures in plain characters."""
        parts = [f"{self.title}. {self.verdict()}".strip()]
        for label, line in zip(self.labels, self.timelines, strict=True):
            events = [f"step {number}: {step_words(line, i)}" for i, number in enumerate(line.numbers)]
            parts.append(static_picture.text(line, label, events))
        return clean("\n\n".join(parts))

    def svg(self) -> str:
        """Both runs as one static SVG picture."""
        pictures = [(line, label) for label, line in zip(self.labels, self.timelines, strict=True)]
        return clean(static_picture.svg_of(pictures, self.title))


def _refuse_other_workload(a: dict[str, Any], b: dict[str, Any]) -> None:
    """The headers may leave requests out, but not contradict each other."""
    ours, theirs = mapping(a.get("requests")), mapping(b.get("requests"))
    if ours and theirs and not ours.keys() & theirs.keys():
        raise ConfigError(
            f"the two traces are not of one workload: {listed(list(ours))} in the first, {listed(list(theirs))} in the "
            "second; record both with the same requests"
        )
    for rid in [rid for rid in ours if rid in theirs]:
        for name in ("prompt_len", "max_tokens"):
            one, other = ours[rid].get(name), theirs[rid].get(name)
            if None not in (one, other) and one != other:
                raise ConfigError(
                    f"the two traces are not of one workload: {name} of {rid} is {one} in the first and {other} in the "
                    "second; record both with the same requests"
                )


def _decisions(trace: Trace) -> Trace:
    """The run without `blocked_reason`: two rules may keep the same request out, and then nothing differs yet."""
    return Trace(trace.header, [{k: v for k, v in step.items() if k != "blocked_reason"} for step in trace.steps])


def _refuse_without_times(label: str, line: Timeline) -> None:
    for record in line.records:
        if record.get("t_start") is None or record.get("t_end") is None:
            raise ConfigError(
                f'lock="time" needs t_start and t_end in every record; step {record["step"]} of {label} has none: '
                'use lock="step"'
            )


def _from_zero(spans: list[list[float | None]]) -> list[list[float]]:
    """A race begins when its first step begins."""
    zero = spans[0][0] or 0.0
    return [[round((t or 0.0) - zero, 5) for t in span] for span in spans]


def _shown(value: Any) -> str:
    """A value of a record in few characters: ids and [id, tokens] pairs without brackets."""
    if value in (None, [], {}):
        return "nothing"
    if isinstance(value, list):
        text = ", ".join(" ".join(map(str, item)) if isinstance(item, (list, tuple)) else str(item) for item in value)
    else:
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= VALUE_MAX_CHARS else text[: VALUE_MAX_CHARS - 1] + "…"
