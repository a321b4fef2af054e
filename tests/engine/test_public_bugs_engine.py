"""Public bug reports about the engine: ours does the right thing. Knows the tiny model and the 256-byte tokenizer.

One test or several per case of the list of public bugs, named by its id, driven from outside through `LLM`.
"""

import json
import logging
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from mini_vllm import LLM, SamplingParams
from mini_vllm.errors import CorruptModelFileError, EmptyPromptError
from mini_vllm.loaders.weights import LoadedModel, load_model
from mini_vllm.models.config import ModelConfig
from mini_vllm.models.tiny import tiny_model
from mini_vllm.tokenization.detokenizer import IncrementalDetokenizer
from mini_vllm.tokenization.tokenizer import Tokenizer
from tests.engine.tiny_llm import tiny_loaded
from tests.loaders.test_hf_folder import write_folder
from tests.models.variants import TINY
from tests.tokenization.conftest import small  # noqa: F401  a fixture

LIMITS = {"max_model_len": 96, "num_gpu_blocks": 60, "block_size": 4, "max_num_seqs": 6, "max_num_batched_tokens": 24}


@pytest.fixture(scope="module")
def loaded():
    return tiny_loaded()


@pytest.fixture(scope="module")
def model():
    """With a row for each of the byte tokenizer's 261 tokens."""
    return tiny_model(0, config=replace(ModelConfig.tiny(), vocab_size=261))


def with_tokenizer(model, tokenizer):
    return LLM(LoadedModel("tiny", model, model.config, tokenizer, None, Path("tiny"), Path(".")), **LIMITS)


def speaks(llm, token_ids, monkeypatch):
    """From now on every request samples these tokens, whatever its logits."""
    execute, spoken = llm.engine_core.runner.execute, {}

    def scripted(plan):
        output = execute(plan)
        for new in plan.scheduled_new_reqs:
            spoken[new.req_id] = iter(token_ids)
        ids = {r: [next(spoken[r])] for r, sampled in output.sampled_token_ids.items() if sampled}
        return replace(output, sampled_token_ids=output.sampled_token_ids | ids)

    monkeypatch.setattr(llm.engine_core.runner, "execute", scripted)


# --- a30: an empty prompt ---


@pytest.fixture(params=[False, True], ids=["no_bos", "bos"])
def bos(request):
    return request.param


@pytest.mark.parametrize("prompts", [[""], [[]], ["", "hi"], ["hi", ""], [[], "hi"]], ids=str)
def test_a30_an_empty_prompt_is_refused_and_the_engine_goes_on(model, small, bos, prompts):  # noqa: F811
    """Empty prompt (vllm#7283, #7632, #7746): an error for that call; with a begin token "" is one token."""
    llm = with_tokenizer(model, Tokenizer(small._backend, {**small.settings, "add_bos_token": bos}))
    few = SamplingParams(max_tokens=3, ignore_eos=True)
    expected = llm.generate("another", SamplingParams(max_tokens=8, ignore_eos=True))[0].token_ids
    other = llm.stream("another", SamplingParams(max_tokens=8, ignore_eos=True), request_ids=["other"])
    next(other)
    if bos and [] not in prompts:
        outputs = llm.generate(prompts, few)
        assert [len(o.token_ids) for o in outputs] == [3] * len(prompts)
        assert [o.prompt_token_ids for o in outputs if o.prompt == ""] == [[1]]
    else:
        number = prompts.index([] if [] in prompts else "") + 1
        with pytest.raises(
            EmptyPromptError, match=rf"prompt {number} of {len(prompts)} .* 0 tokens, at least 1 needed"
        ):
            llm.generate(prompts, few)
        assert llm.engine_core.used_request_ids() == {"other"}, "nothing of the refused call entered"
    list(other)
    assert other.results[0].token_ids == expected
    assert len(llm.generate("hi", few)[0].token_ids) == 3


def test_a30_no_prompts_at_all_are_no_answers(loaded):
    assert LLM(loaded, **LIMITS).generate([]) == []


# --- a31: stop strings over token borders ---

PIECES = ["A", "S", "TO", "P!", "B", "RM"]


class Pieces:
    """A token is one of PIECES; prompts are of the first."""

    eos_token_id = None

    def encode(self, text):
        return [0] * len(text)

    def decode(self, ids):
        return "".join(PIECES[i] for i in ids)

    def token_bytes(self, token_id):
        return PIECES[token_id].encode()

    def is_special(self, token_id):
        return False


