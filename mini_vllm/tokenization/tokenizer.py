"""Text to token ids and back, for byte-level BPE. Knows the vocabulary; no chat and no model. Chapter 14."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from mini_vllm.errors import CorruptModelFileError, MissingDependencyError

try:
    import tokenizers
    from tokenizers import decoders, models, normalizers, pre_tokenizers
except ImportError as error:
    raise MissingDependencyError("the tokenizer needs the package `tokenizers`: pip install tokenizers") from error

_CONTROL, _USER_DEFINED = 3, 4  # GGUF's token types that are matched as a whole, never split
_SPECIAL_IDS = {
    "bos_token": "tokenizer.ggml.bos_token_id",
    "eos_token": "tokenizer.ggml.eos_token_id",
    "unk_token": "tokenizer.ggml.unknown_token_id",
    "pad_token": "tokenizer.ggml.padding_token_id",
}


class Tokenizer:
    """Byte-level BPE: every text has token ids, every list of ids has a text.

    eos_token_id, bos_token_id: int, or None where the model has none. vocab_size: ids run from 0 below it.
    """

    def __init__(self, backend: "tokenizers.Tokenizer", settings: Mapping[str, Any]) -> None:
        self._backend = backend
        if not isinstance(backend.decoder, decoders.ByteLevel):
            raise CorruptModelFileError(
                f"the tokenizer decodes with {backend.decoder}; only byte-level BPE is supported"
            )
        # The same merges without the special tokens: here "<|im_end|>" is ten ordinary characters.
        self._plain = tokenizers.Tokenizer(backend.model)
        self._plain.pre_tokenizer, self._plain.normalizer = backend.pre_tokenizer, backend.normalizer
        # The hub stores a special token as a text, or as an object that holds it.
        self.settings = {k: v.get("content") if _is_token(v) else v for k, v in settings.items()}
        added = backend.get_added_tokens_decoder()
        self.special_tokens: dict[str, int] = {token.content: id for id, token in added.items() if token.special}
        self.bos_token_id = self._id_of("bos_token")
        self.eos_token_id = self._id_of("eos_token")
        # Where no setting tells, the rule is in the post-processor: it puts the token before an empty text, too.
        begins = backend.encode("", add_special_tokens=True).ids[:1] == [self.bos_token_id]
        self.add_bos_token = bool(settings.get("add_bos_token", begins))
        self.vocab_size: int = backend.get_vocab_size(with_added_tokens=True)
        self._special_ids = frozenset(self.special_tokens.values())
        self._token_bytes: dict[int, bytes] = {}

    def encode(self, text: str, *, add_special_tokens: bool = True, split_special_tokens: bool = False) -> list[int]:
        """Token ids of `text`; an empty text has none.

        add_special_tokens: put the begin token in front, if this model wants one (SmolLM2 does not).
        split_special_tokens: treat "<|im_end|>" and its like as ordinary characters. Use it for text that a
        user wrote; ChatTemplate.encode does.
        """
        backend = self._plain if split_special_tokens else self._backend
        try:
            ids = backend.encode(text, add_special_tokens=False).ids
        except TypeError:  # half a surrogate pair, as JSON can carry it: no UTF-8 exists for it
            if not isinstance(text, str):
                raise
            whole = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
            ids = backend.encode(whole, add_special_tokens=False).ids
        if add_special_tokens and self.add_bos_token and self.bos_token_id is not None:
            return [self.bos_token_id, *ids]
        return ids

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Text of `ids`. Bytes that are not UTF-8 become U+FFFD; ids without a token become nothing."""
        return self._backend.decode(list(ids), skip_special_tokens=skip_special_tokens)

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes that this token adds to a text; a token may hold half a character."""
        known = self._token_bytes.get(token_id)
        if known is None:
            token = self._backend.id_to_token(token_id) or ""
            if token_id in self._special_ids:
                known = token.encode()
            else:
                known = b"".join(_BYTE_OF.get(char) or char.encode() for char in token)
            self._token_bytes[token_id] = known
        return known

    def is_special(self, token_id: int) -> bool:
        """True for a token that steers the model and is no text, like "<|im_end|>"."""
        return token_id in self._special_ids

    def _id_of(self, setting: str) -> int | None:
        token = self.settings.get(setting)
        return None if token is None else self._backend.token_to_id(token)

    # --- where tokenizers come from ---

    @classmethod
    def from_gguf(cls, metadata: Mapping[str, Any]) -> "Tokenizer":
        """Build it from a GGUF file's metadata (0.2 s for 49,152 tokens). Raises CorruptModelFileError."""
        kind, split = metadata.get("tokenizer.ggml.model"), metadata.get("tokenizer.ggml.pre", "default")
        if kind != "gpt2" or split not in _PRE_TOKENIZERS:
            raise CorruptModelFileError(
                f"the file's tokenizer is {kind!r} with splitting rule {split!r}; "
                f"supported are 'gpt2' with {', '.join(map(repr, _PRE_TOKENIZERS))}"
            )
        tokens = _list_of_strings(metadata, "tokenizer.ggml.tokens")
        merges = [merge.partition(" ")[::2] for merge in _list_of_strings(metadata, "tokenizer.ggml.merges")]
        vocab = {token: id for id, token in enumerate(tokens)}
        try:
            backend = tokenizers.Tokenizer(models.BPE(vocab=vocab, merges=merges))
        except Exception as error:  # the library raises plain Exception
            raise CorruptModelFileError(f"vocabulary and merges do not fit together: {error}") from error
        backend.pre_tokenizer = _PRE_TOKENIZERS[split]()
        if split == "qwen2":
            backend.normalizer = normalizers.NFC()
        backend.decoder = decoders.ByteLevel()
        types = metadata.get("tokenizer.ggml.token_type") or []
        added = zip(tokens, types, strict=False)
        backend.add_tokens(
            [
                tokenizers.AddedToken(token, special=kind == _CONTROL, normalized=False)
                for token, kind in added
                if kind in (_CONTROL, _USER_DEFINED)
            ]
        )
        settings: dict[str, Any] = {
            "tokenizer_class": "PreTrainedTokenizerFast",  # so that transformers can read the folder
            "add_bos_token": bool(metadata.get("tokenizer.ggml.add_bos_token", False)),
        }
        for name, key in _SPECIAL_IDS.items():
            token_id = metadata.get(key)
            if isinstance(token_id, int) and 0 <= token_id < len(tokens):
                settings[name] = tokens[token_id]
        return cls(backend, settings)

    @classmethod
    def from_folder(cls, folder: Path) -> "Tokenizer":
        """Read tokenizer.json and tokenizer_config.json (the layout of Hugging Face's hub).

        Raises FileNotFoundError when one is missing, CorruptModelFileError when one cannot be read.
        """
        settings_file, tokenizer_file = folder / "tokenizer_config.json", folder / "tokenizer.json"
        try:
            settings = json.loads(settings_file.read_text(encoding="utf-8"))
            backend = tokenizers.Tokenizer.from_buffer(tokenizer_file.read_bytes())
            return cls(backend, settings)
        except FileNotFoundError:
            raise
        except CorruptModelFileError:
            raise
        except Exception as error:  # the library raises plain Exception
            raise CorruptModelFileError(f"the tokenizer files in {folder} cannot be read: {error}") from error

    def file_texts(self) -> dict[str, str]:
        """File name → text, as `from_folder` reads them."""
        return {
            "tokenizer.json": self._backend.to_str(),
            "tokenizer_config.json": json.dumps(self.settings, indent=2) + "\n",
        }


