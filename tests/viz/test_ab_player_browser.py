"""The A/B player in a real browser: locked sides, the jump to the divergence, phone, time. Knows no scheduling."""

import pytest

axe_module = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe is not installed")

from mini_vllm.sim.driver import simulate  # noqa: E402
from mini_vllm.sim.examples import five_requests  # noqa: E402
from mini_vllm.viz import ABPlayer  # noqa: E402
from tests.viz.player_traces import RECORDINGS, busy_trace, crowd_trace, record, small_trace  # noqa: E402


def rules(**settings) -> ABPlayer:
    chunk, full = (simulate(*five_requests(admission)) for admission in ("chunk", "full"))
    return ABPlayer(chunk, full, ("chunk", "full"), count_from=1, **settings)


def race(**settings) -> ABPlayer:
    """The small run, and the same at half the speed: steps end after 0.5, 0.75 … s and 1, 1.5 … s."""
    slow = small_trace()
    for step in slow["steps"]:
        step["t_start"], step["t_end"] = 2 * step["t_start"], 2 * step["t_end"]
    return ABPlayer(small_trace(), slow, ("fast", "slow"), lock="time", **settings)


def brief(**settings) -> ABPlayer:
    return race(brief=True, **settings)


def story(frame) -> list[str]:
    return frame.locator("#story .say").all_inner_texts()


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_both_sides_move_together_and_the_divergence_is_a_jump_away(show_player, width, theme):
    page, frame = show_player(rules(), width, theme)
    assert story(frame) == [
        "step 1, both: R1, R2, R3, R4, R5 arrive; R1 enters, prefills 8 of 16.",
    ]
    assert "First divergence: step 31, scheduled" in frame.locator("#verdict").inner_text()
    frame.get_by_role("button", name="jump to the first divergence").click()
    assert frame.locator(".axis .here").all_text_contents() == ["31", "31"]
    assert story(frame) == [
        "chunk, step 31: R5 resumes, recomputes 6 of 17; R1, R4 decode.",
        "full, step 31: R1, R4 decode.",
    ]
    page.keyboard.press("ArrowLeft")
    assert story(frame) == ["step 30, both: R5 evicted: it needs a second block, 0 free; R1, R4 decode."]
    page.keyboard.press("d")
    page.keyboard.press("ArrowRight")
    assert frame.locator(".axis .here").all_text_contents() == ["32", "32"]
    sides = [side.bounding_box() for side in frame.locator(".side .lanes").all()]
    assert (sides[0]["y"] == sides[1]["y"]) == (width == 1280)  # beside each other, or stacked
    assert all(side["x"] >= 0 and side["x"] + side["width"] <= width for side in sides)
    flag, needle = frame.locator(".flag").bounding_box(), frame.locator(".needle").first.bounding_box()
    assert 0 < needle["x"] - flag["x"] < width / 83 + 3  # one step after it


def test_each_side_answers_why(show_player):
    _, frame = show_player(rules(start=30))
    full = frame.locator(".side").nth(1)
    full.get_by_role("button", name="R5").click()
    assert frame.locator(".why").nth(1).inner_text() == (
        "R5 waits: all its 17 known tokens must fit: ⌈17 / 16⌉ = 2 blocks, 1 free."
    )
    assert frame.locator(".why").nth(0).inner_text() == ""


def test_a_recorded_run_beside_ours(show_player):
    ours = simulate(*five_requests("full"))
    page, frame = show_player(ABPlayer(ours, RECORDINGS / "98_worked_example_full.json", ("ours", "vLLM 0.33.0")))
    assert frame.locator("#verdict b").inner_text() == "No divergence in 83 steps"
    assert frame.get_by_role("button", name="jump to").count() == 0 and frame.locator(".flag").count() == 0
    frame.locator("h1").click()
    page.keyboard.press("End")
    assert frame.locator("#clock b").inner_text() == "82"
    assert frame.locator(".side .whose").all_inner_texts() == ["ours", "vLLM 0.33.0"]


def test_a_run_that_ends_early_stays_at_its_end(show_player):
    shorter = small_trace()
    del shorter["steps"][4:]
    page, frame = show_player(ABPlayer(small_trace(), shorter, ("long", "short")))
    frame.locator("h1").click()
    page.keyboard.press("End")
    assert frame.locator(".place").all_inner_texts() == ["", "done after 4 steps"]
    assert story(frame)[1] == "short, step 5: done."


def test_on_a_phone_queues_and_blocks_are_folded_away_in_both(show_player):
    _, frame = show_player(rules(start=9), 390)
    folded = frame.locator("details")
    assert folded.evaluate_all("all => all.map(one => one.open)") == [False, False]
    folded.first.locator("summary").click()
    frame.locator("details[open]").nth(1).wait_for()
    assert frame.locator(".side").nth(1).get_by_role("meter", name="KV blocks").is_visible()
    _, frame = show_player(rules(panels=False), 1280)
    assert frame.locator("details[open]").count() == 0