@pytest.mark.parametrize(
    ("spoken", "max_tokens", "text", "reason"),
    [
        (["A", "S", "TO", "P!", "B"], 5, "A", "stop"),
        (["A", "S", "TO", "RM"], 4, "ASTORM", "length"),
        (["A", "S", "TO", "RM"], 3, "ASTO", "length"),
    ],
)
def test_a31_a_stop_string_over_token_borders(model, monkeypatch, spoken, max_tokens, text, reason):
    """Stop strings over token borders (vllm#3672, #37042): nothing of one is ever sent, nothing else is lost."""
    llm = with_tokenizer(model, Pieces())
    speaks(llm, [PIECES.index(piece) for piece in spoken], monkeypatch)
    params = SamplingParams(max_tokens=max_tokens, stop=("STOP",))
    [output] = llm.generate(["x"], params)
    assert (output.text, output.finish_reason) == (text, reason)
    assert output.stop_reason == ("STOP" if reason == "stop" else None)
    sent = list(llm.stream(["x"], params))
    assert "".join(delta.text for delta in sent) == output.text
    assert [delta.finish_reason for delta in sent if delta.finished] == [reason]
    so_far = ""
    for delta in sent[:-1]:  # before the end nothing that may still become a stop string
        so_far += delta.text
        assert not any(so_far.endswith("STOP"[:n]) for n in range(1, 5))


# --- a33: seeds ---

R1 = SamplingParams(max_tokens=24, temperature=0.8, seed=7, ignore_eos=True)
UNSEEDED = SamplingParams(max_tokens=24, temperature=0.8, ignore_eos=True)


def ids_of(llm, prompts, params, request_ids=None):
    return {o.request_id: o.token_ids for o in llm.generate(prompts, params, request_ids=request_ids)}


def test_a33_a_seed_gives_the_same_tokens_in_any_company(loaded):
    """Seeds (vllm#51226, #7808, #11898): alone, beside an unseeded request, evicted by it, and in chunks."""
    alone = ids_of(LLM(loaded, **LIMITS), ["the prompt"], R1, ["r1"])["r1"]
    assert len(set(alone)) > 5, "a draw, not a repetition"
    beside = LLM(loaded, **LIMITS)
    assert ids_of(beside, ["another one", "the prompt"], [UNSEEDED, R1], ["r2", "r1"])["r1"] == alone

    short = LLM(loaded, **LIMITS | {"num_gpu_blocks": 13})
    assert ids_of(short, ["another one", "the prompt"], [UNSEEDED, R1], ["r2", "r1"])["r1"] == alone
    assert "r1" in {req_id for step in short.trace.steps for req_id in step["preempted"]}, "r2 must evict r1"

    chunked = LLM(loaded, **LIMITS | {"max_num_batched_tokens": 6})
    assert ids_of(chunked, ["the prompt"], R1, ["r1"])["r1"] == alone
    assert chunked.trace.steps[0]["scheduled"] == [["r1", 6]], "the prompt has 10 tokens"


def test_a33_several_answers_differ_and_repeat(loaded):
    """Seeds (vllm#51226, #7808, #11898): the children of one seed differ from one another, and come again."""
    llm, three = LLM(loaded, **LIMITS), replace(R1, n=3)
    first, second = (list(ids_of(llm, ["the prompt"], three).values()) for _ in range(2))
    assert first == second and len({tuple(ids) for ids in first}) == 3


def test_a33_without_a_seed_runs_differ(loaded):
    """Seeds (vllm#51226, #7808, #11898)."""
    llm = LLM(loaded, **LIMITS)
    first, second = (ids_of(llm, ["the prompt"], UNSEEDED, ["r"])["r"] for _ in range(2))
    assert first != second


# --- b12: partial UTF-8 in streams ---

# bytes, one a token, and what each of them makes final
UTF8 = {
    "characters of four, two and one bytes": (
        b"a\xf0\x9f\x99\x82b\xc4\x8fc",
        ["a", "", "", "", "🙂", "b", "", "ď", "c"],
    ),
    "a space does not flush": (b"\xf0\x9f\x99\x82 \xc4\x8f", ["", "", "", "🙂", " ", "", "ď"]),
    "it ends within a character": (b"hi\xf0\x9f\x99", ["h", "i", "", "", ""]),
    "bytes that are no text": (b"a\xffb\xc4c", ["a", "\ufffd", "b", "", "\ufffdc"]),
}


