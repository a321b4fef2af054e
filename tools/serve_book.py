"""Builds the book and serves it on this machine. Knows the port and the folder; nothing of what pages say.

The port is taken before the build, which lasts a minute: a port in use is no surprise at the end.
"""

import errno
import sys
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

import build_book

HOST, FOLDER = "127.0.0.1", build_book.ROOT / "_build" / "html"


class QuietHandler(SimpleHTTPRequestHandler):
    """No line for each picture of each page."""

    def log_message(self, *_args):
        pass


def open_server(port: int) -> ThreadingHTTPServer:
    """A server that holds the port and does not answer yet; OSError if it cannot have it."""
    return ThreadingHTTPServer((HOST, port), partial(QuietHandler, directory=str(FOLDER)))


def next_free_port(port: int) -> int | None:
    """The first free one of the twenty above `port`."""
    for other in range(port + 1, min(port + 21, 65536)):
        try:
            open_server(other).server_close()
        except OSError:
            continue
        return other
    return None


def why_not(text: str, error: OSError | None) -> str:
    """One line: what is wrong with this port, and the way out."""
    if error is None:
        return f"PORT={text} is no port: give a number from 1024 to 65535, e.g. make serve-book PORT=8000"
    other = next_free_port(max(int(text), 1024)) or 8000
    what = "is taken" if error.errno == errno.EADDRINUSE else f"cannot be had ({error.strerror})"
    return f"port {text} {what}: make serve-book PORT={other}"


def main(text: str) -> int:
    if not (text.isascii() and text.isdigit() and 0 < int(text) < 65536):
        print(why_not(text, None), file=sys.stderr)
        return 2
    try:
        server = open_server(int(text))
    except OSError as error:
        print(why_not(text, error), file=sys.stderr)
        return 2
    with server:
        if code := build_book.main():
            return code
        print(f"the book is at http://{HOST}:{text}/ (Ctrl-C ends it)", flush=True)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            print()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1] if len(sys.argv) > 1 else "8000"))
