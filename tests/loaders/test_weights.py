"""From a GGUF file to a model: conversion, cache, and a cache that is broken. Chapter 14."""

import json
import logging
import math
import shutil
import time

import pytest
import torch

from mini_vllm.errors import ConfigError, CorruptModelFileError
from mini_vllm.loaders.gguf import GGUFFile
from mini_vllm.loaders.inspect import describe
from mini_vllm.loaders.llama_gguf import unpermute
from mini_vllm.loaders.weights import load_model
from mini_vllm.models.config import RopeScaling

from .conftest import write_llama_gguf


@pytest.fixture
def load(tiny_gguf, tmp_path):
    def load(dtype="float32", **options):
        return load_model(tiny_gguf, dtype, cache_dir=tmp_path, progress=False, **options)

    return load


def test_unpermute_by_hand():
    # One head of 4 rows. GGUF: pair (0, 1), pair (2, 3). Ours: first members 0 and 2, then second members.
    weight = torch.tensor([[0.0], [1.0], [2.0], [3.0]])
    assert unpermute(weight, 1).flatten().tolist() == [0.0, 2.0, 1.0, 3.0]
    two_heads = torch.arange(8.0)[:, None]
    assert unpermute(two_heads, 2).flatten().tolist() == [0, 2, 1, 3, 4, 6, 5, 7]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_weights_arrive_under_their_names(load, tiny_gguf, dtype):
    loaded, file = load(dtype), GGUFFile(tiny_gguf)
    state, torch_dtype = loaded.model.state_dict(), getattr(torch, dtype)
    assert len(state) == len(file.tensors)
    down = state["model.layers.1.mlp.down_proj.weight"]
    assert torch.equal(down, file.tensor("blk.1.ffn_down.weight", torch_dtype))
    query = state["model.layers.0.self_attn.q_proj.weight"]
    assert torch.equal(query, unpermute(file.tensor("blk.0.attn_q.weight", torch_dtype), 4))
    assert loaded.model.dtype == torch_dtype


def test_loaded_model_is_complete(load, tmp_path):
    loaded = load()
    assert loaded.name == "tiny-llama" and loaded.config.hidden_size == 64
    assert loaded.tokenizer.decode(loaded.tokenizer.encode("the 12 ü")) == "the 12 ü"
    assert loaded.tokenizer.vocab_size == loaded.config.vocab_size
    assert loaded.chat_template.apply_chat_template([{"role": "user", "content": "hi"}]) == ("<|im_start|>hi<|im_end|>")
    assert loaded.folder.parent == tmp_path


def test_dtypes_that_are_not_possible(load):
    assert load(torch.bfloat16).model.dtype == torch.bfloat16
    with pytest.raises(ConfigError, match="int8"):
        load("int8")


def test_second_load_decodes_nothing(load, monkeypatch):
    first = load()
    monkeypatch.setattr("mini_vllm.loaders.weights.GGUFFile", None)  # would fail if it were called
    again = load()
    for name, weight in again.model.state_dict().items():
        assert torch.equal(weight, first.model.state_dict()[name])


