"""`make serve-book`: a port that cannot be had is one line with a way out, before anything is built."""

import socket
import threading
import urllib.request

import pytest

from tools import serve_book


@pytest.fixture(autouse=True)
def no_build(monkeypatch):
    monkeypatch.setattr(serve_book.build_book, "main", lambda: pytest.fail("the book was built first"))


@pytest.fixture
def taken():
    with socket.socket() as other:
        other.bind((serve_book.HOST, 0))
        other.listen()
        yield other.getsockname()[1]


def test_a_taken_port_names_a_free_one(taken, capsys):
    assert serve_book.main(str(taken)) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"port {taken} is taken: make serve-book PORT=") and said.count("\n") == 1
    free = int(said.rpartition("=")[2])
    serve_book.open_server(free).server_close()


@pytest.mark.parametrize("text", ["abc", "", "0", "-1", "65536", "8000.0"])
def test_what_is_no_port_is_refused(text, capsys):
    assert serve_book.main(text) == 2
    assert f"PORT={text} is no port" in capsys.readouterr().err


def test_a_port_that_the_system_keeps_is_said(monkeypatch, capsys):
    def refuse(port):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(serve_book, "open_server", refuse)
    assert serve_book.main("80") == 2
    assert capsys.readouterr().err == "port 80 cannot be had (Permission denied): make serve-book PORT=8000\n"


def test_it_serves_the_built_book_and_nothing_where_the_build_fails(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(serve_book.build_book, "main", lambda: 1)
    with socket.socket() as probe:
        probe.bind((serve_book.HOST, 0))
        port = probe.getsockname()[1]
    assert serve_book.main(str(port)) == 1
    (tmp_path / "index.html").write_text("the book")
    monkeypatch.setattr(serve_book, "FOLDER", tmp_path)
    with serve_book.open_server(port) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        with urllib.request.urlopen(f"http://{serve_book.HOST}:{port}/index.html", timeout=10) as page:
            assert page.read() == b"the book"
        server.shutdown()
        thread.join()
    assert capsys.readouterr().err == ""