def _is_token(value: Any) -> bool:
    return isinstance(value, dict) and isinstance(value.get("content"), str)


def _list_of_strings(metadata: Mapping[str, Any], key: str) -> list[str]:
    value = metadata.get(key)
    if not isinstance(value, list) or not value or not isinstance(value[0], str):
        raise CorruptModelFileError(f"GGUF metadata {key} is not a list of strings")
    return value


def _smollm() -> pre_tokenizers.PreTokenizer:
    # Each digit stands alone: "2024" is four tokens, so arithmetic sees places. Transformers' GGUF import
    # ignores this rule and gives other ids for some texts with digits; compare engines on ids, not on text.
    digits = pre_tokenizers.Digits(individual_digits=True)
    return pre_tokenizers.Sequence([digits, pre_tokenizers.ByteLevel(add_prefix_space=False)])


def _gpt2() -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.ByteLevel(add_prefix_space=False)


def _by_words(digits_together: str) -> Callable[[], pre_tokenizers.PreTokenizer]:
    """Llama 3's rule: contractions, words with the one sign before them, runs of digits, signs, whitespace."""
    pattern = (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
        + digits_together
        + r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    )

    def build() -> pre_tokenizers.PreTokenizer:
        words = pre_tokenizers.Split(tokenizers.Regex(pattern), behavior="isolated")
        as_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        return pre_tokenizers.Sequence([words, as_bytes])

    return build


_PRE_TOKENIZERS = {
    "smollm": _smollm,
    "gpt-2": _gpt2,
    "default": _gpt2,
    "llama-bpe": _by_words("{1,3}"),
    "qwen2": _by_words(""),
}


def _byte_alphabet() -> Iterable[tuple[str, bytes]]:
    """GPT-2's alphabet: printable bytes stand for themselves, the other 68 for characters from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    yield from ((chr(byte), bytes([byte])) for byte in printable)
    yield from ((chr(0x100 + index), bytes([byte])) for index, byte in enumerate(others))


_BYTE_OF = dict(_byte_alphabet())
