"""A strict browser for the players: an error, or a request to anywhere, fails the test. Knows no player."""

import os
import shutil

import pytest

ADDRESS = "http://book.example/page.html"


def find_chromium() -> str | None:
    """Path of a Chromium: $MINI_VLLM_CHROMIUM first, then the usual names."""
    names = (os.environ.get("MINI_VLLM_CHROMIUM"), "chromium", "google-chrome", "chromium-browser")
    return next((path for name in names if name and (path := shutil.which(name))), None)


@pytest.fixture(scope="module")  # while it lives, an event loop runs in this thread, which other modules cannot bear
def chromium_for_player():
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    path = find_chromium()
    if path is None:
        pytest.skip("Chromium is not installed")
    with sync_api.sync_playwright() as playwright:
        arguments = ["--no-sandbox", "--disable-dev-shm-usage"]
        browser = playwright.chromium.launch(executable_path=path, args=arguments)
        yield browser
        browser.close()


@pytest.fixture
def show_player(chromium_for_player):
    """show(player, width, theme) opens a page with the player in it and returns (page, frame).

    alone: the player's own page. body: the page's body instead. hash: what the address ends with.
    Afterwards: nothing was asked from anywhere, no console error, no exception in the page.
    """
    contexts, problems = [], []

    def show(
        player, width=1280, theme="light", system="light", motion="no-preference", alone=False, body=None, hash=""
    ):
        body = player.html() if body is None and not alone else body
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
        page.goto(ADDRESS + hash)
        return page, (page if alone else page.frame_locator("iframe.step-player").first)

    yield show
    for context in contexts:
        context.close()
    assert not problems
