"""Package indexes: passwords, redirects, and servers that talk nonsense. Chapter 14."""

import base64
from urllib.parse import urlsplit

import pytest

from mini_vllm.errors import DownloadError
from mini_vllm.loaders import package_index
from mini_vllm.loaders.download import download
from mini_vllm.loaders.fetch import fetch
from mini_vllm.loaders.progress import Silent


def test_pip_settings_are_honoured(tiny, index, tmp_path, monkeypatch):
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    with pytest.raises(DownloadError, match="PIP_NO_INDEX"):
        fetch("tiny", cache_dir=tmp_path, progress=False)
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.setenv("PIP_INDEX_URL", index.url.replace("//", "//me:p%40ss@"))
    fetch("tiny", cache_dir=tmp_path, progress=False)
    assert base64.b64decode(index.authorization[0].removeprefix("Basic ")) == b"me:p@ss"
    monkeypatch.delenv("PIP_INDEX_URL")
    monkeypatch.setattr(package_index, "_pip_setting", lambda key: None)
    assert package_index.index_url() == "https://pypi.org/simple"
    monkeypatch.setenv("PIP_INDEX_URL", "file:///somewhere/simple")
    with pytest.raises(DownloadError, match="only http and https"):
        fetch("tiny", cache_dir=tmp_path / "other", progress=False)


@pytest.mark.parametrize("html", [False, True])
def test_an_index_behind_a_password(tiny, index, tmp_path, monkeypatch, html):
    index.password, index.html = "p@ss/word", html
    monkeypatch.setenv("PIP_INDEX_URL", index.url.replace("//", "//me:p%40ss%2Fword@"))
    assert fetch("tiny", cache_dir=tmp_path, progress=False).read_bytes() == index.content
    assert len(index.authorization) == 2 and None not in index.authorization
    monkeypatch.setenv("PIP_INDEX_URL", index.url.replace("//", "//me:wr0ng@"))
    with pytest.raises(DownloadError, match="401") as caught:
        fetch("tiny", cache_dir=tmp_path / "other", progress=False)
    assert "wr0ng" not in str(caught.value)


def test_a_redirect_takes_the_password_along_on_one_server_only(tiny, index, tmp_path, monkeypatch):
    monkeypatch.setenv("PIP_INDEX_URL", index.url.replace("//", "//me:secret@"))
    index.redirect_to = "/moved/tiny/"
    fetch("tiny", cache_dir=tmp_path / "one", progress=False)
    assert len(index.authorization) == 3 and len(set(index.authorization)) == 1  # page, page moved, file
    index.authorization.clear()
    other_host = index.url.replace("127.0.0.1", "localhost").removesuffix("/simple")
    index.redirect_to = f"{other_host}/moved/tiny/"
    fetch("tiny", cache_dir=tmp_path / "two", progress=False)
    assert index.authorization[0] and index.authorization[1:] == [None, None]


def test_which_servers_are_one():
    def same(here, there):
        return package_index._same_server(urlsplit(here), urlsplit(there))

    assert same("https://a/x", "https://A:443/y") and same("http://a", "https://a")
    for there in ("https://b", "https://a.b", "https://a:8443", "http://a"):
        assert not same("https://a", there)
    assert not same("http://a:8080", "https://a")


@pytest.mark.parametrize(
    ("garbage", "message"),
    [
        (b"SSH-2.0-OpenSSH\r\n", "BadStatusLine"),
        (b"HTTP/1.0 200 OK\r\nContent-Length: 999\r\n\r\nshort", "IncompleteRead"),
        (b"HTTP/1.0 302 Found\r\nLocation: http://[::1/x\r\n\r\n", "ValueError"),
        (b"HTTP/1.0 302 Found\r\nLocation: http://127.0.0.1:port/x\r\n\r\n", "ValueError"),
        (b'HTTP/1.0 200 OK\r\nContent-Type: a/json\r\n\r\n{"files": [{"url": 5}]}', "lists 1 files"),
    ],
)
def test_a_server_that_does_not_speak_http(tiny, index, tmp_path, garbage, message):
    index.garbage = garbage
    with pytest.raises(DownloadError, match=message) as caught:
        fetch("tiny", cache_dir=tmp_path, progress=False)
    assert "Ways out" in str(caught.value)


@pytest.mark.parametrize(
    "address",
    ["http://me:secret@[::1/simple", "http://me:se/cret@host/simple", "http://me:secret@host/a b", "http://host:x/"],
)
def test_an_index_that_is_no_address(tiny, tmp_path, monkeypatch, address):
    monkeypatch.setenv("PIP_INDEX_URL", address)
    with pytest.raises(DownloadError, match="Ways out") as caught:
        fetch("tiny", cache_dir=tmp_path, progress=False)
    assert "cret" not in str(caught.value)


def test_a_file_address_that_never_works_is_tried_once(index, tmp_path):
    index.garbage = b"HTTP/1.0 302 Found\r\nLocation: http://[::1/x\r\n\r\n"
    with pytest.raises(DownloadError, match="ValueError"):
        download(index.url, tmp_path / "file", size=5, sha256="", progress=Silent(), pause_s=0)
    assert len(index.authorization) == 1


def test_address_without_password():
    for shown in ("https://host:8/a//b@c/x", "host", "http://[::1"):
        assert package_index.without_password(shown) == shown
    assert package_index.without_password("https://me:a@b@host:8/x@y") == "https://host:8/x@y"
