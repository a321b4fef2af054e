"""Kernels shown on a page: their text is that of the file, decorators included. Knows two functions by name."""

import inspect

import pytest

from mini_vllm.errors import ConfigError
from mini_vllm.viz.kernel_code import KernelCode


def test_the_text_is_that_of_the_function_itself():
    pytest.importorskip("triton")
    from mini_vllm.kernels import device_code

    shown = KernelCode("device_code", "loop_bound", "cache_slots")
    for function in (device_code.loop_bound, device_code.cache_slots):
        assert inspect.getsource(function.fn).strip() in shown.text
    assert shown.text.count("@triton.jit") == 2
    data = shown._repr_mimebundle_()
    assert data["text/plain"] == shown.text and data["text/markdown"] == f"```python\n{shown.text}\n```"


def test_what_is_not_there_is_named():
    with pytest.raises(ConfigError, match=r"kernels/flash\.py is not there; it has .*paged_decode"):
        KernelCode("flash", "attend")
    with pytest.raises(ConfigError, match="has no function cash_slots; it has loop_bound, cache_slots"):
        KernelCode("device_code", "cash_slots")


def test_what_the_chapter_explains_is_in_the_code():
    """Chapter 13 shows `attend` and `cache_slots`, and says why three of their lines are there."""
    assert ".to(tl.int64)" in KernelCode("device_code", "cache_slots").text
    attend = KernelCode("paged_decode", "attend").text
    assert "wanted = positions < end" in attend and "base = tl.where(new_max ==" in attend
