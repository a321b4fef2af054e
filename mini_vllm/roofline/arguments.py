"""Refuses arguments that would give nonsense instead of an error. Knows no roofline. Chapter 2."""

import math
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


def require_share(value: Any, name: str) -> None:
    """Raise ConfigError unless `value` lies above 0 and at most at 1."""
    require_positive(value, name)
    if value > 1:
        raise ConfigError(f"{name}={value!r} is a share and must be at most 1")
