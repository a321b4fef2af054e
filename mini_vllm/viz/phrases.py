"""Small parts of sentences: lists of names, counts, ordinals. Knows English; knows no step. From chapter 1 on."""

from __future__ import annotations

from collections.abc import Sequence

NAMES_MAX = 8
_ORDINALS = "first second third fourth fifth sixth seventh eighth ninth tenth eleventh twelfth".split()


def listed(labels: Sequence[str], one: str = "", many: str = "") -> str:
    """ "R1, R2, 3 more decode", or "" for nobody."""
    if not labels:
        return ""
    named = list(labels)
    if len(named) > NAMES_MAX + 1:
        named[NAMES_MAX:] = [f"{len(labels) - NAMES_MAX} more"]
    return f"{', '.join(named)} {one if len(labels) == 1 else many}".rstrip()


def count(n: int, noun: str) -> str:
    """ "1 block", "2 blocks"."""
    return f"{n:,} {noun}" if n == 1 else f"{n:,} {noun}s"


def ordinal(n: int) -> str:
    """ "third", "13th"."""
    if n <= len(_ORDINALS):
        return _ORDINALS[n - 1]
    last = n % 10 if n % 100 // 10 != 1 else 0
    return f"{n}{ {1: 'st', 2: 'nd', 3: 'rd'}.get(last, 'th') }"
