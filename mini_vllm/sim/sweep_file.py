"""The results of a sweep as JSON lines, so that it can be stopped and resumed. Knows rows; runs nothing. Chapter 12."""

import json
from pathlib import Path
from typing import Any

from mini_vllm.errors import ConfigError
from mini_vllm.sim.sweep_backends import Job

FORMAT = "mini-vllm sweep 1"
Outcome = tuple[dict[str, Any] | None, str | None]


class SweepFile:
    """First a line that says of what the sweep is, then one line for each finished run."""

    def __init__(self, path: Path, sweep_of: str):
        self.path = path
        self.sweep_of = sweep_of

    def read(self) -> dict[str, Outcome]:
        """Key of each run -> its metrics or error; the latest counts. Begins the file if there is none.

        A last line that was cut off is dropped: its run is made again.
        """
        if not self.path.exists() or not self.path.stat().st_size:
            self._write("w", {"format": FORMAT, "of": self.sweep_of})
            return {}
        *lines, cut = self.path.read_bytes().split(b"\n")
        about = self._parse(lines[0], 1) if lines else {}
        if about.get("format") != FORMAT:
            raise ConfigError(f"{self.path} is no file of a sweep; give another one for results")
        if about.get("of") != self.sweep_of:
            raise ConfigError(
                f"{self.path} holds a sweep of\n  {about.get('of')}\nand this is one of\n  {self.sweep_of}\n"
                "Give another file."
            )
        found = {}
        for number, line in enumerate(lines[1:], 2):
            row = self._parse(line, number)
            if set(row) != {"key", "metrics", "error"}:
                raise ConfigError(f"{self.path}:{number} is no row of a sweep; give another file for results")
            found[row["key"]] = (row["metrics"], row["error"])
        if cut:
            self.path.write_bytes(b"".join(line + b"\n" for line in lines))
        return found

    def _parse(self, line: bytes, number: int) -> dict[str, Any]:
        try:
            row = json.loads(line)
        except ValueError as error:
            raise ConfigError(f"{self.path}:{number} is no JSON ({error}); give another file for results") from error
        return row if isinstance(row, dict) else {}

    def append(self, job: Job, metrics: dict[str, Any] | None, error: str | None) -> None:
        """One run more; on disk when this returns, so that nothing is lost if the sweep is killed."""
        self._write("a", {"key": job.key, "metrics": metrics, "error": error})

    def _write(self, mode: str, row: dict[str, Any]) -> None:
        with self.path.open(mode, encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
