"""The self-test sees wrong, raising and silent kernels, and says them with numbers."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from mini_vllm.kernels import kv_store, paged_decode, paged_prefill, selftest, split_kv
from mini_vllm.kernels.reference import TOLERANCE
from mini_vllm.kernels.selftest import INTERPRETED, Case, Shape
from mini_vllm.kernels.tiles import CARDS

ROOT = Path(__file__).resolve().parents[2]
SMALL = Shape(6, 2, 16, torch.float32, block_size=3, sliding_window=11)
KERNELS = ["store_kv", "paged_decode, 1 tokens", "split_kv, 1 tokens", "paged_prefill"]


def run() -> selftest.Report:
    return selftest.selftest("cpu", SMALL, query_lens=(1,))


def test_our_kernels_pass():
    report = run()
    assert report.ok and report.failures == [] and report.seconds > 0
    assert [case.kernel for case in report.cases] == KERNELS
    assert all(0 <= case.error <= case.tolerance for case in report.cases)
    assert max(case.error for case in report.cases) > 0  # something was computed and compared


FAULTS = {
    "store_kv": (kv_store, "store_kv", "store_kv"),
    "paged_decode, 1 tokens": (paged_decode, "paged_decode", "paged_decode"),
    "split_kv, 1 tokens": (split_kv, "paged_decode_split", "split_kv"),
    "paged_prefill": (paged_prefill, "paged_prefill", "paged_prefill"),
}


@pytest.mark.parametrize("kernel", FAULTS)
def test_a_kernel_that_raises_is_a_failure_and_the_others_are_still_tested(kernel, monkeypatch):
    module, function, name = FAULTS[kernel]

    def raising(*args, **settings):
        raise RuntimeError("out of resource: shared memory")

    monkeypatch.setattr(module, function, raising)
    report = run()
    assert not report.ok
    (failure,) = report.failures
    assert failure.startswith(name) and "RuntimeError: out of resource: shared memory" in failure
    assert [case.kernel for case in report.cases] == [name for name in KERNELS if name != kernel]


@pytest.mark.parametrize("kernel", FAULTS)
def test_a_kernel_that_writes_nothing_is_a_failure(kernel, monkeypatch):
    module, function, name = FAULTS[kernel]
    monkeypatch.setattr(module, function, lambda *args, **settings: None)
    (failure,) = run().failures
    assert failure.startswith(name) and "is allowed" in failure


def test_a_kernel_that_is_a_little_wrong_is_a_failure(monkeypatch):
    right = paged_decode.paged_decode

    def a_little_wrong(out, *args, **settings):
        right(out, *args, **settings)
        out *= 1.0001

    monkeypatch.setattr(paged_decode, "paged_decode", a_little_wrong)
    (failure,) = run().failures
    assert "error 0.0001, and 1e-05 is allowed" in failure
    assert "float32, head_dim 16, group 3, page 3" in failure


def test_a_store_through_slot_minus_one_is_a_failure(monkeypatch):
    def wraps_around(k, v, kv_cache, slot_mapping):
        keys, values = kv_cache.view(2, -1, *k.shape[1:])
        keys[slot_mapping], values[slot_mapping] = k, v

    monkeypatch.setattr(kv_store, "store_kv", wraps_around)
    (failure,) = run().failures
    assert failure.startswith("store_kv")


def test_not_a_number_is_never_ok():
    assert not Case("paged_decode", "float32", 64, 1, 16, None, float("nan"), 1e-5).ok


@pytest.mark.parametrize(
    ("card", "dtype"), [((7, 5), torch.float16), ((9, 0), torch.bfloat16), ((8, 9), torch.float32)]
)
def test_on_a_card_all_kernels_of_the_model_are_launched(card, dtype):
    names = [name for name, _ in selftest._launches(Shape(8, 2, 128, dtype), CARDS[card], (1, 8), torch.device("cpu"))]
    decodes = [f"{kernel}, {n} tokens" for n in (1, 8) for kernel in ("paged_decode", "split_kv")]
    assert names == ["store_kv", *decodes, "paged_prefill"]


def test_what_is_routed_to_torch_is_not_tested():
    launches = selftest._launches(Shape(8, 2, 128, torch.bfloat16), CARDS[7, 5], (1,), torch.device("cpu"))
    assert [name for name, _ in launches] == ["store_kv"]
    assert all(shape.dtype != torch.bfloat16 for shape in selftest.default_shapes(CARDS[7, 5]))
    assert any(shape.dtype == torch.bfloat16 for shape in selftest.default_shapes(CARDS[9, 0]))


# The stored errors.


def test_the_interpreted_shapes_hold_each_value_of_the_promise():
    assert {shape.head_dim for shape in INTERPRETED} == {64, 80, 96, 128, 256}
    assert {shape.num_heads // shape.num_kv_heads for shape in INTERPRETED} == {1, 3, 4, 7, 8, 16, 32}
    assert {shape.block_size for shape in INTERPRETED} == {1, 3, 8, 16, 48, 64}
    assert {shape.dtype for shape in INTERPRETED} == set(TOLERANCE)


def test_the_stored_errors_are_of_these_shapes_and_within_tolerance():
    stored = json.loads((ROOT / "benchmarks/results/interpreter.json").read_text())
    assert stored["ran_on"] == "interpreter" and set(stored["versions"]) == {"torch", "triton", "numpy"}

    def settings(case: dict) -> tuple:
        return tuple(case[name] for name in ("dtype", "head_dim", "group", "block_size", "sliding_window"))

    shapes = [
        (str(s.dtype)[6:], s.head_dim, s.num_heads // s.num_kv_heads, s.block_size, s.sliding_window)
        for s in INTERPRETED
    ]  # fmt: skip
    assert list(dict.fromkeys(map(settings, stored["cases"]))) == shapes
    for case in stored["cases"]:
        assert case["tolerance"] == (0.0 if case["kernel"] == "store_kv" else TOLERANCE[getattr(torch, case["dtype"])])
        assert case["error"] <= case["tolerance"]
    again = selftest.selftest("cpu", INTERPRETED[1], query_lens=(1,)).cases  # fp16, heads of 80, pages of 3
    for case in again:
        (was,) = (c for c in stored["cases"] if (c["kernel"], settings(c)) == (case.kernel, shapes[1]))
        assert case.error == pytest.approx(was["error"], rel=0.5, abs=1e-7)


def test_without_a_gpu_the_command_says_what_to_do():
    if torch.cuda.is_available():
        pytest.skip("here is a GPU")
    finished = subprocess.run(
        [sys.executable, "-m", "mini_vllm.kernels.selftest"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert finished.returncode == 2
    assert "no CUDA GPU. Way out: --interpret" in finished.stderr
