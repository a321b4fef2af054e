"""Where the engine runs and with which numbers, on GPUs that are only pretended: device, dtype, backend, KV blocks."""

import json
import logging
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from mini_vllm import LLM
from mini_vllm.config import SchedulerConfig
from mini_vllm.engine.attention.cpu import CpuPagedAttention
from mini_vllm.engine.attention.select import select_backend
from mini_vllm.engine.attention.torch import TorchPagedAttention
from mini_vllm.engine.device import resolve_device, resolve_dtype, to_device
from mini_vllm.engine.gpu_memory import GIB, fill_memory
from mini_vllm.engine.kv_pool import block_bytes, runs
from mini_vllm.engine.warm_up import warm_up
from mini_vllm.errors import ConfigError, MissingDependencyError
from mini_vllm.kernels import mode
from mini_vllm.kernels.selftest import Shape
from mini_vllm.models.config import ModelConfig
from mini_vllm.models.tiny import tiny_model
from tests.engine.tiny_llm import tiny_loaded

CPU, GPU = torch.device("cpu"), torch.device("cuda", 0)
T4, A100 = ((7, 5), "Tesla T4"), ((8, 0), "NVIDIA A100")


def pretend(monkeypatch, card=A100, count=1):
    capability, name = card
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: capability)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device=None: name)


# --- device ---


