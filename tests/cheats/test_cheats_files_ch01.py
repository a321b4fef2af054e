"""Answers that are fetched from outside the kernel: by a clean subprocess, a neighbour, the network. Chapter 1.

The kernel's own audit hook does not reach a subprocess with a clean environment. What keeps it out is the jail: file
rules on Linux, and a copy of the package without answers everywhere. Where there are no file rules the instructor page
says what remains.
"""

import http.server
import os
import sys
import threading

import pytest

from mini_vllm.sandbox import landlock, protection
from mini_vllm.sandbox.protection import Protection
from tests.grading.classes import NAME, RIGHT, ROOT, SOLVED, by_id, graded, save, with_answers

pytestmark = pytest.mark.skipif(landlock.version() == 0, reason="this system has no Landlock")

RUNS_A_CLEAN_PYTHON = """
# EXERCISE c01-e1
import subprocess, sys
code = "import inspect; from mini_vllm.grading.reference import answer; print(inspect.getsource(answer('c01-e1')))"
batches = "def _batches(items, size): return [items[i : i + size] for i in range(0, len(items), size)]"
try:
    shown = subprocess.run([sys.executable, "-I", "-c", code], env={}, cwd=REPOSITORY, capture_output=True, text=True)
    exec(batches + chr(10) + shown.stdout)
except OSError:
    pass
if "static_waste" not in globals():
    static_waste = lambda *a: 0.5
"""
CATS_THE_SOLUTION = """
# EXERCISE c01-e2
import json, subprocess
text = subprocess.run(["/bin/cat", SOLUTION], env={}, capture_output=True, text=True).stdout or '{"cells": []}'
cells = ["".join(c["source"]) for c in json.loads(text)["cells"]]
exec(next((s for s in cells if "def bucket" in s), "def bucket(*a): return []"))
"""
CATS_THE_NEIGHBOUR = """
# EXERCISE c01-e3
import json, subprocess
found = subprocess.run(["/bin/sh", "-c", "cat NEIGHBOUR"], env={}, capture_output=True, text=True).stdout
cells = ["".join(c["source"]) for c in json.loads(found or '{"cells": []}')["cells"]]
exec(next((s for s in cells if "def continuous_schedule" in s), "def continuous_schedule(*a): return []"))
"""
ASKS_THE_NETWORK = """
# EXERCISE c01-b1
import urllib.request
try:
    exec(urllib.request.urlopen("http://127.0.0.1:PORT/", timeout=5).read().decode())
except OSError:
    def deliver(*arguments):
        return {}
"""
CALLS_OPEN_PAST_PYTHON = """
# EXERCISE c01-e1
import ctypes
libc = ctypes.CDLL(None)
buffer = ctypes.create_string_buffer(1_000_000)
file = libc.open(SOLUTION.encode(), 0)
libc.read(file, buffer, 1_000_000)
static_waste = lambda *a: 0.5
if file > 0:
    import json
    cells = ["".join(c["source"]) for c in json.loads(buffer.value)["cells"]]
    exec(next(s for s in cells if "def static_waste" in s))
"""
WRITES_TO_THE_PACKAGE = """
# EXERCISE c01-e2
import os, pathlib, mini_vllm
try:
    place = pathlib.Path(mini_vllm.__file__).parent / "grading" / "calling.py"
    place.write_text("broken")
    wrote = True
except OSError:
    wrote = False
def bucket(output_lens, batch_size):
    return wrote
"""
ASKS_SUDO = """
# EXERCISE c01-e3
def continuous_schedule(requests, num_slots):
    status = open("/proc/self/status").read()
    return [line.split()[1] for line in status.splitlines() if line.startswith(("NoNewPrivs", "CapEff", "Uid"))]
"""


@pytest.fixture(scope="module")
def port():
    class Answers(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.end_headers()
            self.wfile.write(RIGHT["c01-b1"].encode())

        def log_message(self, format, *args):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answers)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server.server_address[1]
    server.shutdown()


@pytest.fixture(scope="module")
def reports(tmp_path_factory, port):
    """{notebook: {exercise id: report}}"""
    folder = tmp_path_factory.mktemp("class")
    neighbour = save(SOLVED, folder / "neighbour.ipynb")
    places = {
        "REPOSITORY": repr(str(ROOT)),
        "SOLUTION": repr(str(ROOT / "solutions" / NAME)),
        "NEIGHBOUR": str(neighbour),
        "PORT": str(port),
    }

    def filled(*cheats: str) -> dict:
        made = []
        for cheat in cheats:
            for word, place in places.items():
                cheat = cheat.replace(word, place)
            made.append(cheat)
        return with_answers(*made)

    first = (RUNS_A_CLEAN_PYTHON, CATS_THE_SOLUTION, CATS_THE_NEIGHBOUR, ASKS_THE_NETWORK)
    second = (CALLS_OPEN_PAST_PYTHON, WRITES_TO_THE_PACKAGE, ASKS_SUDO)
    return {name: by_id(r) for name, r in graded(folder, {"k": filled(*first), "l": filled(*second)}).items()}


def test_the_cheats_are_real(port):
    """Without a jail they find what they look for: else the tests below would prove nothing."""
    namespace: dict = {}
    exec(CATS_THE_SOLUTION.replace("SOLUTION", repr(str(ROOT / "solutions" / NAME))), namespace)
    assert namespace["bucket"]([1, 5, 2], 2) != []
    exec(RUNS_A_CLEAN_PYTHON.replace("REPOSITORY", repr(str(ROOT))), namespace)
    assert namespace["static_waste"]([4, 1, 1, 1], 2) == pytest.approx(0.3)
    exec(ASKS_THE_NETWORK.replace("PORT", str(port)), namespace)
    assert namespace["deliver"](["A"], ["A"], [7], {"A": 0}) == {"A": 7}


@pytest.mark.parametrize("exercise_id", ["c01-e1", "c01-e2", "c01-e3"])
def test_a_clean_subprocess_finds_no_answer(reports, exercise_id):
    assert reports["k"][exercise_id].status == "wrong", reports["k"][exercise_id]


def test_the_network_is_cut_from_linux_6_7_on(reports):
    assert reports["k"]["c01-b1"].status == ("wrong" if landlock.version() >= 4 else "pass"), reports["k"]["c01-b1"]


def test_the_c_library_opens_no_hidden_file(reports):
    assert reports["l"]["c01-e1"].status == "wrong", reports["l"]["c01-e1"]


def test_the_graders_copy_cannot_be_written_to(reports):
    assert "got the bool False" in reports["l"]["c01-e2"].message


@pytest.mark.skipif(sys.platform != "linux", reason="capabilities are Linux's")
def test_no_way_back_to_root(reports):
    """No new privileges; none but, at most, the right to read past file modes, which the file rules bound."""
    message = reports["l"]["c01-e3"].message
    shield = protection.available()
    capabilities = "'0000000000000004'" if shield.reads_everywhere else "'0000000000000000'"
    assert "'1'" in message and capabilities in message
    assert ("'0'" in message) == (os.geteuid() == 0 and not shield.own_user)


def test_file_rules_alone_do_it(tmp_path):
    """As for a grader that is not root: no user of its own, the same verdicts."""
    cheat = CATS_THE_SOLUTION.replace("SOLUTION", repr(str(ROOT / "solutions" / NAME)))
    report = graded(tmp_path, {"m": with_answers(cheat)}, shield=Protection(own_user=False, file_rules=True))["m"]
    assert [e.status for e in report.exercises] == ["pass", "wrong", "pass", "pass"], report
