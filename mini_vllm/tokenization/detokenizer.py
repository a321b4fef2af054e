"""Text of a stream of tokens, as soon as it is final. Knows UTF-8; knows no request. Chapter 14."""

import codecs
from collections.abc import Iterable

from mini_vllm.tokenization.tokenizer import Tokenizer


class IncrementalDetokenizer:
    """Turns token ids into text piece by piece; a character is given out whole or not at all.

    One token may end in the middle of a character (an emoji is up to four tokens). Its bytes wait here for
    the rest. All pieces together, `flush()` included, equal `tokenizer.decode` of all ids.
    """

    def __init__(self, tokenizer: Tokenizer, *, skip_special_tokens: bool = True) -> None:
        self._tokenizer = tokenizer
        self._skip_special_tokens = skip_special_tokens
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def add(self, ids: Iterable[int]) -> str:
        """The text that these ids make final; may be empty."""
        tokenizer = self._tokenizer
        if self._skip_special_tokens:
            ids = (token_id for token_id in ids if not tokenizer.is_special(token_id))
        return self._decoder.decode(b"".join(map(tokenizer.token_bytes, ids)))

    def flush(self) -> str:
        """What is left at the end: U+FFFD if a character never got its last bytes, else nothing."""
        rest = self._decoder.decode(b"", final=True)
        self._decoder.reset()
        return rest
