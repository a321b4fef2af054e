"""A strict browser for the built book: an error, or a load from elsewhere, is a finding. Knows no page."""

import functools
import os
import shutil
import sys
import threading
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
SOURCES = ("book", "notebooks", "exercises", "_config.yml", "_toc.yml")
CHROMIUM = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def newest_source() -> float:
    files = [file for source in SOURCES for file in [ROOT / source, *(ROOT / source).rglob("*")]]
    return max(f.stat().st_mtime for f in files if f.is_file() and "__pycache__" not in f.parts)


@pytest.fixture(scope="session")
def html(tmp_path_factory) -> Path:
    """The built book: _build/html if it is newer than every source, else a strict build of its own."""
    built = ROOT / "_build" / "html"
    index = built / "book" / "intro.html"
    if index.exists() and index.stat().st_mtime >= newest_source():
        return built
    from tools.build_book import build

    output = tmp_path_factory.mktemp("book")
    assert build(output=output) == 0, "the strict build failed"
    return output / "_build" / "html"


class QuietHandler(SimpleHTTPRequestHandler):
    def log_message(self, *_) -> None:
        pass


@pytest.fixture(scope="session")
def base_url(html) -> Iterator[str]:
    handler = functools.partial(QuietHandler, directory=str(html))
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()


@pytest.fixture(scope="session")
def browser():
    path = os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, CHROMIUM)), None)
    if not path:
        pytest.skip("no Chromium on this machine: install it, or name one in CHROMIUM")
    sync_api = pytest.importorskip("playwright.sync_api")
    with sync_api.sync_playwright() as playwright:
        arguments = ["--disable-dev-shm-usage"]
        if sys.platform == "linux" and os.geteuid() == 0:
            arguments.append("--no-sandbox")
        chromium = playwright.chromium.launch(executable_path=path, args=arguments)
        yield chromium
        chromium.close()


@pytest.fixture
def open_page(browser, base_url):
    """open_page(address, width, scheme) -> page; at the end of the test no finding may be left."""
    findings: list[str] = []
    contexts = []

    def guard(route, request) -> None:
        if request.url.startswith((base_url, "data:", "blob:", "about:")):
            route.continue_()
        else:
            findings.append(f"external request: {request.url}")
            route.abort()

    def open_(address: str, width: int = 1280, scheme: str = "light"):
        viewport = {"width": width, "height": 900}
        # Reduced motion: axe would otherwise measure the contrast of letters that are just fading in.
        context = browser.new_context(viewport=viewport, color_scheme=scheme, reduced_motion="reduce")
        contexts.append(context)
        context.set_default_timeout(10_000)
        context.route("**/*", guard)
        page = context.new_page()
        page.on("console", lambda message: message.type == "error" and findings.append(message.text))
        page.on("pageerror", lambda error: findings.append(f"page error: {error}"))
        page.on("response", lambda r: r.status >= 400 and findings.append(f"{r.status}: {r.url}"))
        page.goto(f"{base_url}/{address}", wait_until="load")
        page.wait_for_load_state("networkidle")
        page.evaluate("window.MathJax?.startup?.promise")
        return page

    yield open_
    for context in contexts:
        context.close()
    assert not findings, "\n".join(findings)
