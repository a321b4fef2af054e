"""The step player: a trace in one iframe. Knows the page and its wrapping, no policy. From chapter 1 on."""

from __future__ import annotations

import html
import os
from collections.abc import Iterable
from importlib import resources
from pathlib import Path
from typing import Any

from mini_vllm.errors import ConfigError
from mini_vllm.viz import static_picture
from mini_vllm.viz.event_words import step_words
from mini_vllm.viz.player_data import clean, milliseconds, player_data, script_json
from mini_vllm.viz.timeline import Timeline, build_timeline, read_trace

SCRIPTS = ("player.js", "lanes.js", "panels.js")
FUTURES = ("dim", "hide")
KINDS = {"sim": "A simulated run", "engine": "A run of the engine", "vllm": "A recorded run of vLLM"}


class StepPlayer:
    """A run to step through: request lanes, queues, both budgets, KV block map, one sentence a step.

    `trace` is a JSONL path, a {"header": …, "steps": […]} dict, or an object with `.header` and `.steps`.
    As the last value of a notebook cell it shows itself.

    title       heading; the header's "title" or the kind of the run by default
    start       index of the step to open at
    height      pixels; None lets the player take what it needs where the page allows that
    autoplay    start playing at once (never where the reader asked for reduced motion)
    future      "dim" shows later steps faintly, "hide" keeps them for the reader to predict
    times       embed wall times; the stored output then differs from run to run
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
    ) -> None:
        if future not in FUTURES:
            raise ConfigError(f"future={future!r} is unknown: choose one of {', '.join(FUTURES)}")
        self.timeline: Timeline = build_timeline(*read_trace(trace))
        header = self.timeline.header
        self.title = clean(title or str(header.get("title") or KINDS.get(str(header.get("kind")), "A run")))
        self.start, self.height, self.autoplay = start, height, autoplay
        self.future, self.times = future, times

    def events(self) -> list[str]:
        """The run in words, one sentence a step: "step 9: R4 is preempted: …; R1, R2, R3 decode."."""
        line = self.timeline
        return [f"step {record['step']}: {step_words(line, i)}" for i, record in enumerate(line.records)]

    def document(self) -> str:
        """The player as a whole HTML page: no request to anywhere, the same bytes for the same trace."""
        data = player_data(self.timeline) | {
            "autoplay": self.autoplay,
            "fit": self.height is None,
            "future": self.future,
            "start": self.start,
            "title": self.title,
        }
        if self.times:
            data["times"] = milliseconds(self.timeline)
        parts = {
            "title": html.escape(self.title),
            "style": _squeezed("player.css"),
            "data": script_json(data),
            "script": "".join(_squeezed(name) for name in SCRIPTS),
        }
        done, rest = "", _asset("player.html")
        for name, text in parts.items():  # in the order of the page, so that no inserted text is searched
            head, rest = rest.split(f"<!--{name}-->")
            done += head + text
        return done + rest

    def html(self) -> str:
        """The player as a fragment: one iframe that carries its page in `srcdoc`.

        `<` and `>` are escaped too, though HTML does not ask for it: Sphinx builds its search index with a
        regular expression that would otherwise index our script. What stands inside the element is never
        seen in a browser, but remains where the iframe is taken out (untrusted notebooks in JupyterLab).
        """
        page = self.document()
        for char, entity in (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;"), ("'", "&#39;")):
            page = page.replace(char, entity)
        name = html.escape(f"Step player: {self.title}")
        height = self.height or self._height()
        note = "The step player needs a trusted notebook: choose File, Trust Notebook, or run this cell."
        return (
            f'<iframe class="step-player" title="{name}" width="100%" height="{height}" '
            f"style=\"border:0;display:block;background:transparent\" srcdoc='{page}'>"
            f"<p>{note}</p><pre>{html.escape(self.text())}</pre></iframe>"
        )

    def text(self) -> str:
        """A slot × time picture in plain characters, at most 40 lines."""
        return clean(static_picture.text(self.timeline, self.title, self.events()))

    def svg(self) -> str:
        """The whole run as one static SVG picture."""
        return clean(static_picture.svg(self.timeline, self.title))

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the player as a page of its own and return where."""
        target = Path(path)
        target.write_text(self.document(), encoding="utf-8", newline="\n")
        return target

    def __repr__(self) -> str:
        return self.text()

    def _repr_mimebundle_(
        self, include: Iterable[str] | None = None, exclude: Iterable[str] | None = None
    ) -> dict[str, str]:
        """HTML and text. The SVG is made only if asked for: Sphinx and Jupyter take the HTML first anyway."""
        makers = {"text/html": self.html, "text/plain": self.text, "image/svg+xml": self.svg}
        wanted = set(include) if include else {"text/html", "text/plain"}
        return {kind: make() for kind, make in makers.items() if kind in wanted - set(exclude or ())}

    def _height(self) -> int:
        """A guess at the height in a book column, for pages that do not let the player set its own."""
        line = self.timeline
        talks = any(lane.prompt or any(lane.pieces) for lane in line.lanes)
        lane = 30 if not talks else 68 if len(line.lanes) <= 8 else 49
        blocks = line.limit("num_gpu_blocks") or 0
        map_rows = -(-blocks // 9) * 34 if blocks <= 96 else -(-blocks // 12) * 21 if blocks <= 256 else 330
        panels = max(215, 85 + map_rows) if line.has("blocks") else 215
        return 305 + min(620, 20 + lane * len(line.lanes)) + panels


def _asset(name: str) -> str:
    return resources.files("mini_vllm.viz").joinpath(name).read_text(encoding="utf-8")


def _squeezed(name: str) -> str:
    """A script or style sheet without indentation and whole-line comments; readers find both in the file."""
    lines = (line.strip() for line in _asset(name).splitlines())
    return "".join(f"{line}\n" for line in lines if line and not line.startswith(("//", "/*")))
