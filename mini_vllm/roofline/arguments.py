"""Refuses arguments that would give nonsense instead of an error. Knows no roofline. Chapter 2."""

import math
from collections.abc import Iterable
from numbers import Integral, Real
from typing import Any

from mini_vllm.errors import ConfigError


def require_instance(value: Any, kind: type, name: str) -> None:
    """Raise ConfigError unless `value` is an instance of `kind`; a class in its place is the common slip."""
    if isinstance(value, kind):
        return
    if isinstance(value, type):
        raise ConfigError(f"{name} is the class {value.__name__}; give an instance of {kind.__name__}")
    raise ConfigError(f"{name} is {value!r}, a {type(value).__name__}; give a {kind.__name__}")


def require_method(value: Any, name: str, method: str, example: str) -> None:
    """Raise ConfigError unless `value` is an instance, of whatever class, with this method."""
    if isinstance(value, type) or not callable(getattr(value, method, None)):
        what = f"the class {value.__name__}" if isinstance(value, type) else repr(value)
        raise ConfigError(f"{name} is {what}; give an instance such as {example}")


def require_whole(value: Any, name: str, least: int = 0) -> None:
    """Raise ConfigError unless `value` is a whole number of at least `least`."""
    if type(value) is int and value >= least:
        return
    if isinstance(value, bool) or not isinstance(value, Integral) or value < least:
        raise ConfigError(f"{name}={value!r} must be a whole number of at least {least}")


def require_positive(value: Any, name: str) -> None:
    """Raise ConfigError unless `value` is a finite number above 0; NaN, infinity and booleans are none."""
    if isinstance(value, bool) or not isinstance(value, Real) or not 0 < float(value) < math.inf:
        raise ConfigError(f"{name}={value!r} must be a number above 0")


def require_between(value: Any, name: str, low: float, high: float) -> None:
    """Raise ConfigError unless `value` is a number from `low` to `high`, both included."""
    if isinstance(value, bool) or not isinstance(value, Real) or not low <= float(value) <= high:
        raise ConfigError(f"{name}={value!r} must be a number from {low:g} to {high:g}")


def require_share(value: Any, name: str) -> None:
    """Raise ConfigError unless `value` lies above 0 and at most at 1."""
    require_positive(value, name)
    if value > 1:
        raise ConfigError(f"{name}={value!r} is a share and must be at most 1")


def require_seeds(seeds: Any) -> list[int]:
    """`seeds` as a list. Raises ConfigError unless they are whole numbers of at least 0, at least one and each once.

    Below 0 there is none: Python's `random.Random(-1)` draws the same as `random.Random(1)`.
    """
    if isinstance(seeds, str) or not isinstance(seeds, Iterable):
        raise ConfigError(f"seeds={seeds!r}; give a list of whole numbers, such as [0, 1, 2] or range(3)")
    found = list(seeds)
    for seed in found:
        require_whole(seed, "seed")
    if not found or len(set(found)) != len(found):
        raise ConfigError(f"seeds={found} must be at least one number, and each once")
    return found
