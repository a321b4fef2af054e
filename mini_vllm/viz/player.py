"""The step player: one run to step through, in one iframe. Knows what it shows, no policy. From chapter 1 on."""

from __future__ import annotations

from typing import Any

from mini_vllm.viz import static_picture
from mini_vllm.viz.event_words import step_words
from mini_vllm.viz.player_data import clean, run_data, seconds
from mini_vllm.viz.player_page import PlayerPage
from mini_vllm.viz.records import read_trace
from mini_vllm.viz.timeline import Timeline, build_timeline

KINDS = {"sim": "A simulated run", "engine": "A run of the engine", "vllm": "A recorded run of vLLM"}


class StepPlayer(PlayerPage):
    """A run to step through: request lanes, queues, both budgets, KV block map, one sentence a step.

    `trace` is a JSONL path, a {"header": …, "steps": […]} dict, or an object with `.header` and `.steps`.
    As the last value of a notebook cell it shows itself.

    title       heading; the header's "title" or the kind of the run by default
    start       index of the step to open at
    height      pixels; None lets the player take what it needs where the page allows that
    autoplay    start playing at once (never where the reader asked for reduced motion)
    future      "dim" shows later steps faintly, "hide" keeps them for the reader to predict
    times       embed wall times; the stored output then differs from run to run
    count_from  number shown for the first step; None shows the trace's own numbers, which start at 0
    link        name in links to a step of this player: <a href="#NAME@step=12">; by default from the title
    """

    def __init__(
        self,
        trace: Any,
        *,
        title: str | None = None,
        start: int = 0,
        height: int | None = None,
        autoplay: bool = False,
        future: str = "dim",
        times: bool = False,
        count_from: int | None = None,
        link: str | None = None,
    ) -> None:
        header, records = read_trace(trace)
        shift = 0 if count_from is None else count_from - records[0]["step"]
        self.timeline: Timeline = build_timeline(header, records, shift)
        name = title or str(header.get("title") or KINDS.get(str(header.get("kind")), "A run"))
        super().__init__(name, start=start, height=height, autoplay=autoplay, future=future, link=link)
        self.timelines, self.times = [self.timeline], times

    def events(self) -> list[str]:
        """The run in words, one sentence a step: "step 9: R4 evicted: R3 needs a third block, 0 free; …"."""
        return [f"step {number}: {step_words(self.timeline, i)}" for i, number in enumerate(self.timeline.numbers)]

    def data(self) -> dict[str, Any]:
        """The run for run.js."""
        run = run_data(self.timeline)
        if self.times:
            run["times"] = seconds(self.timeline)
        return {"runs": [run]}

    def text(self) -> str:
        """A slot × time picture in plain characters, at most 40 lines."""
        return clean(static_picture.text(self.timeline, self.title, self.events()))

    def svg(self) -> str:
        """The whole run as one static SVG picture."""
        return clean(static_picture.svg(self.timeline, self.title))