def test_locked_by_time_each_side_shows_what_had_happened_by_then(show_player):
    _, frame = show_player(race())
    places, texts = frame.locator(".place"), frame.locator(".lane .text")
    assert frame.locator("#clock").inner_text() == "0.50 of 4.00 s"
    assert places.all_inner_texts() == ["1 of 6 steps done", "0 of 6 steps done"]
    assert "One" in texts.first.inner_text() and "One" not in texts.nth(3).inner_text()
    frame.get_by_role("slider").fill("1.2")
    assert frame.locator("#clock b").inner_text() == "1.00"
    assert places.all_inner_texts() == ["3 of 6 steps done", "1 of 6 steps done"]
    frame.get_by_role("button", name="Last step").click()
    assert places.all_inner_texts() == ["done after 2.00 s, 6 steps", "done after 4.00 s, 6 steps"]
    assert texts.first.inner_text() == texts.nth(3).inner_text()


def test_a_race_takes_its_time(show_player):
    _, frame = show_player(race())
    frame.get_by_label("Playing speed").select_option("2×")
    frame.get_by_role("button", name="Play").click()
    assert frame.locator("#clock b").inner_text() != "4.00"
    frame.locator("#clock b", has_text="4.00").wait_for(timeout=8000)
    frame.get_by_role("button", name="Play").wait_for()


@pytest.mark.parametrize("width", [688, 390])
def test_in_brief_both_texts_grow_in_one_glance(show_player, width):
    page, frame = show_player(brief(), width)
    places, texts = frame.locator(".place"), frame.locator(".lane .text")
    page.wait_for_function("document.querySelector('iframe').getBoundingClientRect().height < 600")
    left, right = (side.bounding_box() for side in frame.locator(".side .lanes").all())
    assert (left["y"] == right["y"] and left["x"] + left["width"] < right["x"]) == (width == 688)
    assert frame.locator("h1").count() == 1 and not frame.locator(".lane > svg").first.is_visible()
    before = texts.first.inner_text()
    frame.get_by_role("button", name="Last step").click()
    assert len(texts.first.inner_text()) > len(before) and texts.first.inner_text() == texts.nth(3).inner_text()
    assert places.all_inner_texts() == ["done after 2.00 s, 6 steps", "done after 4.00 s, 6 steps"]
    assert frame.locator(".lane").first.evaluate("row => row.scrollWidth <= row.clientWidth")


def test_another_width_of_the_window_breaks_nothing(show_player):
    """A browser may report the new layout as an error of the observer; it is none of the script's."""
    page, frame = show_player(rules())
    for width in (900, 390, 1100):
        page.set_viewport_size({"width": width, "height": 900})
        page.wait_for_timeout(150)
    frame.locator("html").evaluate(
        "dispatchEvent(new ErrorEvent('error', {message: 'ResizeObserver loop limit exceeded'}))"
    )
    assert frame.locator("html").get_attribute("class") == ""
    assert not frame.locator("#fallback").is_visible() and frame.locator("#controls").is_visible()


def test_a_link_leads_to_a_second(show_player):
    player = race(link="race")
    _, frame = show_player(player, body=player.html(), hash="#race@s=1.6")
    frame.locator("#clock b:text-is('1.50')").wait_for()


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("player", [rules, race, brief])
def test_no_accessibility_violation(show_player, width, theme, player):
    page, _ = show_player(player(start=3), width, system=theme, alone=True, motion="reduce")
    result = axe_module.Axe().run(page, options={"preload": False})
    found = [(v["id"], [n["html"][:120] for n in v["nodes"]]) for v in result.response["violations"]]
    assert not found


CUT = busy_trace(30) | {"steps": busy_trace(30)["steps"][:20]}
BARE = {"steps": [record(i, [["a", 1]]) for i in range(3)]}
LATE = {"steps": [record(i, [["a", 1], ["b", 2]]) for i in range(1, 5)]}


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize(
    ("a", "b"),
    [(BARE, LATE), (crowd_trace(), crowd_trace()), (busy_trace(30), CUT)],
    ids=["no header, other steps", "many lanes, large pool", "one ends early"],
)
def test_odd_pairs_open_without_an_error(show_player, width, a, b):
    page, frame = show_player(ABPlayer(a, b, ("</script><b>x", "two")), width)
    assert frame.locator(".side .whose").first.inner_text() == "</script><b>x"
    frame.locator("h1").click()
    for key in ("ArrowRight", "n", "End", "PageUp", "d", "Home"):
        page.keyboard.press(key)
    assert frame.locator("#clock b").inner_text() == "0"
    assert frame.locator(".lanes").first.evaluate("box => box.scrollWidth <= box.clientWidth")
