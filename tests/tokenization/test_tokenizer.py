"""Text to ids and back, with the texts that break tokenizers. Chapter 14."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mini_vllm.errors import CorruptModelFileError
from mini_vllm.tokenization.detokenizer import IncrementalDetokenizer
from mini_vllm.tokenization.tokenizer import _PRE_TOKENIZERS, Tokenizer

TRICKY = [
    "",
    " ",
    "Hello, world!",
    "3.14159 and 2024-11-29, 1,000,000 and ½ and ٣",
    "   leading, trailing   ",
    "tab\tand\r\nline ends\n\n\n",
    "a\n\n  7",
    "你好，世界。日本語のテキスト。한국어",
    "👩‍👩‍👧‍👦 family with ZWJ, 🏳️‍🌈, 🇩🇪, 👍🏽",
    "e\u0301 combining, Z͑ͫ̓ͪ̂ͫ̽͏̴̙̤̞͉͚̯̞̠͍A̴̵̜̰͔ͫ͗͢L̠ͨͧͩ͘G̴̻͈͍͔̹̑͗̎̅͛́Ǫ̵̹̻̝̳͂̌̌͘!",
    "def f(x):\n    return x ** 2  # square\n\n\tif True: pass",
    "it's, we'll, I'M, don’t",
    "\u0000 control \u001b[31m and \u200b zero width \ufeff",
    "<|im_start|>user\nhi<|im_end|>",
    "<|im_start|",
    "עברית مرحبا हिन्दी ไทย",
    "𝔘𝔫𝔦𝔠𝔬𝔡𝔢 𓀀 \U0010ffff",
]


@pytest.mark.parametrize("text", TRICKY)
def test_round_trip(small, text):
    ids = small.encode(text)
    assert small.decode(ids, skip_special_tokens=False) == text
    assert all(0 <= token_id < small.vocab_size for token_id in ids)


@pytest.mark.model
@pytest.mark.parametrize("text", TRICKY)
def test_round_trip_of_the_real_one(smollm2, text):
    for split in (False, True):
        ids = smollm2.tokenizer.encode(text, split_special_tokens=split)
        assert smollm2.tokenizer.decode(ids, skip_special_tokens=False) == text


@given(st.text())
def test_any_text_round_trips(small, text):
    assert small.decode(small.encode(text, split_special_tokens=True), skip_special_tokens=False) == text


def test_special_tokens(small):
    assert (small.bos_token_id, small.eos_token_id, small.vocab_size) == (1, 2, 261)
    ids = small.encode("<|im_start|>the<|im_end|>")
    assert ids[0] == 1 and ids[-1] == 2 and len(ids) == 4
    assert small.decode(ids) == "the"
    as_text = small.encode("<|im_start|>the<|im_end|>", split_special_tokens=True)
    assert not any(map(small.is_special, as_text)) and small.decode(as_text) == "<|im_start|>the<|im_end|>"


def test_begin_token_only_where_the_model_wants_it(small):
    wanting = Tokenizer(small._backend, {**small.settings, "add_bos_token": True})
    assert wanting.encode("the")[0] == 1
    assert wanting.encode("the", add_special_tokens=False) == small.encode("the")


def test_each_digit_stands_alone(small):
    assert len(small.encode("2024")) == 4


def test_half_a_surrogate_pair_is_no_crash(small):
    assert small.decode(small.encode("a\ud800b")) == "a\ufffdb"
    assert small.decode(small.encode("\ud83d\ude42")) == "🙂"


def test_files_round_trip_and_broken_files(small, tmp_path):
    for name, text in small.file_texts().items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    again = Tokenizer.from_folder(tmp_path)
    for text in TRICKY:
        assert again.encode(text) == small.encode(text)
    assert again.special_tokens == small.special_tokens and again.eos_token_id == 2
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(CorruptModelFileError, match="cannot be read"):
        Tokenizer.from_folder(tmp_path)
    (tmp_path / "tokenizer.json").unlink()
    with pytest.raises(FileNotFoundError):
        Tokenizer.from_folder(tmp_path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tokenizer.ggml.model": "llama"}, "'llama'"),
        ({"tokenizer.ggml.pre": "viking"}, "'viking'"),
        ({"tokenizer.ggml.tokens": None}, "tokenizer.ggml.tokens"),
        ({"tokenizer.ggml.merges": ["zz yy"]}, "do not fit together"),
        ({"tokenizer.ggml.merges": ["one"]}, "do not fit together"),
    ],
)
def test_metadata_that_cannot_be_used(change, message):
    metadata = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": ["a", "b"],
        "tokenizer.ggml.merges": ["a b"],
    }
    with pytest.raises(CorruptModelFileError, match=message):
        Tokenizer.from_gguf(metadata | change)


# --- ids against transformers ---


@pytest.mark.model
def test_ids_equal_transformers_but_for_the_digits_rule(smollm2, transformers_tokenizer):
    from tokenizers import pre_tokenizers

    theirs = transformers_tokenizer
    ours = smollm2.tokenizer
    differ = [text for text in TRICKY if ours.encode(text) != theirs(text, add_special_tokens=False).input_ids]
    # Their import from GGUF leaves out `tokenizer.ggml.pre` = "smollm". It can show only where digits are.
    assert all(any(char.isnumeric() for char in text) for text in differ)
    assert "a\n\n  7" in differ
    backend = type(theirs.backend_tokenizer).from_str(theirs.backend_tokenizer.to_str())
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), backend.pre_tokenizer]
    )
    for text in TRICKY:
        assert ours.encode(text) == backend.encode(text, add_special_tokens=False).ids


@pytest.mark.parametrize("text", TRICKY)
def test_the_splitting_rule_of_qwen_is_transformers(text):
    transformers = pytest.importorskip("transformers")
    theirs = transformers.Qwen2Tokenizer().backend_tokenizer
    assert theirs.normalizer is not None
    assert _PRE_TOKENIZERS["qwen2"]().pre_tokenize_str(text) == theirs.pre_tokenizer.pre_tokenize_str(text)


def test_llama_3_keeps_three_digits_together():
    def split(rule, text):
        return [piece for piece, _ in _PRE_TOKENIZERS[rule]().pre_tokenize_str(text)]

    assert split("llama-bpe", "12345 it's") == ["123", "45", "Ġit", "'s"]
    assert split("qwen2", "12345 it's") == ["1", "2", "3", "4", "5", "Ġit", "'s"]


# --- text of a stream ---


def pieces(tokenizer, ids, rng, skip=True):
    """The texts that come out when `ids` arrive in random portions."""
    detokenizer, texts, at = IncrementalDetokenizer(tokenizer, skip_special_tokens=skip), [], 0
    while at < len(ids):
        step = rng.randrange(0, 4)
        texts.append(detokenizer.add(ids[at : at + step]))
        at += step
    return texts, detokenizer.flush()


def test_no_half_character_ever(small):
    ids = small.encode("👍🏽 ü")
    detokenizer = IncrementalDetokenizer(small)
    texts = [detokenizer.add([token_id]) for token_id in ids]
    assert texts == ["", "", "", "👍", "", "", "", "🏽", " ", "", "ü"]
    assert detokenizer.flush() == ""


def test_stream_that_ends_inside_a_character(small):
    ids = small.encode("a🙂")[:-1]
    detokenizer = IncrementalDetokenizer(small)
    assert detokenizer.add(ids) == "a"
    assert detokenizer.flush() == "\ufffd" and detokenizer.flush() == ""
    assert small.decode(ids) == "a\ufffd"


@pytest.mark.parametrize("text", TRICKY)
def test_pieces_add_up(small, text):
    for seed in range(5):
        for skip in (True, False):
            ids = small.encode(text)
            texts, rest = pieces(small, ids, random.Random(seed), skip)
            assert "".join(texts) + rest == small.decode(ids, skip_special_tokens=skip)
            assert "\ufffd" not in "".join(texts) and rest == ""


@given(ids=st.lists(st.integers(0, 270), max_size=40), seed=st.integers(0, 1000), skip=st.booleans())
def test_pieces_of_any_ids_add_up(small, ids, seed, skip):
    # Random ids are mostly broken UTF-8, and ids from 261 on have no token.
    texts, rest = pieces(small, ids, random.Random(seed), skip)
    assert "".join(texts) + rest == small.decode(ids, skip_special_tokens=skip)


@pytest.mark.model
def test_pieces_of_random_real_tokens_add_up(smollm2):
    tokenizer, rng = smollm2.tokenizer, random.Random(0)
    for _ in range(1500):
        ids = [rng.randrange(rng.choice((20, 300, tokenizer.vocab_size))) for _ in range(rng.randrange(1, 12))]
        for skip in (True, False):
            texts, rest = pieces(tokenizer, ids, rng, skip)
            assert "".join(texts) + rest == tokenizer.decode(ids, skip_special_tokens=skip)
