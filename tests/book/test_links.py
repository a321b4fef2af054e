"""Links between the built pages lead to pages and anchors that exist. Knows HTML; needs no browser."""

from html.parser import HTMLParser
from urllib.parse import unquote, urlsplit

import pytest

pytestmark = pytest.mark.browser  # it reads the built book, which make test builds before the browser tests


class Page(HTMLParser):
    """The ids and the link targets of one page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.links: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag, attrs) -> None:
        values = dict(attrs)
        self.ids |= {values[key] for key in ("id", "name") if values.get(key)}
        if tag == "a" and values.get("href"):
            self.links.append(values["href"])


def test_internal_links_and_anchors_exist(html):
    files = [file for file in sorted(html.rglob("*.html")) if "_static" not in file.parts]
    pages = {file.resolve(): Page(file.read_text(encoding="utf-8")) for file in files}
    assert len(pages) > 3
    broken = []
    for file, page in pages.items():
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc or link == "#":
                continue
            target = (file.parent / unquote(parts.path)).resolve() if parts.path else file
            anchor = unquote(parts.fragment)
            if not target.exists():
                broken.append(f"{file.relative_to(html)}: {link}")
            elif anchor and target in pages and anchor not in pages[target].ids:
                broken.append(f"{file.relative_to(html)}: {link}: no such anchor")
    assert not broken, "\n".join(broken[:30])
