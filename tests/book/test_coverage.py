"""book/coverage.yml has every row once, and leads to places that exist. Knows no page's contents; builds nothing.

The last test compares with the built pages, and so runs with the browser tests, after the book is built.
"""

import pytest

from tests.book.test_links import Page
from tools.book_coverage import IDS, anchors_in, anchors_of, faults, load_rows, summary


def rows_with(**changes) -> list[dict]:
    """A table without a fault, but for what is changed in row M11; a None takes the key away."""
    rows = [{"id": name, "text": "a claim", "verdict": "ok", "open": 4} for name in IDS]
    row = rows[IDS.index("M11")]
    row.update(changes)
    for key in [key for key, value in row.items() if value is None]:
        del row[key]
    return rows


def faults_with(**changes) -> list[str]:
    return faults(rows_with(**changes), {"notebooks/01": {"how-much", "quiz"}}.get)


def test_every_row_stands_once_and_every_anchor_exists(capsys):
    rows = load_rows()
    assert faults(rows) == []
    with capsys.disabled():
        print(f"\nbook/coverage.yml: {summary(rows)}")


def test_a_table_without_a_fault_passes():
    assert faults_with() == []
    assert faults_with(open=None, page="notebooks/01", anchor="quiz", verdict="corrected", erratum="E6") == []
    assert faults_with(open="reading-list") == []


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"open": None, "page": "notebooks/01", "anchor": "how-mch"}, "no anchor 'how-mch'; it has how-much, quiz"),
        ({"open": None, "page": "notebooks/99", "anchor": "quiz"}, "no page notebooks/99"),
        ({"page": "notebooks/01", "anchor": "quiz"}, "either page and anchor, or open"),
        ({"open": None, "page": "notebooks/01"}, "either page and anchor, or open"),
        ({"open": None, "anchor": "quiz"}, "either page and anchor, or open"),
        ({"anchor": "quiz"}, "either page and anchor, or open"),
        ({"open": None}, "either page and anchor, or open"),
        ({"open": 17}, "open is 17; it is a chapter, 1 to 16, or one of"),
        ({"verdict": "wrong"}, "verdict is 'wrong'"),
        ({"erratum": "E35"}, "erratum is 'E35'"),
        ({"text": None}, "text has 0 words"),
        ({"text": "word " * 16}, "text has 16 words"),
        ({"chapter": 3}, "unknown key 'chapter'"),
    ],
)
def test_each_fault_is_named(changes, complaint):
    found = faults_with(**changes)
    assert len(found) == 1 and found[0].startswith("M11: ") and complaint in found[0]


def test_missing_repeated_and_unknown_rows_are_named():
    rows = rows_with()
    rows[IDS.index("M12")] = dict(rows[0])
    assert faults(rows) == ["M12 is missing", "S1 stands 2 times"]
    assert faults([*rows_with(), {"id": "M142", "text": "a claim", "verdict": "ok", "open": 4}]) == [
        "M142 is no row: rows are S1 to S39 and M1 to M141"
    ]


def test_the_count_is_of_rows_that_are_not_open():
    rows = rows_with(open=None, page="notebooks/01", anchor="quiz")
    assert summary(rows) == "1 of 180 rows taught, 179 open"


def test_anchors_are_those_of_headings_labels_and_names_but_not_of_code():
    text = (
        "# What `schedule()` does, and *why*\n\n## 3. Somebody else's words\n\nUnderlined\n---\n\n"
        "```python\n# a comment, no heading\n:name: nothing\n```\n\n```{figure} a.svg\n:name: closed-loop\n```\n\n"
        '(a-label)=\n\n<a id="by-hand"></a>\n'
    )
    headings = {"what-schedule-does-and-why", "somebody-else-s-words", "underlined"}
    assert anchors_in(text) == headings | {"closed-loop", "a-label", "by-hand"}


@pytest.mark.browser
def test_the_built_pages_have_the_anchors(html):
    rows = [row for row in load_rows() if "page" in row]
    for page in sorted({row["page"] for row in rows}):
        built = html / f"{page}.html"
        assert built.is_file(), f"{page} is mapped in book/coverage.yml, but not in the book: add it to _toc.yml"
        ids = Page(built.read_text(encoding="utf-8")).ids
        assert anchors_of(page) <= ids, f"{page}: the computed anchors are not those that Sphinx makes"
