"""Which popular claims the book teaches, and where. Knows book/coverage.yml and the pages' headings; judges no page.

Run, it prints how many rows are taught and which chapter owes the others. A broken row is an error.
"""

import json
import re
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import yaml
from docutils.nodes import make_id
from markdown_it import MarkdownIt

ROOT = Path(__file__).resolve().parent.parent
COVERAGE = ROOT / "book" / "coverage.yml"
IDS = [f"S{n}" for n in range(1, 40)] + [f"M{n}" for n in range(1, 142)]
CHAPTERS = range(1, 17)
PLANNED_PAGES = ("misconceptions", "walks", "reading-list")  # pages of book/ that are not chapters
KEYS = {"id", "text", "verdict", "erratum", "page", "anchor", "open"}
LONGEST_TEXT = 15  # words

# Ids that an author sets: a directive's name, a label, an HTML id.
EXPLICIT_ID = re.compile(r"^:name:\s*(\S+)|^\(([\w.-]+)\)=\s*$|\bid=\"([\w.-]+)\"", re.MULTILINE)


def load_rows(path: Path = COVERAGE) -> list[dict]:
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def anchors_in(markdown: str) -> set[str]:
    """The ids that Sphinx gives to headings, and those that the author set; a repeated heading counts once."""
    found = set()
    tokens = MarkdownIt("commonmark").parse(markdown)
    for token, following in zip(tokens, [*tokens[1:], None], strict=True):
        if token.type == "heading_open":
            parts = following.children or []
            found.add(make_id("".join(p.content for p in parts if p.type in ("text", "code_inline"))))
        elif token.type != "code_block" and not (token.type == "fence" and not token.info.startswith("{")):
            found |= {make_id(name) for match in EXPLICIT_ID.findall(token.content) for name in match if name}
    return found - {""}


def anchors_of(page: str, root: Path = ROOT) -> set[str] | None:
    """Ids of a page, named as in _toc.yml, without a suffix; None if there is no such file."""
    notebook, text = root / f"{page}.ipynb", root / f"{page}.md"
    if notebook.is_file():
        cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
        sources = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown"]
    elif text.is_file():
        sources = [text.read_text(encoding="utf-8")]
    else:
        return None
    return set().union(*map(anchors_in, sources))


def faults(rows: list[dict], anchors: Callable[[str], set[str] | None] = anchors_of) -> list[str]:
    """What is wrong with the table, a sentence each; empty if nothing is."""
    counts = Counter(row.get("id") for row in rows)
    found = [f"{name} is missing" for name in IDS if not counts[name]]
    found += [f"{name} stands {count} times" for name, count in counts.items() if count > 1]
    found += [f"{name} is no row: rows are S1 to S39 and M1 to M141" for name in counts if name not in IDS]
    pages = {page: anchors(page) for page in {row["page"] for row in rows if "page" in row}}
    return found + [f"{row.get('id')}: {fault}" for row in rows for fault in _faults_of(row, pages)]


def _faults_of(row: dict, pages: dict[str, set[str] | None]) -> list[str]:
    found = [f"unknown key {key!r}" for key in row if key not in KEYS]
    words = len(str(row.get("text") or "").split())
    if not 1 <= words <= LONGEST_TEXT:
        found.append(f"text has {words} words; 1 to {LONGEST_TEXT} may stand there")
    if row.get("verdict") not in ("ok", "corrected"):
        found.append(f"verdict is {row.get('verdict')!r}; it is ok or corrected")
    if "erratum" in row and not re.fullmatch(r"E([1-9]|[12]\d|3[0-4])", str(row["erratum"])):
        found.append(f"erratum is {row['erratum']!r}; they are E1 to E34")
    if ("page" in row) == ("open" in row) or ("page" in row) != ("anchor" in row):
        found.append("give either page and anchor, or open")
    elif "open" in row and row["open"] not in (*CHAPTERS, *PLANNED_PAGES):
        found.append(f"open is {row['open']!r}; it is a chapter, 1 to 16, or one of {', '.join(PLANNED_PAGES)}")
    elif "page" in row and pages[row["page"]] is None:
        found.append(f"there is no page {row['page']}")
    elif "page" in row and row["anchor"] not in pages[row["page"]]:
        found.append(f"{row['page']} has no anchor {row['anchor']!r}; it has {', '.join(sorted(pages[row['page']]))}")
    return found


def summary(rows: list[dict]) -> str:
    is_open = sum("open" in row for row in rows)
    return f"{len(rows) - is_open} of {len(rows)} rows taught, {is_open} open"


def main() -> int:
    rows = load_rows()
    for fault in (found := faults(rows)):
        print(f"{COVERAGE.relative_to(ROOT)}: {fault}", file=sys.stderr)
    print(summary(rows))
    owed = Counter(row["open"] for row in rows if "open" in row)
    for place in (*CHAPTERS, *PLANNED_PAGES):
        if owed[place]:
            print(f"  {place!s:>14}: {owed[place]:3} open: {' '.join(r['id'] for r in rows if r.get('open') == place)}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
