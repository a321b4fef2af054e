"""A model folder as the hub keeps it: whole, in shards, and broken in every way. Chapter 14."""

import json
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file, save_file

from mini_vllm import LLM, SamplingParams
from mini_vllm.errors import CorruptModelFileError, UnknownModelError
from mini_vllm.loaders.inspect import describe
from mini_vllm.loaders.weights import load_model
from mini_vllm.models.hf_config import config_to_json
from mini_vllm.models.tiny import tiny_model
from mini_vllm.tokenization.tokenizer import Tokenizer

from ..models.variants import TINY, VARIANTS


def write_folder(folder, tokenizer: Tokenizer, config=TINY, dtype=torch.float32):
    """A tiny model with a real tokenizer, in one file."""
    config = replace(config, vocab_size=tokenizer.vocab_size + 3)  # models are often padded by some rows
    model = tiny_model(2, dtype=dtype, config=config)
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(config_to_json(config))
    for name, text in tokenizer.file_texts().items():
        (folder / name).write_text(text)
    save_file(dict(model.state_dict()), folder / "model.safetensors", metadata={"format": "pt"})
    return model


def shard(folder):
    """Splits model.safetensors into two files and an index."""
    weights = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    names = sorted(weights)
    parts = {"model-00001-of-00002.safetensors": names[::2], "model-00002-of-00002.safetensors": names[1::2]}
    for filename, held in parts.items():
        save_file({name: weights[name] for name in held}, folder / filename)
    index = {"metadata": {}, "weight_map": {name: f for f, held in parts.items() for name in held}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


@pytest.fixture
def folder(tmp_path, small):
    write_folder(tmp_path / "tiny", small)
    return tmp_path / "tiny"


@pytest.mark.parametrize("in_shards", [False, True])
def test_weights_arrive_as_they_were(folder, small, in_shards):
    expected = write_folder(folder, small).state_dict()
    if in_shards:
        shard(folder)
    loaded = load_model(folder)
    assert loaded.name == "tiny" and loaded.path == folder
    assert loaded.model.state_dict().keys() == expected.keys()
    for name, weight in loaded.model.state_dict().items():
        assert torch.equal(weight, expected[name])


def test_another_dtype_is_converted(folder, small):
    model = write_folder(folder, small, dtype=torch.bfloat16)
    loaded = load_model(folder, "float32")
    for name, weight in model.state_dict().items():
        assert torch.equal(loaded.model.state_dict()[name], weight.float())


@pytest.mark.parametrize("name", VARIANTS)
@pytest.mark.parametrize("size", ["1GB", "20KB"])
def test_what_transformers_saves_and_computes(tmp_path, small, name, size, run_dense):
    transformers = pytest.importorskip("transformers")
    write_folder(tmp_path / "ours", small, VARIANTS[name])
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "ours", dtype=torch.float32).eval()
    theirs.save_pretrained(tmp_path / "saved", max_shard_size=size)
    assert (len(list((tmp_path / "saved").glob("*.safetensors"))) > 1) == (size == "20KB")
    for filename, text in small.file_texts().items():
        (tmp_path / "saved" / filename).write_text(text)
    ids = small.encode("the cat, the dog and the 12 mice")
    with torch.inference_mode():
        expected = theirs(torch.tensor([ids]), use_cache=False).logits[0]
    assert (run_dense(load_model(tmp_path / "saved").model, ids) - expected).abs().max() < 1e-4


def test_it_talks(folder):
    (folder / "chat_template.jinja").write_text("{% for m in messages %}{{ m.content }}{% endfor %}")
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [2, 0]}))
    llm = LLM(str(folder), max_model_len=64)
    [output] = llm.chat([{"role": "user", "content": "the"}], SamplingParams(max_tokens=5, ignore_eos=True))
    assert len(output.token_ids) == 5
    assert load_model(folder).end_token_ids == (2, 0)


def test_every_end_token_of_the_generation_config_ends_an_answer(folder, small):
    llm = LLM(str(folder), max_model_len=64)
    tokens = llm.generate(["the"], SamplingParams(max_tokens=6, ignore_eos=True))[0].token_ids
    end = next(token for token in tokens[1:] if token != tokens[0])
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [2, end]}))
    llm = LLM(str(folder), max_model_len=64)
    [output] = llm.generate(["the"], SamplingParams(max_tokens=6))
    assert output.finish_reason == "stop" and output.token_ids == tokens[: tokens.index(end) + 1]
    [output] = llm.generate(["the"], SamplingParams(max_tokens=6, ignore_eos=True))
    assert output.token_ids == tokens and output.finish_reason == "length"


