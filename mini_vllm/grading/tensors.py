"""Compares a kernel with its oracle: shape, dtype, values. Knows tensors as plain data; imports torch late. Chapter 13.

In an exercise: packages=("torch",), call=run_kernel. Data that crosses to the judge, one for each tensor:
    {"shape": [2, 4], "dtype": "float32", "values": [0.5, …]}     row by row; "nan", "inf" and "-inf" as text
"""

import itertools
import math
from collections.abc import Callable
from typing import Any

from mini_vllm.grading.checkers import kind_of
from mini_vllm.grading.exercise import Case, Comparer

# Largest difference that the order of additions explains, absolute and relative.
TOLERANCE = {"float64": 1e-10, "float32": 1e-5, "float16": 2e-3, "bfloat16": 2e-2}


def random_tensor(shape: list[int], dtype: str, seed: int) -> Any:
    """Standard normal values, the same on every machine for the same seed."""
    import torch

    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(getattr(torch, dtype))


def run_kernel(fn: Callable, *arguments: Any) -> Any:
    """What `fn` returns, tensors as plain data; several tensors as a list."""
    value = fn(*arguments)
    return [as_data(item) for item in value] if type(value) in (tuple, list) else as_data(value)


def as_data(value: Any) -> Any:
    """A torch tensor or numpy array as plain data; anything else as it is. Exact types: a subclass may lie."""
    kind = type(value)
    if (kind.__module__, kind.__name__) == ("torch", "Tensor"):
        dtype = str(value.dtype).removeprefix("torch.")
        flat = value.detach().cpu().double() if value.is_floating_point() else value.detach().cpu()
        values = flat.reshape(-1).tolist()
    elif (kind.__module__, kind.__name__) == ("numpy", "ndarray"):
        dtype, values = str(value.dtype), value.reshape(-1).tolist()
    else:
        return value
    return {"shape": list(value.shape), "dtype": dtype, "values": list(map(_as_json, values))}


def _as_json(value: Any) -> Any:
    return value if type(value) is not float or math.isfinite(value) else str(value)


def same_tensor(tolerance: float | None = None) -> Comparer:
    """Shape, then dtype, then every value within `tolerance` (by default that of the dtype). NaN equals nothing.

    An infinity is right where the oracle has the same one.
    """

    def compare(case: Case, got: Any, expected: Any) -> str | None:
        right = as_data(expected)
        words = f"a tensor of shape {tuple(right['shape'])} and dtype {right['dtype']}"
        if not _is_data(got):
            return f"expected {words}, got {kind_of(got)}"
        if got["shape"] != right["shape"]:
            return f"expected {words}, got shape {tuple(got['shape'])}"
        if got["dtype"] != right["dtype"]:
            return f"the shape is right, the dtype is not: expected {right['dtype']}, got {got['dtype']}"
        return _first_wrong_value(got["values"], right, TOLERANCE.get(right["dtype"], 0.0), tolerance)

    return compare


def same_tensors(*names: str) -> Comparer:
    """Several outputs in this order, for instance "out", "lse"; each as in `same_tensor`."""

    def compare(case: Case, got: Any, expected: Any) -> str | None:
        if type(got) is not list or len(got) != len(names):
            return f"expected {len(names)} tensors ({', '.join(names)}), got {kind_of(got)}"
        for name, mine, right in zip(names, got, expected, strict=True):
            if complaint := same_tensor()(case, mine, right):
                return f"{name}: {complaint}"
        return None

    return compare


def rounded(case: Case, value: Any) -> Any:
    """The essence of a kernel's answer: what two ways to compute the same have in common."""
    if type(value) in (tuple, list):
        return [rounded(case, item) for item in value]
    data = as_data(value)
    return {**data, "values": [round(float(one), 2) for one in data["values"]]}


def _is_data(got: Any) -> bool:
    """Whatever came over the pipe: the three entries, and as many numbers as the shape says."""
    if type(got) is not dict or got.keys() != {"shape", "dtype", "values"}:
        return False
    shape, values = got["shape"], got["values"]
    return (
        type(shape) is list
        and all(type(size) is int and size >= 0 for size in shape)
        and type(got["dtype"]) is str
        and type(values) is list
        and all(type(value) in (int, float, bool) or value in ("nan", "inf", "-inf") for value in values)
        and math.prod(shape) == len(values)
    )


def _first_wrong_value(got: list, right: dict, usual: float, tolerance: float | None) -> str | None:
    limit = usual if tolerance is None else tolerance
    wrong, largest = [], 0.0
    for index, (mine, value) in enumerate(zip(map(float, got), map(float, right["values"]), strict=True)):
        error = 0.0 if mine == value else abs(mine - value)
        if not error <= limit * max(1.0, abs(value) if math.isfinite(value) else 1.0):  # NaN and inf land here
            wrong.append((index, mine, value))
            largest = max(largest, error) if math.isfinite(error) else math.inf
    if not wrong:
        return None
    index, mine, value = wrong[0]
    place = _place(index, right["shape"])
    nan = next((_place(i, right["shape"]) for i, m, _ in wrong if math.isnan(m)), None)
    lines = [
        f"{len(wrong)} of {len(got)} values differ by more than {limit:g}; the first at {place}: "
        f"expected {value:.6g}, got {mine:.6g}",
        f"nan first at {nan}: inf - inf, 0 / 0, or a row in which everything is masked?"
        if nan
        else f"the largest difference is {largest:.3g}",
    ]
    return "\n".join(lines)


def _place(index: int, shape: list[int]) -> str:
    """The index of a flat position: 5 in (2, 4) is [1, 1]."""
    place = []
    for size in reversed(shape):
        index, at = divmod(index, size)
        place.append(at)
    return str(list(itertools.chain(reversed(place))))