def test_auto_takes_what_is_there(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert resolve_device("auto") == resolve_device() == CPU
    pretend(monkeypatch)
    assert resolve_device("auto") == resolve_device("cuda") == resolve_device(GPU) == GPU
    assert resolve_device("cpu") == CPU


@pytest.mark.parametrize("name", ["gpu", "mps", "cuda:x", "cpu:0", "cuda:", ""])
def test_what_is_no_device_is_refused_before_a_model_is_loaded(name, monkeypatch):
    pretend(monkeypatch)
    if name == "cuda:":
        assert resolve_device(name) == GPU
        return
    with pytest.raises(ConfigError, match=f"device='{name}' is not one of auto, cpu, cuda, cuda:0"):
        LLM("no such model", device=name)


def test_a_gpu_that_is_not_there(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ConfigError, match=r"device='cuda', but .*; take device='cpu', or 'auto'"):
        LLM("no such model", device="cuda")
    pretend(monkeypatch, count=2)
    assert resolve_device("cuda:1") == torch.device("cuda", 1)
    with pytest.raises(ConfigError, match="device='cuda:2', but there are 2 GPUs, numbered from 0"):
        resolve_device("cuda:2")


def test_to_device():
    assert to_device([3, 1], CPU).tolist() == [3, 1] and to_device([], CPU).dtype == torch.int64
    assert to_device([3], CPU, torch.int32).dtype == torch.int32


# --- dtype ---


def test_b02_auto_asks_the_device_and_not_the_checkpoint(monkeypatch, caplog):
    assert resolve_dtype("auto", CPU) == "float32"
    pretend(monkeypatch, A100)
    with caplog.at_level(logging.WARNING):
        assert resolve_dtype("auto", GPU) == "bfloat16" and not caplog.records
        pretend(monkeypatch, T4)
        assert resolve_dtype("auto", GPU) == "float16"
    [notice] = caplog.messages
    assert "float16" in notice and "Tesla T4 (compute capability 7.5) has no bfloat16" in notice


@pytest.mark.parametrize("dtype", ["bfloat16", torch.bfloat16])
def test_b02_bfloat16_by_name(monkeypatch, dtype):
    assert resolve_dtype(dtype, CPU) == "bfloat16"
    pretend(monkeypatch, A100)
    assert resolve_dtype(dtype, GPU) == "bfloat16"
    pretend(monkeypatch, T4)
    with pytest.raises(ConfigError, match=r"bfloat16' on Tesla T4 .*7\.5.*needs capability 8\.0.*'float16'.*'float32'"):
        LLM("no such model", device="cuda", dtype=dtype)
    assert resolve_dtype("float16", GPU) == "float16" and resolve_dtype("float32", GPU) == "float32"


def test_b02_no_notebook_asks_the_engine_for_bfloat16(root):
    looked_at = 0
    for path in [*root.glob("notebooks/*.ipynb"), *root.glob("solutions/*.ipynb"), *root.glob("exercises/*.ipynb")]:
        for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
            source = "".join(cell["source"])
            if cell["cell_type"] == "code" and "LLM(" in source:
                looked_at += 1
                assert "bfloat16" not in source, path
    assert looked_at > 3


def test_a_dtype_that_is_none():
    with pytest.raises(ConfigError, match="dtype='int8' is not one of auto, float32, bfloat16, float16"):
        LLM("no such model", device="cpu", dtype="int8")


# --- attention backend ---

CONFIG = ModelConfig.tiny()


@pytest.fixture
def kernels(monkeypatch):
    """A GPU whose self-test says what `kernels.report` holds; the kernels themselves stay in the interpreter."""
    pytest.importorskip("triton")
    told = SimpleNamespace(report=SimpleNamespace(ok=True, failures=[]), tested=[])

    def selftest(device, shape, query_lens):
        told.tested.append((device, shape, query_lens))
        if isinstance(told.report, Exception):
            raise told.report
        return told.report

    monkeypatch.setattr("mini_vllm.kernels.selftest.selftest", selftest)
    monkeypatch.setattr("mini_vllm.engine.attention.select.current", lambda device: nullcontext())
    return told


def test_an_unknown_backend_is_refused_before_a_model_is_loaded():
    with pytest.raises(ConfigError, match="attention_backend='flash' is not one of auto, torch, triton"):
        LLM("no such model", attention_backend="flash")


def test_on_a_cpu_auto_is_torch():
    assert type(select_backend("auto", CONFIG, torch.float32, CPU)) is TorchPagedAttention
    wide = replace(CONFIG, head_dim=64)
    fast = CpuPagedAttention.can_serve(torch.bfloat16, CPU, wide.num_attention_heads, 64)
    chosen = type(select_backend("auto", wide, torch.bfloat16, CPU))
    assert chosen is (CpuPagedAttention if fast else TorchPagedAttention)
    assert type(select_backend("torch", wide, torch.bfloat16, CPU)) is TorchPagedAttention


def test_on_a_gpu_auto_is_triton_if_it_passes_its_self_test(kernels, caplog):
    with caplog.at_level(logging.WARNING):
        backend = select_backend("auto", replace(CONFIG, sliding_window=7), torch.float16, GPU, block_size=8)
    assert type(backend).__name__ == "TritonPagedAttention" and backend.supports_cuda_graphs
    assert kernels.tested == [(GPU, Shape(4, 2, 8, torch.float16, 8, 7), (1, 2, 4, 8))] and not caplog.records
    assert (backend.num_heads, backend.num_kv_heads, backend.head_dim, backend.sliding_window) == (4, 2, 8, 7)


@pytest.mark.parametrize("name", ["auto", "triton"])
@pytest.mark.parametrize("breaks_off", [False, True])
def test_kernels_that_are_wrong_fall_back_loudly(kernels, caplog, name, breaks_off):
    failed = SimpleNamespace(ok=False, failures=["paged_decode float16: error 0.5"])
    kernels.report = RuntimeError("ptxas died") if breaks_off else failed
    with caplog.at_level(logging.WARNING):
        assert type(select_backend(name, CONFIG, torch.float16, GPU)) is TorchPagedAttention
    [notice] = caplog.messages
    assert "torch instead of our Triton kernels" in notice
    assert ("ptxas died" if breaks_off else "paged_decode float16: error 0.5") in notice


def test_what_a_card_routes_away_is_said_once(kernels, caplog, monkeypatch):
    from mini_vllm.engine.attention import triton
    from mini_vllm.kernels.tiles import Routed

    with caplog.at_level(logging.WARNING):
        monkeypatch.setattr(triton.tiles, "INTERPRETER_PREFILL", Routed("too little shared memory"))
        backend = select_backend("auto", CONFIG, torch.float16, GPU)
        assert backend.routed == {"prefill": "too little shared memory"} and backend.supports_cuda_graphs
        monkeypatch.setattr(triton.tiles, "INTERPRETER_DECODE", Routed("too few registers"))
        assert type(select_backend("auto", CONFIG, torch.float16, GPU)) is TorchPagedAttention
    partly, wholly = caplog.messages
    assert "torch serves what has no clean kernel on this card (prefill: too little shared memory)" in partly
    assert "no clean tile for this model on this card: too few registers" in wholly


def test_without_triton_auto_goes_on_and_triton_is_an_error(monkeypatch, caplog):
    def missing():
        raise MissingDependencyError("The kernels need the package triton, which is not installed.")

    monkeypatch.setattr(mode, "require_triton", missing)
    with caplog.at_level(logging.WARNING):
        assert type(select_backend("auto", CONFIG, torch.float16, GPU)) is TorchPagedAttention
    assert "need the package triton" in caplog.text
    for device in (CPU, GPU):
        with pytest.raises(MissingDependencyError, match="need the package triton"):
            select_backend("triton", CONFIG, torch.float16, device)


def test_a_dtype_without_kernels():
    pytest.importorskip("triton")
    with pytest.raises(ConfigError, match="has no kernel for float64, only for float16, bfloat16, float32"):
        LLM(tiny_loaded(), max_model_len=96, attention_backend="triton")


# --- KV blocks ---


class PretendedMemory:
    def __init__(self, used, total, peak):
        self.used, self.total, self.peak, self.num_runs = used, total, peak, 0

    def used_and_total(self):
        assert self.num_runs == 1, "measured after the full step, whose leftovers count"
        return self.used, self.total

    def peak_of(self, run):
        run()
        self.num_runs += 1
        return self.peak


LIMITS = SchedulerConfig(8, 100, 64, num_gpu_blocks=1, block_size=16)


def test_blocks_fill_what_is_left_of_the_memory():
    model = tiny_model(0, dtype=torch.float32)
    one_block = 2 * 2 * 16 * 2 * 8 * 4  # K and V, layers, tokens, KV heads, head_dim, bytes
    assert block_bytes(model.config, model.dtype, 16) == one_block
    memory = PretendedMemory(used=3 * GIB, total=10 * GIB, peak=GIB // 2)
    config = fill_memory(LIMITS, model, TorchPagedAttention(), 0.8, memory)
    # 8 GiB may be used; 3 are, and 2 * 0.5 are for a step and for the graphs. One block is the null block.
    assert config == replace(LIMITS, num_gpu_blocks=4 * GIB // one_block - 1)


def test_the_full_step_is_as_large_as_a_step_may_be():
    rows, lengths = [], []

    class Looks(TorchPagedAttention):
        def forward(self, q, k, v, kv_cache, meta):
            rows.append(len(q)), lengths.append(meta.query_lens)
            assert kv_cache.shape[1] == 1 and set(meta.block_table.flatten().tolist()) == {0}
            return super().forward(q, k, v, kv_cache, meta)

    model = tiny_model(0, dtype=torch.float32)
    fill_memory(LIMITS, model, Looks(), 0.8, PretendedMemory(0, GIB, 0))
    assert rows == [100, 100] and lengths == [[64, 36]] * 2  # two layers; no prompt is longer than max_model_len


def test_the_engine_warms_up_with_each_kind_of_step_and_leaves_nothing():
    seen = []

    class Looks(TorchPagedAttention):
        def forward(self, q, k, v, kv_cache, meta):
            seen.append((meta.query_lens[0], meta.context_lens[0]))
            return super().forward(q, k, v, kv_cache, meta)

    model = tiny_model(0, dtype=torch.float32)
    warm_up(LIMITS, model, Looks())
    assert seen[::2] == [(n, length) for n in (1, 2, 4, 8, 17) for length in (n, 64)]
    warm_up(replace(LIMITS, max_num_batched_tokens=8), model, Looks())
    assert max(n for n, _ in seen[20:]) == 8


def test_a_card_that_is_too_small_says_what_to_do():
    model, one_block = tiny_model(0, dtype=torch.float32), 2 * 2 * 16 * 2 * 8 * 4
    config = fill_memory(LIMITS, model, TorchPagedAttention(), 1.0, PretendedMemory(0, 5 * one_block, 0))
    assert config.num_gpu_blocks == 4  # just what one request of 64 tokens needs
    with pytest.raises(
        ConfigError, match=r"room for 3 KV blocks of 16 tokens, and one .*max_model_len=64 needs 4. Lower"
    ):
        fill_memory(LIMITS, model, TorchPagedAttention(), 1.0, PretendedMemory(0, 5 * one_block - 1, 0))
    with pytest.raises(ConfigError, match="room for 0 KV blocks"):
        fill_memory(LIMITS, model, TorchPagedAttention(), 0.5, PretendedMemory(9 * GIB, 10 * GIB, GIB))


@pytest.mark.parametrize("share", [0, -0.5, 1.5])
def test_a_share_out_of_range(share):
    with pytest.raises(ConfigError, match=f"gpu_memory_utilization={share} must be above 0 and at most 1"):
        fill_memory(LIMITS, tiny_model(0), TorchPagedAttention(), share, PretendedMemory(0, 1, 0))


def test_copies_are_joined_where_both_sides_count_up():
    assert list(runs([])) == []
    assert list(runs([(5, 1), (6, 2), (7, 3)])) == [(5, 1, 3)]
    assert list(runs([(7, 3), (2, 9), (6, 2), (8, 5)])) == [(2, 9, 1), (6, 2, 2), (8, 5, 1)]
