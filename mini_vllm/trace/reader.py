"""Reads a trace file and says what is wrong with it, by file and line. Knows lines and the schema. Chapter 4."""

import json
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mini_vllm.errors import TraceFormatError
from mini_vllm.trace.compact import Record, unpack
from mini_vllm.trace.schema import FORMAT, VERSION, checker

CHUNK_BYTES = 1 << 20


def read_trace(path: str | Path, partial: bool = False) -> tuple[dict[str, Any], list[Record]]:
    """Header and steps of a file. TraceFormatError names file and line; OSError if it cannot be opened.

    partial: of a file that was cut off while it was written, take the whole steps; else that is an error, too.
    """
    header: dict[str, Any] | None = None
    steps: list[Record] = []
    for number, line, is_whole in _lines(Path(path)):
        where = f"{path}, line {number}"
        try:
            row = _parsed(line, path, number)
        except TraceFormatError:
            if is_whole or header is None:
                raise
            if partial:
                break
            raise TraceFormatError(
                f"{where}: the file is cut off here. {_count(len(steps), 'whole step')} before it can be read: "
                "Trace.load(path, partial=True), or --partial on the command line"
            ) from None
        if header is None:
            header = checked_header(row, where)
        else:
            steps.append(_record(row, steps[-1] if steps else None, where))
            if "requests" in row:
                header["requests"] = header.get("requests", {}) | row["requests"]
    if header is None:
        raise TraceFormatError(f"{path} is empty: line 1 must be the header")
    return header, steps


def is_trace(path: str | Path) -> bool:
    """Whether a file begins with the header of a trace, of whatever version. OSError if it cannot be opened."""
    try:
        row = json.loads(next((line for _, line, _ in _lines(Path(path))), b""))
    except (TraceFormatError, ValueError, RecursionError):
        return False
    return isinstance(row, dict) and row.get("format") == FORMAT


def checked_header(row: Any, where: str) -> dict[str, Any]:
    if not isinstance(row, dict) or "format" not in row:
        raise TraceFormatError(f'{where}: expected the header, e.g. {{"format": "{FORMAT}", "version": {VERSION}, …}}')
    if row["format"] != FORMAT or row.get("version") != VERSION:
        raise TraceFormatError(
            f"{where}: format {row['format']!r} version {row.get('version')!r}; this package reads {FORMAT!r} version "
            f"{VERSION}"
        )
    if problem := checker("header")(row):
        raise TraceFormatError(f"{where}: the header has a field of the wrong shape: header{problem}")
    return row


def checked_step(row: Any, where: str) -> Record:
    """The row, if it has the shape of a step."""
    if not isinstance(row, dict):
        raise TraceFormatError(f"{where}: not a JSON object; a step record needs an integer 'step' and 'scheduled'")
    if problem := checker("step")(row):
        if problem.startswith(" needs"):
            raise TraceFormatError(f"{where}: a step record{problem}")
        raise TraceFormatError(f"{where}: a field has the wrong shape: {problem[1:]}")
    return row


def _record(row: Any, previous: Record | None, where: str) -> Record:
    """A line as a record in full, which comes after `previous`."""
    row = checked_step(row, where)
    if previous is not None and row["step"] <= previous["step"]:
        raise TraceFormatError(f"{where}: step {row['step']} stands after step {previous['step']}; steps must rise")
    leans = "same" in row or "blocks_change" in row
    if leans and (previous is None or row["step"] != previous["step"] + 1):
        after = "the header" if previous is None else f"step {previous['step']}"
        raise TraceFormatError(
            f"{where}: step {row['step']} stands after {after} and says only what changed: lines before it are missing"
        )
    try:
        return unpack(row, previous)
    except LookupError as error:
        raise TraceFormatError(f"{where}: says that {error} changed or stayed, but the step before lacks it") from None


def _parsed(line: bytes, path: str | Path, number: int) -> Any:
    try:
        return json.loads(line.decode("utf-8-sig"), parse_constant=_refuse)
    except UnicodeDecodeError as error:
        raise TraceFormatError(f"{path} is no UTF-8 text (line {number}, byte {error.start}: {error.reason})") from None
    except json.JSONDecodeError as error:
        what = error.msg.removesuffix(" at")  # "Unterminated string starting at"
        raise TraceFormatError(f"{path}, line {number}: not JSON ({what} at column {error.colno})") from None
    except (ValueError, RecursionError) as error:
        raise TraceFormatError(f"{path}, line {number}: not JSON ({error})") from None


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no number")


def _lines(path: Path) -> Iterator[tuple[int, bytes, bool]]:
    """Number, bytes and "ends in a newline" of each line that is not blank. Lines end at \\n only."""
    number, rest = 0, b""
    for chunk in _chunks(path):
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            number += 1
            if line.strip():
                yield number, line, True
    if rest.strip():
        yield number + 1, rest, False


def _chunks(path: Path) -> Iterator[bytes]:
    """The file's content as far as it goes, since a writer may still be at work; decompressed if it is a .gz."""
    with path.open("rb") as file:
        chunk = file.read(CHUNK_BYTES)
        is_gz, unzip = chunk.startswith(b"\x1f\x8b"), zlib.decompressobj(wbits=31)
        while chunk:
            try:
                yield unzip.decompress(chunk) if is_gz else chunk
            except zlib.error as error:
                raise TraceFormatError(f"{path}: damaged gzip data ({error})") from None
            chunk = unzip.unused_data or file.read(CHUNK_BYTES)
            if unzip.eof:  # another .gz may stand behind this one
                unzip = zlib.decompressobj(wbits=31)


def _count(n: int, noun: str) -> str:
    return f"{n} {noun}" if n == 1 else f"{n} {noun}s"
