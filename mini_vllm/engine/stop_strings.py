"""Finds the texts that end an answer, before any of them is given out. Knows text only. Chapter 14."""

from collections.abc import Sequence


class StopStringFinder:
    """Takes text piece by piece; gives out what can no longer be part of a stop text.

        given out                  held back
        The answer is 42.|         \\nUse          stop text: "\\nUser:"
                                   ^ may still become one, so it waits

    stop: the texts; the one that begins first ends the answer, and of those that begin there the shortest.
    include: give out the stop text itself too.
    """

    def __init__(self, stop: Sequence[str], include: bool = False) -> None:
        self.stop, self.include = tuple(stop), include
        self.found: str | None = None
        self._held = ""

    def add(self, text: str) -> str:
        """The text that this piece makes final. After `found` is set there is nothing more."""
        if self.found is not None:
            return ""
        self._held += text
        places = [(at, len(stop), stop) for stop in self.stop if (at := self._held.find(stop)) >= 0]
        if places:
            at, length, self.found = min(places)
            given, self._held = self._held[: at + (length if self.include else 0)], ""
            return given
        keep = max((_overlap(self._held, stop) for stop in self.stop), default=0)
        cut = len(self._held) - keep
        given, self._held = self._held[:cut], self._held[cut:]
        return given

    def flush(self) -> str:
        """What was held back, once no more text will come."""
        rest, self._held = self._held, ""
        return rest


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of `text` with which `stop` begins (and is not over)."""
    for length in range(min(len(text), len(stop) - 1), 0, -1):
        if text.endswith(stop[:length]):
            return length
    return 0
