"""The GPU's stop-watch against a GPU that is made up: what is launched when, and what a time is divided by."""

import pytest
import torch

from benchmarks.gpu_parts import bench as bench_module
from benchmarks.gpu_parts import timing
from benchmarks.gpu_parts.report import Report

MS = 6.0  # between any two events


class FakeCuda:
    """Stands in for torch.cuda; `log` holds what was done, in order."""

    def __init__(self, log: list, name: str = "Fake", capability: tuple[int, int] = (9, 0)):
        self.log, self.name, self.capability = log, name, capability

    def synchronize(self):
        self.log.append("wait")

    def CUDAGraph(self):
        fake = self

        class Graph:
            def replay(self):
                fake.log.append("replay")

        return Graph()

    def graph(self, graph):
        fake = self

        class Capture:
            def __enter__(self):
                fake.log.append("capture")

            def __exit__(self, *exc):
                fake.log.append("captured")

        return Capture()

    def Event(self, enable_timing):
        assert enable_timing
        fake = self

        class Event:
            def record(self):
                fake.log.append("event")

            def elapsed_time(self, end):
                return MS

        return Event()

    def is_available(self):
        return True

    def set_device(self, device):
        pass

    def empty_cache(self):
        self.log.append("emptied")

    def mem_get_info(self, device):
        return 10, 20

    def get_device_properties(self, device):
        class Properties:
            name, major, minor = self.name, *self.capability
            shared_memory_per_block_optin, multi_processor_count, L2_cache_size, total_memory = 1 << 17, 66, 1 << 20, 20

        return Properties()


@pytest.fixture
def log(monkeypatch):
    log: list[str] = []
    monkeypatch.setattr(torch, "cuda", FakeCuda(log))
    return log


def test_kernels_are_compiled_before_and_replayed_in_the_time(log):
    calls = [lambda: log.append("a"), lambda: log.append("b"), lambda: log.append("c")]
    found = timing.CudaTimer().ms(calls)
    assert log[:8] == ["a", "b", "c", "wait", "capture", "a", "b", "c"]
    timed = log[log.index("captured") :]
    assert "a" not in timed and timed.count("replay") == 1 + 1 + found.samples, "once to settle, once to plan"
    assert timed[2:6] == ["wait", "event", "replay", "event"]
    assert found.ms == pytest.approx(MS / 3), "of one call"
    assert found.samples == 13  # 80 ms of 6 ms each


def test_wall_time_is_taken_from_rest_to_rest(log):
    assert timing.CudaTimer().wall_ms(lambda: log.append("a"), repeats=2) > 0
    assert log == ["wait", "a", "wait"] * 2


def test_median_and_quartiles():
    assert timing.Timing.of([3.0]) == timing.Timing(3.0, 3.0, 3.0, 1)
    assert timing.Timing.of([1.0, 2.0, 3.0, 4.0, 5.0]) == timing.Timing(3.0, 2.0, 4.0, 5)


@pytest.mark.parametrize(("capability", "dtype"), [((9, 0), torch.bfloat16), ((7, 5), torch.float16)])
def test_a_card_without_bfloat16_gets_float16(monkeypatch, log, capability, dtype):
    monkeypatch.setattr(torch, "cuda", FakeCuda(log, capability=capability))
    monkeypatch.setattr(bench_module.mode, "interpreting", lambda: False)
    bench = bench_module.cuda_bench(Report("p", quiet=True), 100.0, 0, False, (1, 4))
    assert bench.dtype is dtype and bench.card.capability == capability and bench.card.num_sms == 66
    assert (bench.size(1, 2, 3), bench.piece, bench.l2_bytes, bench.total_bytes()) == (1, (1, 4), 1 << 20, 20)
    assert bench.free_bytes() == 10 and "emptied" in log
    bench.need(50, "something")
    with pytest.raises(bench_module.OutOfTimeError):
        bench.need(200, "something long")
    assert bench.report.data["skipped"][0]["what"] == "something long"


def test_a_peer_that_fails_is_named_and_ends_alone(monkeypatch, log):
    monkeypatch.setattr(bench_module.mode, "interpreting", lambda: False)
    bench = bench_module.cuda_bench(Report("p", quiet=True), 100.0, 0, True, (0, 1))
    with bench.peer("theirs"):
        raise RuntimeError("no kernel image\nlong story")
    assert bench.report.data["skipped"] == [{"what": "theirs", "reason": "RuntimeError: no kernel image"}]
    assert bench.size(1, 2, 3) == 2
    with pytest.raises(bench_module.OutOfTimeError), bench.peer("theirs"):
        bench.need(1000, "all")


def test_without_a_gpu_there_is_nothing_to_measure(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(bench_module.NoGPUError, match="--smoke"):
        bench_module.cuda_bench(Report("p", quiet=True), 1.0, 0, False, (0, 1))
