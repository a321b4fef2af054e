"""Finds a file's address in a Python package index. Knows PEP 503 and PEP 691; knows no model. Chapter 14."""

import base64
import json
import os
import re
import ssl
import subprocess
import sys
import urllib.request
from html.parser import HTMLParser
from urllib.parse import SplitResult, unquote, urldefrag, urljoin, urlsplit

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

    User and password of `index` are in it where the file lies on the same server, and only there.
    Raises DownloadError when the page does not list it; OSError, HTTPException or ValueError when the index
    cannot be reached or does not speak HTTP.
    """
    page = f"{index.rstrip('/')}/{project}/"
    # Ask for JSON first; an index that only has HTML (PEP 503) ignores the wish and sends that.
    with open_url(page, headers={"Accept": f"{_JSON}, text/html;q=0.1"}, timeout_s=timeout_s) as reply:
        body = reply.read()
        base = reply.geturl()
        is_json = "json" in reply.headers.get("Content-Type", "")
    try:
        addresses = [str(file["url"]) for file in json.loads(body)["files"]] if is_json else _links(body)
    except (ValueError, KeyError, TypeError) as error:
        raise DownloadError(f"{without_password(page)} sent a page that cannot be read: {error!r}") from error
    for address in addresses:
        plain = urldefrag(address).url
        if unquote(urlsplit(plain).path).rsplit("/", 1)[-1] == filename:
            return _with_user_of(page, urljoin(base, plain))
    raise DownloadError(f"{without_password(page)} lists {len(addresses)} files, but not {filename}")


def open_url(url: str, *, headers: dict[str, str], timeout_s: float):
    """`urlopen`, with user and password of an address in a header that goes to no other server.

    urllib does neither. Raises DownloadError for an address that cannot be one, else what `urlopen` raises.
    """
    try:
        parts = urlsplit(url)
        _ = parts.port  # checked only when it is read
    except ValueError:  # its text may quote the password, and so may all that stands before an "@"
        shown = url.rsplit("@", 1)[-1]
        raise DownloadError(f"{shown} is not a possible address (is PIP_INDEX_URL right?)") from None
    if parts.scheme not in ("http", "https"):
        shown = without_password(url)
        raise DownloadError(f"{shown}: only http and https addresses are read here (is PIP_INDEX_URL right?)")
    headers = {"Accept-Encoding": "identity", "User-Agent": "mini-vllm", **headers}
    if parts.username or parts.password:
        pair = f"{unquote(parts.username or '')}:{unquote(parts.password or '')}"
        headers["Authorization"] = "Basic " + base64.b64encode(pair.encode()).decode()
    request = urllib.request.Request(without_password(url), headers=headers)
    https = urllib.request.HTTPSHandler(context=_ssl_context())  # also for http, which may redirect to https
    return urllib.request.build_opener(_Redirects, https).open(request, timeout=timeout_s)


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Follows redirects as urllib does, but takes the password along only within one server."""

    def redirect_request(self, req, fp, code, msg, headers, newurl):
        request = super().redirect_request(req, fp, code, msg, headers, newurl)
        if request is not None and not _same_server(urlsplit(req.full_url), urlsplit(newurl)):
            request.remove_header("Authorization")
        return request


def _same_server(here: SplitResult, there: SplitResult) -> bool:
    """Whether what `here` may know, `there` may know too: the same host and port, or the same host's https."""
    ports = {"http": 80, "https": 443}
    ours, theirs = ((url.scheme, url.port or ports.get(url.scheme)) for url in (here, there))
    return here.hostname == there.hostname and (ours == theirs or (ours, theirs) == (("http", 80), ("https", 443)))


def _with_user_of(index: str, url: str) -> str:
    """`url` with user and password of `index`, if it lies on the same server and brings none of its own."""
    ours, theirs = urlsplit(index), urlsplit(url)
    if "@" not in ours.netloc or "@" in theirs.netloc or not _same_server(ours, theirs):
        return url
    return theirs._replace(netloc=f"{ours.netloc.rsplit('@', 1)[0]}@{theirs.netloc}").geturl()


def without_password(url: str) -> str:
    """The address without user and password, as it may be requested and shown in a message."""
    return re.sub(r"^(\s*\w+://)[^/?#]*@", r"\1", url)


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