@pytest.mark.parametrize("name", UTF8)
def test_b12_no_half_character_is_sent(model, small, monkeypatch, name):  # noqa: F811
    """Partial UTF-8 (vllm-mlx#109, exo#1691, mlx-vlm#1778): U+FFFD only for bytes that can become nothing else."""
    spoken, pieces = UTF8[name]
    byte_of = {small.token_bytes(token_id): token_id for token_id in range(small.vocab_size)}
    ids = [byte_of[bytes([byte])] for byte in spoken]
    llm = with_tokenizer(model, small)
    speaks(llm, ids, monkeypatch)
    stream = llm.stream([[5]], SamplingParams(max_tokens=len(ids), ignore_eos=True))
    deltas = list(stream)
    assert [delta.text for delta in deltas] == pieces
    [output] = stream.results
    assert output.text == "".join(pieces) and output.token_ids == ids, "tokens are counted, not pieces of text"
    # The whole is what decode() makes of all ids; a character that never got its last bytes is left out of `text`.
    rest = "\ufffd" if "within" in name else ""
    assert output.text + rest == small.decode(ids)
    detokenizer = IncrementalDetokenizer(small)
    assert "".join(detokenizer.add([token_id]) for token_id in ids) + detokenizer.flush() == small.decode(ids)


# --- b13: tied embeddings ---

HEAD = "lm_head.weight"


@pytest.fixture
def checkpoint(tmp_path, small):  # noqa: F811
    """Writes a checkpoint: config.json says tied or not, the file holds a head or not."""

    def write(tied, head):
        write_folder(tmp_path / "tiny", small, replace(TINY, tie_word_embeddings=not head))
        config, weights = tmp_path / "tiny" / "config.json", tmp_path / "tiny" / "model.safetensors"
        config.write_text(json.dumps(json.loads(config.read_text()) | {"tie_word_embeddings": tied}))
        tensors = load_file(weights)
        assert (HEAD in tensors) == head
        return tmp_path / "tiny", tensors

    return write


def head_is(model, matrix):
    hidden = torch.randn(3, model.config.hidden_size, generator=torch.Generator().manual_seed(0))
    return torch.allclose(model.compute_logits(hidden), hidden @ matrix.T, atol=1e-5)


def test_b13_tied_without_a_head(checkpoint, caplog):
    """Tied embeddings (vllm#6758, text-generation-inference#2918): the embedding is the head."""
    folder, tensors = checkpoint(tied=True, head=False)
    assert head_is(load_model(folder).model, tensors["model.embed_tokens.weight"])
    assert caplog.records == []


@pytest.mark.parametrize("differs", [False, True])
def test_b13_tied_with_a_head(checkpoint, caplog, differs):
    """Tied embeddings (vllm#6758, text-generation-inference#2918): it loads; a head that differs is said to be idle."""
    folder, tensors = checkpoint(tied=True, head=True)
    if not differs:
        save_file(tensors | {HEAD: tensors["model.embed_tokens.weight"].clone()}, folder / "model.safetensors")
    with caplog.at_level(logging.WARNING):
        assert head_is(load_model(folder).model, tensors["model.embed_tokens.weight"])
    told = [record.getMessage() for record in caplog.records]
    assert len(told) == differs
    assert all(HEAD in text and "differs from model.embed_tokens.weight: it is not used" in text for text in told)


def test_b13_untied_without_a_head(checkpoint):
    """Tied embeddings (vllm#6758, text-generation-inference#2918): the missing tensor is named."""
    folder, _ = checkpoint(tied=False, head=False)
    with pytest.raises(CorruptModelFileError, match=r"1 missing: lm_head\.weight"):
        load_model(folder)


def test_b13_untied_with_a_head(checkpoint):
    """Tied embeddings (vllm#6758, text-generation-inference#2918): its own head is used."""
    folder, tensors = checkpoint(tied=False, head=True)
    model = load_model(folder).model
    assert head_is(model, tensors[HEAD]) and not head_is(model, tensors["model.embed_tokens.weight"])
