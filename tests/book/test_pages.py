"""Every page, at desktop and phone width, light and dark, with the network cut. Knows what no page may show."""

import re

import pytest
import yaml

from tests.book.conftest import ROOT

pytestmark = pytest.mark.browser

NEXT = "button[aria-label='Step forward']"
SCRUBBER = "input[type=range]"

# Text that a reader would see as broken: TeX that was not set, MyST that was not parsed.
RAW_TEXT = re.compile(r"\\\(|\\\[|\$\$|\\begin\{|^:::|\{(?:ref|doc|numref|eq|cite|term)\}`", re.MULTILINE)
TEXT_OUTSIDE_CODE = """() => {
  const copy = document.querySelector('article.bd-article').cloneNode(true);
  copy.querySelectorAll('pre, code, script, style, mjx-container, iframe').forEach(e => e.remove());
  return copy.textContent;
}"""
BROKEN_IMAGES = """() => [...document.querySelectorAll('article.bd-article img')]
  .filter(i => !(i.complete && i.naturalWidth > 0 && i.alt.trim())).map(i => i.outerHTML.slice(0, 200))"""
TOO_WIDE = """() => {
  const limit = document.documentElement.clientWidth;
  if (document.documentElement.scrollWidth <= limit) return [];
  return [...document.querySelectorAll('body *')].filter(e => e.getBoundingClientRect().right > limit + 1)
    .map(e => e.tagName + '.' + e.className + ' ' + Math.round(e.getBoundingClientRect().right)).slice(0, 8)
}"""
# axe takes text in the very colour of its ground for hidden on purpose, and says nothing.
INVISIBLE = """() => {
  const ground = e => {
    for (; e; e = e.parentElement) {
      const colour = getComputedStyle(e).backgroundColor;
      if (!/^rgba?\\(.*, 0\\)$|transparent/.test(colour)) return colour;
    }
  };
  const own = e => [...e.childNodes].some(n => n.nodeType === 3 && n.textContent.trim());
  return [...document.querySelectorAll('article.bd-article *')].filter(own)
    .filter(e => e.checkVisibility() && getComputedStyle(e).color === ground(e))
    .map(e => e.outerHTML.slice(0, 160))
}"""
# The theme puts the logo outside of any landmark.
ALLOWED = {"region": "logo__image"}


def toc_pages() -> list[str]:
    def files(node) -> list[str]:
        if isinstance(node, list):
            return [file for item in node for file in files(item)]
        own = [node[key] for key in ("root", "file") if key in node]
        return own + [f for key in ("parts", "chapters", "sections") for f in files(node.get(key, []))]

    return files(yaml.safe_load((ROOT / "_toc.yml").read_text(encoding="utf-8")))


def violations(frame) -> list[str]:
    """What axe finds in one frame, but for minor things and what is allowed above."""
    from axe_playwright_python.sync_playwright import Axe

    frame.evaluate(Axe().axe_script)
    found = frame.evaluate("axe.run(document, {preload: false, iframes: false})")["violations"]
    return [
        f"{rule['id']} ({rule['impact']}): {node['html'][:160]}"
        for rule in found
        for node in rule["nodes"]
        if rule["impact"] != "minor" and ALLOWED.get(rule["id"], "nothing") not in node["html"]
    ]


def step_every_player(page) -> int:
    players = page.query_selector_all("article.bd-article iframe")
    for player in players:
        frame = player.content_frame()
        player.scroll_into_view_if_needed()
        before = frame.locator(SCRUBBER).first.input_value()
        frame.locator(NEXT).click()
        # Not its sentence: on a common clock two moments of two runs may have the same one.
        frame.wait_for_function("([where, old]) => document.querySelector(where).value !== old", arg=[SCRUBBER, before])
        serious = [line for line in violations(frame) if "(serious)" in line or "(critical)" in line]
        assert not serious, "in a player: " + "\n".join(serious)
    return len(players)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("name", toc_pages())
def test_page(open_page, name, width, scheme):
    page = open_page(f"{name}.html", width, scheme)
    assert page.evaluate("document.documentElement.dataset.theme") == scheme
    raw = RAW_TEXT.search(page.evaluate(TEXT_OUTSIDE_CODE))
    assert raw is None, f"raw text: {raw}"
    assert page.locator("mjx-merror").count() == 0, "a formula that MathJax refuses"
    page.evaluate("document.querySelectorAll('article.bd-article img').forEach(i => i.loading = 'eager')")
    page.wait_for_load_state("networkidle")
    assert page.evaluate(BROKEN_IMAGES) == []
    assert page.evaluate(TOO_WIDE) == [], f"wider than the screen at {width} px"
    assert page.evaluate(INVISIBLE) == [], "text in the colour of its ground"
    found = violations(page.main_frame)
    assert not found, "\n".join(found)
    step_every_player(page)


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("name", ["book/trace-format", "book/instructors"])
def test_no_column_of_a_table_is_off_the_screen(open_page, name, width):
    page = open_page(f"{name}.html", width)
    tables = "[...document.querySelectorAll('article.bd-article table')]"
    assert page.evaluate(f"{tables}.length") > 4
    assert (
        page.evaluate(f"{tables}.filter(t => t.scrollWidth > t.clientWidth).map(t => t.textContent.slice(0, 200))")
        == []
    )


def test_the_first_insight_needs_no_scroll(open_page):
    """On a screen of 1280 x 800 the whole race is in sight, and the words of both runs grow."""
    page = open_page("book/intro.html")
    page.set_viewport_size({"width": 1280, "height": 800})
    race = page.locator("article.bd-article iframe.step-player").first
    box = race.bounding_box()
    assert box["y"] + box["height"] <= 800
    frame = race.element_handle().content_frame()
    words = "() => [...document.querySelectorAll('.side')].map(side => side.innerText.length)"
    before = frame.evaluate(words)
    frame.get_by_label("Playing speed").select_option("5×")
    frame.get_by_role("button", name="Play").click()
    frame.wait_for_function(f"old => ({words})().every((length, k) => length > old[k])", arg=before)


def test_the_front_page_leads_to_the_introduction(open_page):
    page = open_page("index.html")
    page.wait_for_url("**/book/intro.html")


def test_the_search_page_finds_the_introduction(open_page):
    page = open_page("search.html?q=batch")
    page.wait_for_selector("#search-results li a")


def test_meet_the_engine_shows_a_player(open_page):
    assert step_every_player(open_page("notebooks/00-meet-the-engine.html")) >= 1
