"""The player in a real browser: controls, keys, text, themes, phone, accessibility. Knows no scheduling."""

import os
import shutil

import pytest

sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
axe_module = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe is not installed")

from mini_vllm.viz import StepPlayer  # noqa: E402
from tests.viz.player_traces import busy_trace, record, small_trace  # noqa: E402

ADDRESS = "http://book.example/page.html"
HOSTILE = '</script><img src=x onerror="parent.hacked=1"><script>parent.hacked=1</script>\'\u2028'


def find_chromium() -> str | None:
    """Path of a Chromium: $MINI_VLLM_CHROMIUM first, then the usual names."""
    names = (os.environ.get("MINI_VLLM_CHROMIUM"), "chromium", "google-chrome", "chromium-browser")
    return next((path for name in names if name and (path := shutil.which(name))), None)


CHROMIUM = find_chromium()
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed")


@pytest.fixture(scope="module")
def chromium_for_player():
    with sync_api.sync_playwright() as playwright:
        arguments = ["--no-sandbox", "--disable-dev-shm-usage"]
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=arguments)
        yield browser
        browser.close()


@pytest.fixture
def show_player(chromium_for_player):
    """show(player, width, theme) opens a page with the player in it and returns (page, frame).

    Afterwards: nothing was asked from anywhere, no console error, no exception in the page.
    """
    contexts, problems = [], []

    def show(player, width=1280, theme="light", system="light", motion="no-preference", alone=False):
        body = player.html() if not alone else ""
        page_html = f"<!doctype html><title>A page</title><html data-theme={theme}><body>{body}</body></html>"
        context = chromium_for_player.new_context(
            viewport={"width": width, "height": 900}, color_scheme=system, reduced_motion=motion
        )
        contexts.append(context)

        def answer(route):
            if route.request.url == ADDRESS:
                route.fulfill(body=player.document() if alone else page_html, content_type="text/html; charset=utf-8")
            else:
                problems.append(f"request: {route.request.url}")
                route.abort()

        context.route("**/*", answer)
        page = context.new_page()
        page.on("console", lambda line: line.type == "error" and problems.append(line.text))
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.goto(ADDRESS)
        return page, (page if alone else page.frame_locator("iframe.step-player"))

    yield show
    for context in contexts:
        context.close()
    assert not problems


def clock(frame) -> str:
    return frame.locator("#clock b").inner_text()


def said(frame) -> str:
    return frame.locator("#say").inner_text()


def lane_text(frame, row: int) -> str:
    """What the user of a request has seen, without the prompt."""
    box = frame.locator(".lane .text").nth(row)
    return box.evaluate("box => box.textContent.replace(/^.*? → /s, '')")


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_controls_keys_and_growing_text(show_player, width, theme):
    page, frame = show_player(StepPlayer(small_trace()), width, theme)
    assert (clock(frame), lane_text(frame, 0)) == ("0", "One")
    frame.get_by_role("button", name="Step forward").click()
    assert (clock(frame), lane_text(frame, 0)) == ("1", "One, two")
    frame.get_by_role("button", name="Next event").click()  # nobody enters or leaves in step 2
    assert clock(frame) == "3" and "C is preempted" in said(frame)
    assert lane_text(frame, 0) == "One, two, three."
    assert lane_text(frame, 2) == "🙂"  # a preemption does not take words back
    page.keyboard.press("ArrowLeft")
    assert clock(frame) == "2"
    page.keyboard.press("End")
    assert clock(frame) == "5" and lane_text(frame, 1).startswith("Good day⏎") and lane_text(frame, 2) == "🙂 :-)"
    page.keyboard.press("Home")
    assert clock(frame) == "0" and lane_text(frame, 0) == "One"
    slider = frame.get_by_role("slider", name="Step")
    slider.fill("4")
    assert clock(frame) == "4" and slider.get_attribute("aria-valuetext") == "step 4"
    assert frame.locator("#lanes").evaluate("box => box.scrollWidth <= box.clientWidth")


