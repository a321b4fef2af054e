"""Shows how far a download is. Knows bytes; does not know where they come from. Chapter 14."""

import sys
from typing import Protocol


class Progress(Protocol):
    """What a download reports to. `done` and `total` are bytes since the start of the file."""

    def show(self, done: int, total: int) -> None: ...
    def close(self) -> None: ...


class Silent:
    """Shows nothing."""

    def show(self, done: int, total: int) -> None:
        pass

    def close(self) -> None:
        pass


class PercentLines:
    """One line on standard error every ten per cent: readable in a log file."""

    def __init__(self, label: str) -> None:
        self._label = label
        self._next_percent = 0

    def show(self, done: int, total: int) -> None:
        percent = 100 * done // max(total, 1)
        if percent >= self._next_percent:
            line = f"  {self._label}: {percent:3d} % of {total / 1e6:.1f} MB"
            print(line, file=sys.stderr, flush=True)
            self._next_percent = 10 * (percent // 10) + 10

    def close(self) -> None:
        pass


class RichBar:
    """A moving bar, where `rich` is installed and a person is looking."""

    def __init__(self, label: str) -> None:
        from rich import progress as rich_progress
        from rich.console import Console

        self._bar = rich_progress.Progress(
            rich_progress.TextColumn("  {task.description}"),
            rich_progress.BarColumn(),
            rich_progress.DownloadColumn(),
            rich_progress.TransferSpeedColumn(),
            rich_progress.TimeRemainingColumn(),
            console=Console(stderr=True),
        )
        self._task = self._bar.add_task(label, total=None)
        self._bar.start()

    def show(self, done: int, total: int) -> None:
        self._bar.update(self._task, completed=done, total=total)

    def close(self) -> None:
        self._bar.stop()


def choose_progress(label: str, wanted: bool) -> Progress:
    """The reporter that suits this process: nothing, a bar on a terminal, else a line every ten per cent."""
    if not wanted:
        return Silent()
    if sys.stderr.isatty():
        try:
            return RichBar(label)
        except ImportError:
            pass
    return PercentLines(label)
