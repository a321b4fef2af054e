"""Writes a trace to a file while the run goes on. Knows lines and files; knows no scheduler. Chapters 4 and 15.

What it holds of a run does not grow with its length: the latest record and the requests that are not done yet.
"""

import gzip
import io
import json
from pathlib import Path
from typing import Any

from mini_vllm.errors import ConfigError
from mini_vllm.trace.compact import Record, pack
from mini_vllm.trace.cut import leave_out

BinaryFile = gzip.GzipFile | io.BufferedWriter
GZ_FLUSH_STEPS = 64  # each flush costs compression; a crash costs at most so many steps of a .gz


class TraceWriter:
    """One run into one file, or into a row of files of limited size. A name that ends in .gz is compressed.

        begin(header) -> write(record), write(record), … -> close()

    path: the file. max_bytes: begin a new file when the present one is larger (before compression); None: never.
    keep_files: how many older files stay, run.1.jsonl being the latest of them. Each file can be read by itself:
    it begins with a header and a record in full. What already lies there when a run begins is kept as an older file
    if max_bytes is set, and else overwritten.

    Every line is handed to the system when it is complete (in a .gz: 64 steps at a time), so a process that dies
    leaves whole steps behind it; `Trace.load(path, partial=True)` reads them.
    """

    def __init__(self, path: str | Path, *, max_bytes: int | None = None, keep_files: int = 2):
        if keep_files < 0 or (max_bytes is not None and max_bytes < 1):
            raise ConfigError(f"max_bytes={max_bytes} must be at least 1 (or None), keep_files={keep_files} at least 0")
        self.path = Path(path)
        self.max_bytes = max_bytes
        self.keep_files = keep_files
        self._file: BinaryFile | None = None
        self._header: dict[str, Any] = {}
        self._requests: dict[str, dict] = {}  # the header's entries of those who are not done
        self._previous: Record | None = None
        self._num_bytes = self._num_steps = 0
        self._is_empty = False  # the present file is ours and holds no step yet: not worth keeping

    def begin(self, header: dict[str, Any]) -> None:
        """Start a run; `header["requests"]` holds those known already."""
        self._header = dict(header)
        self._requests = {req_id: dict(facts) for req_id, facts in header.get("requests", {}).items()}
        self._open()

    def write(self, record: Record, requests: dict[str, dict] | None = None) -> None:
        """One step. requests: the header's entries for the requests that arrived in it."""
        if self._file is None:
            raise ValueError("begin(header) comes before the first write()")
        if self.max_bytes is not None and self._num_bytes > self.max_bytes and not self._is_empty:
            self._header["dropped_steps"] = record["step"]
            self._open()
        row = pack(record, self._previous)
        if requests:
            row = {**row, "requests": requests}
            self._requests |= {req_id: dict(facts) for req_id, facts in requests.items()}
        self._write_line(row)
        self._num_steps += 1
        self._is_empty = False
        if self.path.suffix != ".gz" or self._num_steps % GZ_FLUSH_STEPS == 0:
            self._file.flush()
        self._previous = record
        leave_out(record, self._requests)  # as seen from the next file
        for req_id in (*record.get("aborted", ()), *record.get("finished", ())):
            if req_id not in record.get("waiting", ()) and req_id not in record.get("running_end", ()):
                self._requests.pop(req_id, None)  # else the id was used again at once

    def close(self) -> None:
        """Finish the file; a second time does nothing."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def __enter__(self) -> "TraceWriter":
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def _open(self) -> None:
        self.close()
        if self.max_bytes is not None and not self._is_empty:
            self._shift()
        self._file = open_for_writing(self.path)
        self._previous, self._num_bytes, self._num_steps, self._is_empty = None, 0, 0, True
        self._write_line({**self._header, "requests": self._requests} if "requests" in self._header else self._header)
        self._file.flush()

    def _shift(self) -> None:
        """run.jsonl becomes run.1.jsonl, that run.2.jsonl, …; the oldest goes."""
        for number in range(self.keep_files, -1, -1):
            file = self._older(number)
            if file.exists():
                if number == self.keep_files:
                    file.unlink()
                else:
                    file.replace(self._older(number + 1))

    def _older(self, number: int) -> Path:
        if number == 0:
            return self.path
        ending = "".join(self.path.suffixes[-2:]) if self.path.suffix == ".gz" else self.path.suffix
        return self.path.with_name(f"{self.path.name.removesuffix(ending)}.{number}{ending}")

    def _write_line(self, row: Record) -> None:
        assert self._file is not None
        line = to_line(row)
        self._file.write(line)
        self._num_bytes += len(line)


def to_line(row: dict[str, Any]) -> bytes:
    """One JSON object and a newline."""
    line = json.dumps(row, ensure_ascii=False, separators=(",", ":"))
    if not line.isprintable():
        # A lone surrogate (half an emoji in a prompt) has no UTF-8, and U+2028 ends a line for some tools.
        line = json.dumps(row, separators=(",", ":"))
    return line.encode("utf-8") + b"\n"


def open_for_writing(path: Path) -> BinaryFile:
    """A file to write bytes to, compressed if its name ends in .gz; the same content gives the same bytes."""
    return gzip.GzipFile(path, "wb", compresslevel=6, mtime=0) if path.suffix == ".gz" else path.open("wb")