def test_play_runs_to_the_end_and_pause_stops_it(show_player):
    page, frame = show_player(StepPlayer(small_trace()))
    frame.get_by_label("Playing speed").select_option("5×")
    frame.get_by_role("button", name="Play").click()
    assert frame.locator("#story").get_attribute("aria-live") == "off"
    frame.locator("#clock b", has_text="5").wait_for(timeout=5000)
    assert frame.get_by_role("button", name="Play").count() == 1
    assert frame.locator("#story").get_attribute("aria-live") == "polite"
    frame.get_by_label("Playing speed").select_option("0.5×")
    frame.locator("h1").click()
    page.keyboard.press(" ")  # from the start again
    frame.get_by_role("button", name="Pause").wait_for()
    page.keyboard.press(" ")
    assert frame.get_by_role("button", name="Play").count() == 1 and clock(frame) == "0"


def test_autoplay_only_on_request_and_never_against_reduced_motion(show_player):
    _, asked = show_player(StepPlayer(small_trace(), autoplay=True))
    page, calm = show_player(StepPlayer(small_trace(), autoplay=True), motion="reduce")
    _, plain = show_player(StepPlayer(small_trace()))
    asked.locator("#clock b:not(:text-is('0'))").wait_for()
    page.wait_for_timeout(1000)  # longer than a step
    assert (clock(calm), clock(plain)) == ("0", "0")


def test_theme_follows_the_page_and_else_the_system(show_player):
    background = "getComputedStyle(document.body).backgroundColor"
    page, frame = show_player(StepPlayer(small_trace()), theme="dark")
    body = frame.locator("body")
    dark = body.evaluate(f"() => {background}")
    page.evaluate("document.documentElement.dataset.theme = 'light'")
    frame.locator(":root[data-look=light]").wait_for()
    light = body.evaluate(f"() => {background}")
    assert (dark, light) == ("rgb(20, 24, 30)", "rgb(255, 255, 255)")
    page.evaluate("delete document.documentElement.dataset.theme; document.body.dataset.jpThemeLight = 'false'")
    frame.locator(":root[data-look=dark]").wait_for()
    _, alone = show_player(StepPlayer(small_trace()), system="dark", alone=True)
    assert alone.evaluate(background) == dark


@pytest.mark.parametrize("width", [1280, 390])
def test_the_frame_is_as_high_as_its_content_and_no_wider_than_the_page(show_player, width):
    page, frame = show_player(StepPlayer(busy_trace(steps=60)), width)
    page.wait_for_function("document.querySelector('iframe').style.height")
    app = frame.locator("#app").bounding_box()
    shown = page.locator("iframe").bounding_box()
    assert app["width"] <= shown["width"] <= width
    assert app["height"] <= shown["height"] <= app["height"] + 4
    page, frame = show_player(StepPlayer(small_trace(), height=300), width)
    assert page.locator("iframe").bounding_box()["height"] == 300


def test_a_long_run_pans_so_that_the_current_step_stays_in_view(show_player):
    _, frame = show_player(StepPlayer(busy_trace(steps=200)), 390, motion="reduce")
    for step in ("0", "60", "199"):
        frame.get_by_role("slider", name="Step").fill(step)
        now, lanes = frame.locator("#now").bounding_box(), frame.locator("#lanes").bounding_box()
        assert lanes["x"] <= now["x"] and now["x"] + now["width"] <= lanes["x"] + lanes["width"] + 1
        assert frame.locator(".axis .here").text_content() == step
    map_box = frame.locator("#map").bounding_box()
    frame.locator("#map").click(position={"x": map_box["width"] / 2, "y": 5})
    assert abs(int(clock(frame)) - 100) <= 2


def test_a_waiting_request_answers_why(show_player):
    _, frame = show_player(StepPlayer(small_trace(), start=3))
    frame.get_by_role("button", name="C preempted").click()
    assert "C waits behind B" in frame.locator("#why").inner_text()
    frame.get_by_role("button", name="B preempted").click()
    assert frame.locator("#why").inner_text() == "B waits: nobody is admitted in a step that preempted."


def test_block_map_and_gauges(show_player):
    _, frame = show_player(StepPlayer(small_trace(), start=3))
    blocks = frame.get_by_role("img", name="Block map: A holds 1, 2, 4; 1 not held")
    assert blocks.locator(".b").count() == 3 and blocks.locator(".fresh").count() == 1
    assert frame.get_by_role("meter", name="KV blocks").get_attribute("aria-valuetext") == "3 of 4"
    assert frame.get_by_role("meter", name="token budget").get_attribute("aria-valuetext") == "1 of 6"


