"""The player in a real browser: controls, keys, text, themes, phone, accessibility. Knows no scheduling."""

import pytest

axe_module = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe is not installed")

from mini_vllm.config import SchedulerConfig  # noqa: E402
from mini_vllm.sim.driver import SimRequest, simulate  # noqa: E402
from mini_vllm.sim.examples import five_requests  # noqa: E402
from mini_vllm.viz import StepPlayer  # noqa: E402
from tests.viz.player_traces import busy_trace, crowd_trace, record, small_trace  # noqa: E402

HOSTILE = '</script><img src=x onerror="parent.hacked=1"><script>parent.hacked=1</script>\'\u2028'


def clock(frame) -> str:
    return frame.locator("#clock b").inner_text()


def said(frame) -> str:
    return frame.locator(".say").inner_text()


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
    assert clock(frame) == "3" and "C evicted" in said(frame)
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
    assert frame.locator(".lanes").evaluate("box => box.scrollWidth <= box.clientWidth")


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
        now, lanes = frame.locator(".now").bounding_box(), frame.locator(".lanes").bounding_box()
        assert lanes["x"] <= now["x"] and now["x"] + now["width"] <= lanes["x"] + lanes["width"] + 1
        assert frame.locator(".axis .here").text_content() == step
    map_box = frame.locator(".map").bounding_box()
    frame.locator(".map").click(position={"x": map_box["width"] / 2, "y": 5})
    assert abs(int(clock(frame)) - 100) <= 2


