"""The page and the iframe around one run or two. Knows HTML and its escaping, no run. From chapter 1 on."""

from __future__ import annotations

import html
import os
import re
import unicodedata
from collections.abc import Iterable
from importlib import resources
from pathlib import Path
from typing import Any

from mini_vllm.errors import ConfigError
from mini_vllm.viz.player_data import clean, is_large_pool, script_json
from mini_vllm.viz.squeeze import squeeze_script, squeeze_style
from mini_vllm.viz.timeline import Timeline

SCRIPTS = ("run.js", "overview.js", "lanes.js", "panels.js", "blocks.js", "crowd.js", "player.js", "page.js")
LARGE_LANES = 40  # as CROWD in overview.js
FUTURES = ("dim", "hide")
MAP_ROWS_MAX_PX = 330


class PlayerPage:
    """What every player has in common. A subclass sets `timelines` and says what `data`, `text` and `svg` are."""

    timelines: list[Timeline]

    def __init__(
        self,
        title: str,
        *,
        start: int,
        height: int | None,
        autoplay: bool,
        future: str,
        link: str | None,
    ) -> None:
        if future not in FUTURES:
            raise ConfigError(f"future={future!r} is unknown: choose one of {', '.join(FUTURES)}")
        self.title, self.link = clean(title), slug(link if link is not None else title)
        self.start, self.height, self.autoplay, self.future = start, height, autoplay, future

    def data(self) -> dict[str, Any]:
        """What player.js reads beside the settings that every player has."""
        raise NotImplementedError

    def text(self) -> str:
        """The run in plain characters."""
        raise NotImplementedError

    def svg(self) -> str:
        """The run as one static SVG picture."""
        raise NotImplementedError

    def document(self) -> str:
        """The player as a whole HTML page: no request to anywhere, the same bytes for the same trace."""
        return self._page(html.escape(self.text()))

    def _page(self, fallback: str) -> str:
        """`fallback` is shown where the script does not run; in an iframe it can be had from around it."""
        data = self.data() | {
            "autoplay": self.autoplay,
            "fit": self.height is None,
            "future": self.future,
            "link": self.link,
            "start": self.start,
            "title": self.title,
        }
        parts = {
            "title": html.escape(self.title),
            "style": "".join(squeeze_style(_asset(name)) for name in self._styles()),
            "fallback": fallback,
            "data": script_json(data),
            "script": "".join(squeeze_script(_asset(name)) for name in self._scripts()),
        }
        done, rest = "", _asset("player.html")
        for name, text in parts.items():  # in the order of the page, so that no inserted text is searched
            head, rest = rest.split(f"<!--{name}-->")
            done += head + text
        return done + rest

    def _styles(self) -> list[str]:
        """Style sheets, later ones over earlier ones."""
        return ["player.css"]

    def _scripts(self) -> list[str]:
        """Without what only large runs need, where there is none."""
        large = any(len(line.lanes) > LARGE_LANES or is_large_pool(line) for line in self.timelines)
        return [name for name in SCRIPTS if large or name != "crowd.js"]

    def html(self) -> str:
        """The player as a fragment: one iframe that carries its page in `srcdoc`.

        `<` and `>` are escaped too, though HTML does not ask for it: Sphinx builds its search index with a
        regular expression that would otherwise index our script. What stands inside the element is never
        seen in a browser, but remains where the iframe is taken out (untrusted notebooks in JupyterLab).
        """
        page = self._page("")
        for char, entity in (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;"), ("'", "&#39;")):
            page = page.replace(char, entity)
        name = html.escape(f"Step player: {self.title}")
        height = self.height or self._height()
        note = "The step player needs a trusted notebook: choose File, Trust Notebook, or run this cell."
        return (
            f'<iframe class="step-player" title="{name}" data-link="{self.link}" width="100%" height="{height}" '
            f"style=\"border:0;display:block;background:transparent\" srcdoc='{page}'>"
            f"<p>{note}</p><pre>{html.escape(self.text())}</pre></iframe>"
        )

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
        return 305 + sum(_side_height(line) for line in self.timelines)


def slug(text: str) -> str:
    """ "Five questions, one model" → "five-questions-one-model": what a link calls the player."""
    plain = unicodedata.normalize("NFKD", clean(text)).encode("ascii", "ignore").decode("ascii")
    return re.sub(r"[^a-z0-9]+", "-", plain.lower()).strip("-")[:60].rstrip("-") or "player"


def _side_height(line: Timeline) -> int:
    talks = any(lane.prompt or any(lane.pieces) for lane in line.lanes)
    lane = 30 if not talks else 68 if len(line.lanes) <= 8 else 49
    blocks = line.limit("num_gpu_blocks") or 0
    map_rows = -(-blocks // 9) * 34 if blocks <= 96 else -(-blocks // 12) * 21 if blocks <= 256 else MAP_ROWS_MAX_PX
    panels = max(215, 85 + map_rows) if line.has("blocks") else 215
    return min(620, 20 + lane * len(line.lanes)) + panels


def _asset(name: str) -> str:
    return resources.files("mini_vllm.viz").joinpath(name).read_text(encoding="utf-8")