@pytest.mark.parametrize("width", [1280, 390])
def test_numbers_and_owners_in_the_block_map_do_not_touch(show_player, width):
    trace = busy_trace(steps=40, seats=12, blocks=96)
    _, frame = show_player(StepPlayer(trace, start=39), width)
    boxes = frame.locator("#blocks").evaluate("""map => [...map.querySelectorAll("text")].map(text => {
        const {x, y, width, height} = text.getBBox();
        return [text.className.baseVal, text.textContent, x, y + .2 * height, width, .6 * height];  // the ink
    })""")
    numbers, owners = ([box[1:] for box in boxes if (box[0] == "id") == wanted] for wanted in (True, False))
    assert len(numbers) == 96 and "R11" in {name for name, *_ in owners}
    for owner, x, y, w, h in owners:
        for number, x2, y2, w2, h2 in numbers:
            apart = x >= x2 + w2 or x2 >= x + w or y >= y2 + h2 + 3 or y2 >= y + h + 3
            assert apart, f"block {number} and {owner}"


def test_sizes_marks_and_keys_are_explained(show_player):
    _, frame = show_player(StepPlayer(small_trace()))
    legend = frame.locator("#legend").inner_text()
    for words in ("A +\nentered in this step", "6+4\nprompt + at most 4 new tokens", "n = next event"):
        assert words in legend or words.replace("\n", " ") in legend, legend
    title = frame.locator(".lane .name").first.get_attribute("title")
    assert title == "A: 6+4 = a prompt of 6 tokens + at most 4 new tokens"
    assert "bar in a block: how full it is" in frame.locator("#kv .note").inner_text()
    bare = {"steps": [record(0, [])]}
    _, frame = show_player(StepPlayer(bare))
    assert "prompt" not in frame.locator("#legend").inner_text()


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("seats", [3, 9], ids=["two lines of text", "one line of text"])
def test_a_text_whose_start_is_out_of_sight_begins_with_dots(show_player, width, seats):
    trace = busy_trace(steps=60, seats=seats)
    trace["header"]["requests"]["R1"]["prompt"] = "A long prompt. " * 30
    _, frame = show_player(StepPlayer(trace), width)
    mark, text = frame.locator(".lane .cut"), frame.locator(".lane .text")
    assert mark.first.is_visible() and not mark.nth(1).is_visible()
    a, b = mark.first.bounding_box(), text.first.bounding_box()
    assert abs(a["x"] - b["x"]) < 2 and abs(a["y"] - b["y"]) < 2


def test_a_hidden_future_is_not_drawn(show_player):
    _, frame = show_player(StepPlayer(small_trace(), future="hide"))
    assert frame.locator(".lane .later .cell").first.is_hidden()
    _, frame = show_player(StepPlayer(small_trace()))
    assert frame.locator(".lane .later .cell").first.is_visible()


def test_hostile_text_is_shown_as_text(show_player):
    trace = small_trace()
    trace["steps"][0]["pieces"]["A"] = HOSTILE
    trace["header"]["requests"][HOSTILE] = {"prompt_len": 1, "prompt": HOSTILE}
    trace["steps"][0]["arrivals"].append(HOSTILE)
    page, frame = show_player(StepPlayer(trace, title=HOSTILE))
    assert frame.locator("h1").inner_text().startswith("</script><img")
    assert lane_text(frame, 0).startswith("</script><img")
    assert page.evaluate("window.hacked") is None and frame.locator("img:not([aria-label])").count() == 0


SPARSE = {"steps": [record(i, [[f"request-{k}", 1] for k in range(i % 12)]) for i in range(30)]}


@pytest.mark.parametrize(
    "trace",
    [SPARSE, {"steps": [record(0, [])]}, busy_trace(steps=20, blocks=4000), busy_trace(steps=20, blocks=700)],
    ids=["no header, ids too long to draw", "one idle step", "blocks as shares", "blocks without labels"],
)
def test_odd_traces_open_without_an_error(show_player, trace):
    page, frame = show_player(StepPlayer(trace), 390)
    frame.locator("h1").click()
    page.keyboard.press("End")
    assert clock(frame) == str(trace["steps"][-1]["step"])


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_no_accessibility_violation(show_player, width, theme):
    page, _ = show_player(StepPlayer(small_trace(), start=3), width, system=theme, alone=True)
    result = axe_module.Axe().run(page, options={"preload": False})
    found = [(v["id"], [n["html"][:120] for n in v["nodes"]]) for v in result.response["violations"]]
    assert not found
