"""A pytest plugin beside nbval: writes down how each cell really ended, as it ends. Judges nothing. All chapters.

nbval calls a cell green when it sees no error *message*, and a notebook can silence those. The kernel's answer to the
request to execute the cell still says "error". So this listens to the answers, and writes one JSON object a line:
{"cell": 3} when cell 3 starts, and {"cell": 3, "status": "ok" or "error", "nbval": "passed" or "failed", …} at its end.
"""

import json
import os
import sys
from typing import Any, cast

import pytest

LOG = "MINI_VLLM_CELL_LOG"
MAX_TEXT = 20_000
# jsonschema would build a grammar of web addresses with it, for over a second; no notebook is checked for those.
sys.modules.setdefault("rfc3987_syntax", cast(Any, None))


class CellLog:
    """Registered only where the grader asks for it."""

    def __init__(self, path: str):
        self.file = open(path, "a", encoding="utf-8")
        self.reply: dict = {}
        self.heard: set[int] = set()

    def write(self, **entry: Any) -> None:
        print(json.dumps(entry), file=self.file, flush=True)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_call(self, item) -> None:
        kernel = item.parent.kernel
        if id(kernel) not in self.heard:
            self.heard.add(id(kernel))
            self._listen(kernel)
        self.reply = {}
        self.write(cell=item.cell_num)

    def _listen(self, kernel) -> None:
        plain = kernel.get_message

        def get_message(stream, timeout=None):
            message = plain(stream, timeout)
            if stream == "shell" and message["msg_type"] == "execute_reply":
                self.reply = message["content"]
            return message

        kernel.get_message = get_message

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item, call):
        report = yield
        if report.when == "call":
            item.parent.timed_out = False  # nbval expects all later cells to fail then; here each is judged by itself
            texts = {key: str(self.reply.get(key, ""))[:MAX_TEXT] for key in ("ename", "evalue")}
            trace = "\n".join(map(str, self.reply.get("traceback", [])))[-MAX_TEXT:]
            self.write(
                cell=item.cell_num,
                status=self.reply.get("status"),
                nbval=report.outcome,
                why="" if report.passed else str(report.longrepr)[:MAX_TEXT],
                traceback=trace,
                **texts,
            )
        return report


def pytest_configure(config) -> None:
    if LOG in os.environ:
        config.pluginmanager.register(CellLog(os.environ[LOG]))
