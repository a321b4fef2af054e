"""The probe on this machine's CPU, and what it refuses. A GPU's branches run on a GPU only."""

import json
import sys
from types import SimpleNamespace

import pytest

from mini_vllm.errors import ConfigError, MissingDependencyError
from mini_vllm.roofline import ModelCosts, StepTimeModel, StepWork, get_model, gpu_constants, probe
from mini_vllm.roofline.probe import NOISY, MeasuredPoint, ProbeResult, Timing, _check

STEADY = Timing(10e9, 9.5e9, 10.5e9, 20)
RESULT = ProbeResult(
    device="cpu", dtype="float32", threads=2, torch="2.13", date="today", memory_bytes=8e9, read=STEADY,
    copy=Timing(12e9, 9e9, 14e9, 5),
    points=(MeasuredPoint(1, 0.5, Timing(6.5e9, 6.4e9, 6.6e9, 9)), MeasuredPoint(64, 30, Timing(90e9, 89e9, 91e9, 9))),
    seconds=1.0,
)  # fmt: skip


def test_the_spec_is_the_fastest_that_was_seen():
    assert RESULT.gemm.per_s == 90e9
    assert RESULT.bandwidth == 13e9  # the matrix at batch 1 moved more bytes than the copy did
    assert RESULT.spec.ridge_point("float32") == pytest.approx(90 / 13)
    assert RESULT.spec.measured


def test_noise_is_named():
    assert RESULT.copy.spread == pytest.approx(5 / 12) and RESULT.copy.spread > NOISY
    assert RESULT.noisy == ["copying"]
    assert "noisy, quartiles over 20% of the median apart: copying" in str(RESULT)


def test_this_machine(capsys):
    result = probe("cpu", seconds=3, progress=True)
    print(result)
    assert result.seconds < 30  # below 10 on a machine that is not shared
    assert result.threads >= 1 and result.torch and result.date and result.memory_bytes > 1e8
    assert result.points[0].batch == 1
    for timing in (result.read, result.copy, result.gemm):
        assert 0 < timing.low <= timing.per_s <= timing.high and timing.samples >= 3
    # Each side of the roof holds every point, or the roof is none.
    for point in result.points:
        assert point.flop.per_s <= result.spec.peak("float32")
        assert point.flop.per_s <= point.intensity * result.spec.bytes_per_s * (1 + 1e-9)
    assert json.loads(json.dumps(result.to_dict()))["device"] == result.device
    said = capsys.readouterr().err.splitlines()
    assert said[:2] == ["probe: reading", "probe: copying"] and len(said) == 2 + len(result.points)
    # It is hardware like any card.
    model = StepTimeModel(ModelCosts(get_model("smollm2-135m"), "float32"), result.spec, gpu_constants())
    assert model.step_ms(StepWork.decode(1, 10)) > 1e3 * 4 * 134e6 / result.spec.bytes_per_s


def test_it_is_silent_where_nobody_looks(capsys):
    probe("cpu", "bfloat16", seconds=3)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("seconds", [0, -1, float("nan"), 2.9, 11])
def test_seconds_out_of_range(seconds):
    with pytest.raises(ConfigError, match="seconds="):
        probe("cpu", seconds=seconds)


@pytest.mark.parametrize("device", ["tpu", "cpu:0", "cuda:x", "gpu"])
def test_a_device_that_it_does_not_know(device):
    with pytest.raises(ConfigError, match="must be 'cpu', 'cuda'"):
        probe(device)


def test_a_dtype_that_it_does_not_know():
    with pytest.raises(ConfigError, match="dtype='int8' is not one of float32, bfloat16, float16"):
        probe("cpu", "int8")


def fake_torch(count, capability=(8, 0)):
    cuda = SimpleNamespace(
        device_count=lambda: count,
        get_device_capability=lambda device: capability,
        get_device_name=lambda device: "Tesla T4",
    )
    return SimpleNamespace(cuda=cuda)


def test_a_gpu_that_is_not_there():
    with pytest.raises(ConfigError, match="device='cuda:1' is not there: torch sees 1 GPUs; take 'cpu'"):
        _check(fake_torch(1), "cuda:1", "float16")
    _check(fake_torch(2), "cuda:1", "bfloat16")


def test_bfloat16_on_a_t4():
    with pytest.raises(ConfigError, match="Tesla T4 does not compute in bfloat16; take float16"):
        _check(fake_torch(1, (7, 5)), "cuda", "bfloat16")


def test_without_torch(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(MissingDependencyError, match=r"measures with the package 'torch'.*\[engine\]"):
        probe()
