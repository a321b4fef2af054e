"""Stored benchmark results, found and set as tables. Knows benchmarks/results/; measures nothing. Chapters 0 and 13."""

import html
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

from mini_vllm.errors import ConfigError
from mini_vllm.setup_cell import repository_url

FOLDER = "benchmarks/results"
TIMEOUT_S = 10


def results_folder() -> Path | None:
    """benchmarks/results/ of the clone around this notebook, beside it or around this package, if there is one."""
    here, beside = Path.cwd(), Path.cwd() / repository_url().rsplit("/", 1)[1]
    for root in (here, *here.parents, beside, Path(__file__).resolve().parents[2]):
        if (root / "mini_vllm" / "__init__.py").is_file() and (root / FOLDER).is_dir():
            return root / FOLDER
    return None


def stored_result(name: str) -> Any:
    """What benchmarks/results/`name`.json holds: of the clone, or where there is none (Colab), of the repository.

    Raises ConfigError if neither has it.
    """
    if (folder := results_folder()) is not None:
        path = folder / f"{name}.json"
        if path.is_file():
            return json.loads(path.read_text(encoding="utf-8"))
        raise ConfigError(f"{FOLDER}/{name}.json is not there; the script that writes it is in benchmarks/")
    address = f"{repository_url()}/raw/HEAD/{FOLDER}/{name}.json"
    try:
        with urlopen(address, timeout=TIMEOUT_S) as answer:
            return json.loads(answer.read())
    except (URLError, ValueError, TimeoutError) as error:
        raise ConfigError(
            f"{address} cannot be read ({error}); clone the repository and open the notebook there"
        ) from None


class ResultTable:
    """A table as the output of a cell, which a phone scrolls within itself; `note` stands below it.

    align: one letter a column, "l" or "r"; by default the first is left and the others right.
    Raises ConfigError for a row that is longer or shorter than the header.
    """

    def __init__(self, header: Sequence[str], rows: Sequence[Sequence[Any]], *, align: str = "", note: str = ""):
        self.header, self.note = [str(cell) for cell in header], note
        self.rows = [[str(cell) for cell in row] for row in rows]
        self.align = align or "l" + "r" * (len(self.header) - 1)
        for row in self.rows:
            if len(row) != len(self.header):
                raise ConfigError(f"a row has {len(row)} cells, the header {len(self.header)}: {row!r:.80}")

    def _repr_mimebundle_(self, include=None, exclude=None):
        return {"text/html": self.html(), "text/plain": repr(self)}

    def html(self) -> str:
        sides = ["right" if side == "r" else "left" for side in self.align]

        def line(tag: str, cells: list[str]) -> str:
            # Numbers stay on one line: a phone would break them at the minus of an exponent.
            more = {"td right": ";white-space:nowrap"}
            styled = zip(sides, cells, strict=True)
            return "".join(
                f'<{tag} style="text-align:{side}{more.get(f"{tag} {side}", "")}">{html.escape(cell)}</{tag}>'
                for side, cell in styled
            )

        body = "".join(f"<tr>{line('td', row)}</tr>" for row in self.rows)
        table = f"<table><thead><tr>{line('th', self.header)}</tr></thead><tbody>{body}</tbody></table>"
        note = f"<p>{html.escape(self.note)}</p>" if self.note else ""
        return f'<div class="stored-result">{table}{note}</div>'

    def __repr__(self) -> str:
        widths = [max(map(len, column)) for column in zip(self.header, *self.rows, strict=True)]

        def line(cells: list[str]) -> str:
            fitted = zip(self.align, cells, widths, strict=True)
            return "  ".join(c.rjust(w) if side == "r" else c.ljust(w) for side, c, w in fitted).rstrip()

        return "\n".join([line(self.header), *map(line, self.rows), *([self.note] if self.note else [])])
