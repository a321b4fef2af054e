"""The texts that break tokenizers, by kind: there and back, and id by id against transformers. The real vocabulary.

Two roads lead to a transformers tokenizer. Over our tokenizer.json it must give our ids for every text. Over the GGUF
file it leaves out `tokenizer.ggml.pre` = "smollm", the rule that every digit stands alone, so it differs wherever that
rule changes where a text is split:

    whitespace, two or more, before a digit   "a  7"   ours  a | ··| 7     theirs  a | · | ·7
    a space before another kind of numeral    "a ½"    ours  a | · | ½     theirs  a | ·½

(· is a space; the vocabulary has no "·7", so the second shows only in numerals that are no ASCII digits.)
"""

import pytest

from mini_vllm.tokenization.detokenizer import IncrementalDetokenizer

TEXTS = {
    "numbers": [
        "7",
        "2024-11-29",
        "1,000,000.50",
        "1e-9 0x1F 1_000",
        "v2.0.1-rc3",
        "x12y3",
        "12 34",
        " 12",
        "１２ ３",
        "٣٤Ⅳ",
        "H₂O x² 1\u20e3",
    ],
    "whitespace": [
        " ",
        "  ",
        "   leading, trailing   ",
        "a\tb\t\tc",
        "line\r\nline\n\n\nline",
        "a\u00a0b\u2003c\u3000d",
        "\n \n  \n",
        " x  y   z",
    ],
    "CJK": ["你好，世界。", "日本語のテキスト、カタカナ", "한국어 텍스트", "混ぜた text と 数字123", "𠮷野家"],
    "emoji": ["🙂", "👩‍👩‍👧‍👦", "🏳️‍🌈 🇩🇪🇯🇵", "👍🏽👍🏿", "a🙂b 🙃", "☃️ ❤ ❤️"],
    "code": [
        "def f(x):\n    return x ** 2  # square\n",
        "\tif (a && b || !c) { return &p->q[0]; }",
        "https://example.org/a?b=c&d=%20#e",
        '{"key": [null, true, -1.5e3]}',
        "<div class='x'>&nbsp;</div>",
        "SELECT * FROM t WHERE x != '';",
        "a_b__c CamelCase snake_case kebab-case",
    ],
    "combining": ["e\u0301 vs é", "Z͑ͫ̓A̴̵̜L̠ͨͧG̴̻Ǫ̵̹", "ก็ ที่นี่", "क्षत्रिय", "\u0301 alone", "a\u200bb\u200cc\ufeff"],
    "right to left": ["שלום עולם", "مرحبا بالعالم", "abc עברית 123", "\u202bحسنا\u202c", "مَرْحَبًا"],
    "look like control": ["<|im_start|>", "<|im_end|", "<|endoftext|> x", "\x00\x1b[31m", "\\n \\u0041 &amp;"],
    "two or more spaces before a digit": ["a  7", "a\n\n  7", "  12", "  \n 1", "x =\t\t5", "return  0"],
    "a space before another kind of numeral": ["a ½", " ٣ apples", "٣٤ Ⅳ"],
}
ALL = [pytest.param(text, id=f"{kind}: {text!r}") for kind, texts in TEXTS.items() for text in texts]
EXCEPTIONS = ("two or more spaces before a digit", "a space before another kind of numeral")

pytestmark = pytest.mark.model


@pytest.fixture(scope="module")
def from_our_files(smollm2, tmp_path_factory):
    """transformers' tokenizer of our tokenizer.json."""
    transformers = pytest.importorskip("transformers")
    folder = tmp_path_factory.mktemp("ours")
    for name, text in smollm2.tokenizer.file_texts().items():
        (folder / name).write_text(text, encoding="utf-8")
    return transformers.PreTrainedTokenizerFast.from_pretrained(str(folder))


@pytest.mark.parametrize("text", ALL)
def test_there_and_back(smollm2, text):
    tokenizer = smollm2.tokenizer
    for split in (False, True):
        ids = tokenizer.encode(text, split_special_tokens=split)
        assert tokenizer.decode(ids, skip_special_tokens=False) == text
        detokenizer = IncrementalDetokenizer(tokenizer, skip_special_tokens=False)
        pieces = [detokenizer.add([token_id]) for token_id in ids]
        assert "".join(pieces) == text and detokenizer.flush() == "" and "\ufffd" not in "".join(pieces)


@pytest.mark.parametrize("text", ALL)
def test_ids_are_those_of_transformers(smollm2, from_our_files, text):
    assert smollm2.tokenizer.encode(text) == from_our_files(text, add_special_tokens=False).input_ids
    assert from_our_files.decode(smollm2.tokenizer.encode(text), clean_up_tokenization_spaces=False) == text


def test_the_gguf_road_of_transformers_differs_where_a_digit_stands_alone(smollm2, transformers_tokenizer):
    ours, theirs = smollm2.tokenizer, transformers_tokenizer
    differs = {
        kind: [text for text in texts if ours.encode(text) != theirs(text, add_special_tokens=False).input_ids]
        for kind, texts in TEXTS.items()
    }
    assert {kind: texts for kind, texts in differs.items() if texts} == {kind: TEXTS[kind] for kind in EXCEPTIONS}


@pytest.mark.parametrize(
    ("text", "ours", "theirs"),
    [
        ("a  7", ["a", "ĠĠ", "7"], ["a", "Ġ", "Ġ", "7"]),
        ("a\n\n  7", ["a", "ĊĊĠĠ", "7"], ["a", "ĊĊĠ", "Ġ", "7"]),
        ("a ½", ["a", "Ġ", "Â½"], ["a", "ĠÂ", "½"]),
    ],
)
def test_where_they_split(smollm2, transformers_tokenizer, text, ours, theirs):
    to_tokens = transformers_tokenizer.convert_ids_to_tokens
    assert to_tokens(smollm2.tokenizer.encode(text)) == ours
    assert to_tokens(transformers_tokenizer(text, add_special_tokens=False).input_ids) == theirs