def test_settings_as_the_hub_spells_them(folder, small):
    settings = {"eos_token": {"content": "<|im_end|>", "special": True}, "bos_token": "<|im_start|>"}
    template = [{"name": "tool_use", "template": "no"}, {"name": "default", "template": "{{ messages[0].content }}"}]
    (folder / "tokenizer_config.json").write_text(json.dumps(settings | {"chat_template": template}))
    loaded = load_model(folder)
    assert (loaded.tokenizer.eos_token_id, loaded.tokenizer.bos_token_id) == (2, 1)
    assert loaded.chat_template.apply_chat_template([{"role": "user", "content": "hi"}]) == "hi"
    assert loaded.tokenizer.encode("the")[0] != 1  # nothing says that a text begins with it


def test_a_begin_token_that_only_the_post_processor_states(folder):
    from tokenizers.processors import TemplateProcessing

    backend = Tokenizer.from_folder(folder)._backend
    backend.post_processor = TemplateProcessing(single="<|im_start|> $A", special_tokens=[("<|im_start|>", 1)])
    (folder / "tokenizer.json").write_text(backend.to_str())
    (folder / "tokenizer_config.json").write_text(json.dumps({"bos_token": "<|im_start|>"}))
    ids = load_model(folder).tokenizer.encode("the")
    assert ids[0] == 1 and ids.count(1) == 1


def test_inspect_reads_headers(folder, small):
    report = describe(folder)
    assert "20 F32" in report or "21 F32" in report
    assert "beyond plain Llama: nothing" in report
    shard(folder)
    assert describe(folder).splitlines()[1:] == report.splitlines()[1:]
    write_folder(folder, small, VARIANTS["qwen3"])
    assert "beyond plain Llama: q/k norms" in describe(folder)


def cut(folder):
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1000])


def drop_a_shard(folder):
    shard(folder)
    (folder / "model-00002-of-00002.safetensors").unlink()


def index_outside(folder):
    shard(folder)
    path = folder / "model.safetensors.index.json"
    path.write_text(path.read_text().replace("model-00002-of-00002", "../../etc/passwd"))


def index_without_map(folder):
    shard(folder)
    (folder / "model.safetensors.index.json").write_text("[]")


def index_lies(folder):
    shard(folder)
    path = folder / "model.safetensors.index.json"
    path.write_text(path.read_text().replace("00002-of", "00001-of"))


def only_a_pickle(folder):
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")


def whole_numbers(folder):
    weights = load_file(folder / "model.safetensors")
    weights["model.norm.weight"] = weights["model.norm.weight"].to(torch.int8)
    save_file(weights, folder / "model.safetensors")


def other_tensors(folder):
    weights = load_file(folder / "model.safetensors")
    weights["model.extra"] = weights.pop("model.norm.weight")
    save_file(weights, folder / "model.safetensors")


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (cut, "not a whole safetensors file"),
        (drop_a_shard, "lacks 1 of its 2 shards: model-00002-of-00002.safetensors"),
        (index_outside, "names a file outside the folder"),
        (index_without_map, "holds a list, not an object"),
        (index_lies, "does not hold .* which the index says it does"),
        (only_a_pickle, "pytorch_model.bin is a pickle, which can run any code and is never loaded"),
        (whole_numbers, "model.norm.weight is torch.int8"),
        (other_tensors, "1 missing: model.norm.weight; 1 surplus: model.extra"),
        (lambda folder: (folder / "config.json").write_text("{"), "config.json cannot be used"),
        (lambda folder: (folder / "config.json").write_bytes(b"\xff"), "is not UTF-8"),
        (lambda folder: (folder / "tokenizer.json").unlink(), "holds no tokenizer.json"),
        (lambda folder: (folder / "tokenizer_config.json").unlink(), "holds no tokenizer_config.json"),
        (lambda folder: (folder / "tokenizer.json").write_text("{}"), "cannot be read"),
        (lambda folder: (folder / "generation_config.json").write_text("[]"), "holds a list, not an object"),
    ],
)
def test_damage_is_named(folder, damage, message):
    damage(folder)
    with pytest.raises(CorruptModelFileError, match=message):
        load_model(folder)


def test_a_folder_that_is_no_model(tmp_path):
    with pytest.raises(UnknownModelError, match=r"holds no config.json"):
        load_model(tmp_path)


def test_a_file_of_a_few_bytes_cannot_state_a_huge_model(folder):
    config = json.loads((folder / "config.json").read_text()) | {"num_hidden_layers": 1_000_000}
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(CorruptModelFileError, match="states 1,000,000 layers, but the file holds 21 tensors"):
        load_model(folder)
