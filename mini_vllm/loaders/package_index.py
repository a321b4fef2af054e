"""Finds a file's address in a Python package index. Knows PEP 503 and PEP 691; knows no model. Chapter 14."""

import base64
import json
import os
import ssl
import subprocess
import sys
import urllib.request
from html.parser import HTMLParser
from urllib.parse import unquote, urldefrag, urljoin, urlsplit, urlunsplit

from mini_vllm.errors import DownloadError

PYPI = "https://pypi.org/simple"
_JSON = "application/vnd.pypi.simple.v1+json"


def index_url() -> str:
    """The index that pip would ask: `$PIP_INDEX_URL`, else pip's configuration, else pypi.org.

    Raises DownloadError where pip is told to use no index at all (`$PIP_NO_INDEX`).
    """
    if os.environ.get("PIP_NO_INDEX", "").lower() in ("1", "true", "yes", "on"):
        raise DownloadError(f"PIP_NO_INDEX={os.environ['PIP_NO_INDEX']}: pip is told to ask no package index")
    return os.environ.get("PIP_INDEX_URL") or _pip_setting("global.index-url") or PYPI


def _pip_setting(key: str) -> str | None:
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "config", "get", key]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return answer.stdout.strip() or None if answer.returncode == 0 else None


def find_file(index: str, project: str, filename: str, *, timeout_s: float = 30) -> str:
    """Address of `filename` on the project's page of `index`.

    Raises DownloadError when the page does not list it, OSError when the index cannot be reached.
    """
    page = f"{index.rstrip('/')}/{project}/"
    # Ask for JSON first; an index that only has HTML (PEP 503) ignores the wish and sends that.
    with open_url(page, headers={"Accept": f"{_JSON}, text/html;q=0.1"}, timeout_s=timeout_s) as reply:
        body = reply.read()
        base = reply.geturl()
        is_json = "json" in reply.headers.get("Content-Type", "")
    try:
        addresses = [file["url"] for file in json.loads(body)["files"]] if is_json else _links(body)
    except (ValueError, KeyError, TypeError) as error:
        raise DownloadError(f"{without_password(page)} sent a page that cannot be read: {error!r}") from error
    for address in addresses:
        plain = urldefrag(address).url
        if unquote(urlsplit(plain).path).rsplit("/", 1)[-1] == filename:
            return urljoin(base, plain)
    raise DownloadError(f"{without_password(page)} lists {len(addresses)} files, but not {filename}")


def open_url(url: str, *, headers: dict[str, str], timeout_s: float):
    """`urlopen`, with user and password of an address moved into a header: urllib does not do that itself."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https"):
        shown = without_password(url)
        raise DownloadError(f"{shown}: only http and https addresses are read here (is PIP_INDEX_URL right?)")
    headers = {"Accept-Encoding": "identity", "User-Agent": "mini-vllm", **headers}
    if parts.username:
        pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        headers["Authorization"] = "Basic " + base64.b64encode(pair.encode()).decode()
    request = urllib.request.Request(_without_user(url), headers=headers)
    context = _ssl_context() if parts.scheme == "https" else None
    return urllib.request.urlopen(request, timeout=timeout_s, context=context)


def without_password(url: str) -> str:
    """The address as it may be shown in a message."""
    return _without_user(url)


def _without_user(url: str) -> str:
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=parts.netloc.rsplit("@", 1)[-1]))


def _ssl_context() -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=os.environ.get("PIP_CERT") or None)
    try:  # Python from python.org on macOS has no certificates of its own
        import certifi

        context.load_verify_locations(certifi.where())
    except ImportError:
        pass
    return context


class _LinkCollector(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.links += [value for name, value in attrs if tag == "a" and name == "href" and value]


def _links(body: bytes) -> list[str]:
    collector = _LinkCollector()
    collector.feed(body.decode("utf-8", errors="replace"))
    return collector.links