def damage(loaded, what):
    weights = loaded.folder / "model-float32.safetensors"
    data = weights.read_bytes()
    if what == "cut":
        weights.write_bytes(data[: len(data) // 2])
    elif what == "longer":
        weights.write_bytes(data + b"more")
    elif what == "empty":
        weights.write_bytes(b"")
    elif what == "header":
        weights.write_bytes(data[:8] + b"\xff" * 64 + data[72:])
    elif what == "other tensors":
        weights.write_bytes(data.replace(b"down_proj", b"DOWN_PROJ"))
    elif what == "other source":
        source = data.index(b"source_sha256") + len('source_sha256":"')
        weights.write_bytes(data[:source] + b"0000" + data[source + 4 :])
    elif what == "config":
        (loaded.folder / "config.json").write_text("{")
    elif what == "config bytes":
        (loaded.folder / "config.json").write_bytes(b'{"\xff')
    elif what == "template bytes":
        (loaded.folder / "chat_template.jinja").write_bytes(b"\xc3\x28")
    elif what == "tokenizer":
        (loaded.folder / "tokenizer.json").write_text('{"model": ')
    elif what == "settings":
        (loaded.folder / "tokenizer_config.json").write_text("[]")


@pytest.mark.parametrize(
    "what",
    "cut|longer|empty|header|other tensors|other source|config|config bytes|template bytes|tokenizer|settings".split(
        "|"
    ),
)
def test_broken_cache_is_noticed_and_made_again(load, caplog, what):
    first = load()
    expected = {name: weight.clone() for name, weight in first.model.state_dict().items()}
    folder = first.folder
    del first
    damage(load(), what)
    with caplog.at_level(logging.WARNING):
        again = load()
    assert "made again" in caplog.text
    assert again.folder == folder
    for name, weight in again.model.state_dict().items():
        assert torch.equal(weight, expected[name])
    caplog.clear()
    load()
    assert caplog.text == ""


def test_missing_small_file_is_made_again(load):
    folder = load().folder
    (folder / "chat_template.jinja").unlink()
    assert load().chat_template is not None


def test_file_without_a_tensor_is_refused_by_name(tiny_gguf, tmp_path):
    data = tiny_gguf.read_bytes().replace(b"blk.1.ffn_down.weight", b"blk.9.ffn_down.weight")
    path = tmp_path / "renamed.gguf"
    path.write_bytes(data)
    with pytest.raises(CorruptModelFileError, match=r"missing \['blk.1.ffn_down.weight'\], surplus \['blk.9"):
        load_model(path, cache_dir=tmp_path, progress=False)
    assert not list(tmp_path.rglob("*.safetensors")) and not list(tmp_path.rglob("*.tmp"))


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("llama.block_count", 1_000_000, "block_count states 1,000,000 layers, but the file holds 20 tensors"),
        # A disk that is too small must not be blamed for these.
        ("llama.feed_forward_length", 2_000_000_000, "misshapen"),
        ("llama.vocab_size", 2_000_000_000, "misshapen"),
    ],
)
def test_sizes_that_the_file_does_not_have(tiny_gguf, tmp_path, key, value, message):
    name = key.encode()
    data = bytearray(tiny_gguf.read_bytes())
    at = data.index(name) + len(name) + 4  # the value stands behind the number of its type
    data[at : at + 4] = value.to_bytes(4, "little")
    path = tmp_path / "absurd.gguf"
    path.write_bytes(data)
    start = time.process_time()
    with pytest.raises(CorruptModelFileError, match=message):
        load_model(path, cache_dir=tmp_path, progress=False)
    assert time.process_time() - start < 2
    assert not list(tmp_path.rglob("*.safetensors")) and not list(tmp_path.rglob("*.tmp"))


def test_changed_gguf_gets_its_own_folder(tiny_gguf, tmp_path):
    path = tmp_path / "model.gguf"
    shutil.copyfile(tiny_gguf, path)
    first = load_model(path, cache_dir=tmp_path, progress=False)
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    second = load_model(path, cache_dir=tmp_path, progress=False)
    assert first.folder != second.folder


def test_cache_folder_reads_like_one_from_the_hub(load):
    transformers = pytest.importorskip("transformers")
    folder = load().folder
    shutil.copyfile(folder / "model-float32.safetensors", folder / "model.safetensors")
    theirs = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    ours = load().model.state_dict()
    for name, weight in theirs.model.state_dict().items():
        assert torch.equal(weight, ours[f"model.{name}"])
    assert json.loads((folder / "config.json").read_text())["model_type"] == "llama"


@pytest.mark.model
def test_real_model_loads_within_its_time():
    load_model("smollm2-135m", "float32")
    start = time.process_time()
    loaded = load_model("smollm2-135m", "float32")
    assert time.process_time() - start < 1.5
    assert sum(weight.numel() for weight in loaded.model.state_dict().values()) == 134_515_008


def test_a_stretched_rope_arrives(tmp_path):
    """Divisors as llama.cpp's converter writes them for factor 8 between wavelengths of 32 and 1,024 tokens."""
    wavelengths = [2 * math.pi * 10_000 ** (i / 16) for i in range(0, 16, 2)]  # 6, 20, 63, 199, 628, 1987, … tokens
    shares = [(1024 / w - 1) / 31 for w in wavelengths]
    factors = [1.0, 1.0, *(1 / ((1 - s) / 8 + s) for s in shares[2:5]), 8.0, 8.0, 8.0]
    path = write_llama_gguf(tmp_path / "long.gguf", rope_factors=factors)
    for _ in range(2):  # decoded, then from the cache
        model = load_model(path, cache_dir=tmp_path / "cache", progress=False).model
        assert model.config.rope_scaling == RopeScaling(8.0, 1.0, 32.0, original_max_position_embeddings=1024)
        positions = torch.tensor([0, 1, 57, 119])
        angles = positions[:, None] * (2 * math.pi / torch.tensor(wavelengths) / torch.tensor(factors))
        cos, sin = model.rope(positions, torch.float32)
        assert torch.allclose(cos[:, 0, :8], angles.cos(), atol=1e-5)
        assert torch.allclose(sin[:, 0, 8:], angles.sin(), atol=1e-5)
    assert "rope stretched 8 times" in describe(path)


def test_a_rope_that_is_stretched_in_another_way_is_refused(tmp_path):
    path = write_llama_gguf(tmp_path / "odd.gguf", rope_factors=[4.0] * 8)
    with pytest.raises(CorruptModelFileError, match=r"rope_freqs.weight holds 4, 4, .*safetensors folder"):
        load_model(path, cache_dir=tmp_path, progress=False)