def test_a_waiting_request_answers_why(show_player):
    _, frame = show_player(StepPlayer(small_trace(), start=3))
    frame.get_by_role("button", name="C evicted").click()
    assert "C waits behind B" in frame.locator(".why").inner_text()
    frame.get_by_role("button", name="B evicted").click()
    assert frame.locator(".why").inner_text() == "B waits: nobody is admitted in a step that evicted somebody (C, B)."


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
    boxes = frame.locator(".blocks").evaluate("""map => [...map.querySelectorAll("text")].map(text => {
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
    for words in ("A +\nentered in this step", "6+4\nprompt + at most 4 new tokens", "n p next, previous event"):
        assert words in legend or words.replace("\n", " ") in legend, legend
    title = frame.locator(".lane .name").first.get_attribute("title")
    assert title == "A: 6+4 = a prompt of 6 tokens + at most 4 new tokens"
    assert "bar in a block: how full it is" in frame.locator(".kv .note").inner_text()
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
    """A veil lies over it: opaque, or thin; under an opaque one no tooltip answers."""
    look = "veil => [getComputedStyle(veil).opacity, getComputedStyle(veil).pointerEvents]"
    for future, expected in (("hide", ["1", "auto"]), ("dim", ["0.7", "none"])):
        _, frame = show_player(StepPlayer(small_trace(), future=future, start=2))
        lane = frame.locator(".lane").first
        veil, last = lane.locator(".veil"), lane.locator(".cell").last
        assert veil.evaluate(look) == expected
        box, cell = veil.bounding_box(), last.bounding_box()
        assert box["x"] <= cell["x"] and cell["x"] + cell["width"] <= box["x"] + box["width"] + 1
        first = lane.locator(".cell").nth(2).bounding_box()
        assert first["x"] + first["width"] <= box["x"] + 1  # step 2 itself lies open


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
    page, _ = show_player(StepPlayer(small_trace(), start=3), width, system=theme, alone=True, motion="reduce")
    result = axe_module.Axe().run(page, options={"preload": False})
    found = [(v["id"], [n["html"][:120] for n in v["nodes"]]) for v in result.response["violations"]]
    assert not found


# ---- events, asking, links, large runs, empty and broken pages


def test_events_of_one_kind(show_player):
    page, frame = show_player(StepPlayer(small_trace()))
    kind = frame.get_by_label("Kind of event to jump to")
    assert kind.locator("option").all_inner_texts() == [
        "event", "arrival", "entry", "eviction", "return", "finish", "new reason",
    ]  # fmt: skip
    kind.select_option("eviction")
    frame.get_by_role("button", name="Next event").click()
    assert clock(frame) == "3"
    page.keyboard.press("n")  # no other: the end
    assert clock(frame) == "5"
    kind.select_option("finish")
    frame.get_by_role("button", name="Previous event").click()
    assert clock(frame) == "4"
    page.keyboard.press("p")
    assert clock(frame) == "3"


def test_keys_for_ten_steps_and_speed(show_player):
    page, frame = show_player(StepPlayer(busy_trace(steps=60)))
    frame.locator("h1").click()
    for key, step in (("PageDown", "10"), ("PageDown", "20"), ("PageUp", "10"), ("ArrowRight", "11")):
        page.keyboard.press(key)
        assert clock(frame) == step
    speed = frame.get_by_label("Playing speed")
    page.keyboard.press("+")
    assert speed.input_value() == "2"
    for _ in range(9):
        page.keyboard.press("-")
    assert speed.input_value() == "0.25"


def test_the_question_stays_asked_while_stepping_and_works_by_keyboard(show_player):
    page, frame = show_player(StepPlayer(simulate(*five_requests("full")), start=4))
    chip = frame.get_by_role("button", name="R5")
    chip.focus()
    page.keyboard.press("Enter")
    why = frame.locator(".why")
    assert why.inner_text().startswith(
        "R5 waits behind R4: whoever is behind the head is not even looked at. R4 waits:"
    )
    page.keyboard.press("ArrowRight")
    assert clock(frame) == "5" and why.inner_text().startswith("R5 waits behind R4")
    assert chip.get_attribute("aria-pressed") == "true"
    assert chip.evaluate("chip => document.activeElement === chip")  # drawn anew, the focus is where it was
    page.keyboard.press("Enter")
    assert why.inner_text() == "R4 waits: the token budget is spent: R1 1 + R2 1 + R3 6 = 8 of 8."
    frame.locator(".name").nth(4).click()  # the name at the lane asks, too
    assert why.inner_text().startswith("R5 waits behind R4")


def test_behind_a_head_that_is_passed_over_the_others_are_looked_at(show_player):
    trace = small_trace()
    trace["steps"][3]["blocked_reason"] = "max_loras"
    trace["steps"][3]["waiting"] = ["B", "C"]
    _, frame = show_player(StepPlayer(trace, start=3))
    frame.get_by_role("button", name="C evicted").click()
    said = frame.locator(".why").inner_text()
    assert "C stands behind B, which is passed over, so those behind it are looked at as well" in said
    assert "not even looked at" not in said


def test_an_unknown_reason_is_admitted(show_player):
    trace = small_trace()
    trace["steps"][3]["blocked_reason"] = None
    _, frame = show_player(StepPlayer(trace, start=3))
    frame.get_by_role("button", name="B evicted").click()
    assert frame.locator(".why").inner_text() == (
        "B is the head of the queue; the trace does not say why it stays out."
    )


def test_a_block_that_an_evicted_request_lost_is_marked(show_player):
    _, frame = show_player(StepPlayer(simulate(*five_requests("chunk")), start=9))
    tiles = frame.locator(".blocks > g")
    assert tiles.nth(5).locator(".gone").count() == 1 and frame.locator(".blocks .gone").count() == 1
    assert tiles.nth(5).locator("title").text_content() == (
        "block 6: R3, its block 3; 1 of 16 slots filled; until now R4's, which was evicted"
    )
    frame.get_by_role("button", name="Step forward").click()
    assert frame.locator(".blocks .gone").count() == 0


def test_shared_cached_and_lost_blocks_are_marked(show_player):
    """Step 1: A and B share block 1; 3 is free but cached. Step 2: 3 is taken and what was cached there is lost."""
    steps = [
        record(0, [["A", 4]], running=["A"], blocks={"A": [1]}, cached_blocks=[1, 3], free=3),
        record(1, [["B", 1]], running=["A", "B"], blocks={"A": [1], "B": [1, 2]}, cached_blocks=[1, 3], free=2),
        record(2, [["B", 4]], running=["A", "B"], blocks={"A": [1], "B": [1, 2, 3]}, cached_blocks=[1], free=1),
    ]
    config = {"num_gpu_blocks": 4, "block_size": 4, "enable_prefix_caching": True}
    _, frame = show_player(StepPlayer({"header": {"config": config}, "steps": steps}, start=1))
    tiles = frame.locator(".blocks > g")
    titles = [tile.locator("title").text_content() for tile in tiles.all()]
    assert titles[0].startswith("block 1: A, its block 1; B, its block 1") and "A+1" in tiles.nth(0).text_content()
    assert titles[2] == "block 3: free, still cached: a prefix can hit it" and tiles.nth(2).locator(".tag").count() == 1
    assert tiles.nth(3).locator(".tag").count() == 0
    frame.get_by_role("button", name="Step forward").click()
    assert tiles.nth(2).locator(".tag.lost").count() == 1
    assert tiles.nth(2).locator("title").text_content().endswith("what it had cached is gone")
    note = frame.locator(".kv .note").inner_text()
    for words in ("shared with one more", "corner: cached", "open corner: no longer cached"):
        assert words in note


def test_a_link_in_the_page_leads_to_a_step(show_player):
    """By hash on arrival, by a click on a link, by a second click on the same link."""
    player = StepPlayer(small_trace(), title="Six small steps")
    body = (
        '<p style="height:2000px"><a href="#six-small-steps@step=4">step 4</a> <a href="#elsewhere">no</a></p>'
        f"{player.html()}"
    )
    page, frame = show_player(player, body=body, hash="#six-small-steps@step=3", motion="reduce")
    frame.locator("#clock b:text-is('3')").wait_for()
    page.wait_for_function("scrollY > 500")
    for _ in range(2):
        page.evaluate("scrollTo(0, 0)")
        page.locator("a").first.click()
        frame.locator("#clock b:text-is('4')").wait_for()
        page.wait_for_function("scrollY > 500")
        frame.get_by_role("button", name="First step").click()
    page.evaluate("scrollTo(0, 0)")
    page.locator("a").nth(1).click()
    assert clock(frame) == "0"
    page.evaluate("location.hash = '#six-small-steps@step=99'")  # past the end: the last one
    frame.locator("#clock b:text-is('5')").wait_for()


def test_players_of_one_name_are_told_apart(show_player):
    player = StepPlayer(small_trace(), link="run")
    page, _ = show_player(player, body=player.html() * 2, hash="#run-2@step=2")
    first, second = (page.frame_locator("iframe.step-player").nth(k) for k in (0, 1))
    second.locator("#clock b:text-is('2')").wait_for()
    assert clock(first) == "0"


def test_the_link_is_copied_or_stands_there_to_be_copied(show_player):
    page, frame = show_player(StepPlayer(small_trace(), link="run", start=2))
    clipboard = "Object.defineProperty(navigator, 'clipboard', {configurable: true, value: {writeText: %s}})"
    page.evaluate(clipboard % "text => { window.copied = text; return Promise.resolve(); }")
    frame.get_by_role("button", name="Link to this step").click()
    frame.locator("#copied", has_text="Copied:").wait_for()
    assert page.evaluate("copied") == "http://book.example/page.html#run@step=2"
    page.evaluate(clipboard % "() => Promise.reject(new Error('not allowed'))")
    frame.get_by_role("button", name="Step forward").click()
    page.keyboard.press("l")
    frame.locator("#copied", has_text="Copy this:").wait_for()
    address = frame.get_by_label("Link to this step").and_(frame.locator("input"))
    assert address.input_value() == "http://book.example/page.html#run@step=3"
    assert address.evaluate("box => box.selectionEnd - box.selectionStart === box.value.length")
    frame.get_by_role("button", name="close").click()
    assert not frame.locator("#linkbox").is_visible()


def test_a_page_of_its_own_takes_the_step_from_its_address(show_player):
    for ending in ("#step=4", "#run@step=4"):
        _, frame = show_player(StepPlayer(small_trace(), link="run"), alone=True, hash=ending)
        assert clock(frame) == "4"


@pytest.mark.parametrize("width", [1280, 390])
def test_a_large_run(show_player, width):
    """Lanes are drawn where they are seen, and the block map shows shares."""
    _, frame = show_player(StepPlayer(crowd_trace()), width, motion="reduce")
    assert frame.locator(".lane").count() == 60 and 0 < frame.locator(".lane:has(.cell)").count() < 60
    frame.get_by_role("slider", name="Step").fill("150")
    assert "one square = 8 blocks" in frame.locator(".kv").inner_text()
    busy = frame.locator(".lane").nth(39)
    busy.scroll_into_view_if_needed()
    busy.locator(".cell").first.wait_for(state="attached")
    height = frame.locator(".map canvas").bounding_box()["height"]
    assert height > 60 + 4 * 20  # lanes and four strips
    assert frame.locator(".lanes").evaluate("box => box.scrollWidth <= box.clientWidth")


def test_a_run_without_requests_says_so(show_player):
    _, frame = show_player(StepPlayer({"steps": [record(0, []), record(1, [])]}))
    assert "No request came in during this run." in frame.locator(".lanes").inner_text()
    assert said(frame) == "step 0: nothing to do."


@pytest.mark.parametrize("alone", [True, False])
def test_a_script_that_fails_leaves_the_text(chromium_for_player, alone):
    """Never a blank frame: the picture in characters is shown instead."""
    player = StepPlayer(small_trace())
    whole = (player.document() if alone else player.html()).replace("function readRun", "function readNothing")
    page = chromium_for_player.new_page()
    page.set_content(whole)
    frame = page if alone else page.frame_locator("iframe.step-player")
    fallback = frame.locator("#fallback")
    fallback.wait_for()
    assert "B     .PdXF" in fallback.inner_text() and not frame.locator("#controls").is_visible()
    page.close()


def test_cells_of_every_kind_differ_without_colour(show_player):
    """In one colour, no two kinds of cell look alike."""
    _, frame = show_player(StepPlayer(small_trace()))
    shots = frame.locator("#legend").evaluate("""legend => {
      const kinds = {w: {kind: "w"}, s: {kind: "s"}, p: {kind: "p", n: 6}, c: {kind: "c", n: 6}, d: {kind: "d", n: 1},
                     i: {kind: "i"}, x: {kind: "x"}, o: {kind: "x", out: true}, a: {kind: "a"},
                     r: {kind: "c", n: 6, resumed: true}, f: {kind: "d", n: 1, done: true},
                     b: {kind: "d", n: 1, resumed: true, back: true}};
      return Object.values(kinds).map(cell => {
        const drawn = drawCell({n: 0, ...cell}, 0, 25, 24, "c0");
        return [drawn.classList[1] === "w" || drawn.classList[1] === "s" ? drawn.classList[1] : "",
                ...[...drawn.querySelectorAll("*")].map(part => part.tagName + part.getAttribute("class") +
                (part.getAttribute("d") || ""))].join();
      });
    }""")
    assert len(set(shots)) == len(shots)


@pytest.mark.parametrize("steps", [1, 5, 24, 100])
@pytest.mark.parametrize("title", [None, "A title that is longer than the picture of a few steps is wide " * 2])
def test_no_word_of_the_still_picture_is_cut_however_few_the_steps(chromium_for_player, steps, title):
    trace = simulate([SimRequest("A", 3, steps), SimRequest("long-id", 3, 1)], SchedulerConfig(max_model_len=200))
    page = chromium_for_player.new_page()
    page.set_content(StepPlayer(trace, title=title).svg())
    over = page.evaluate("""() => {
      const svg = document.querySelector("svg"), box = svg.viewBox.baseVal;
      const texts = [...svg.querySelectorAll("text")];
      return texts.filter(text => text.getBBox().x + text.getBBox().width > box.width).map(text => text.textContent);
    }""")
    page.close()
    assert over == []
