"""The text of one answer as its tokens come. Knows detokenizer and stop texts; knows no request. Chapter 14."""

from collections.abc import Sequence

from mini_vllm.engine.stop_strings import StopStringFinder
from mini_vllm.sampling_params import SamplingParams
from mini_vllm.tokenization.detokenizer import IncrementalDetokenizer


class AnswerText:
    """Gives out whole characters only, and nothing of a stop text.

    token ids -> IncrementalDetokenizer -> StopStringFinder -> text
                 holds half characters     holds what may become a stop text
    """

    def __init__(self, tokenizer, params: SamplingParams) -> None:
        self._detokenizer = IncrementalDetokenizer(tokenizer)
        self._finder = StopStringFinder(params.stop, params.include_stop_str_in_output)
        self._min_tokens = params.min_tokens
        self._num_tokens = 0

    @property
    def stopped_by(self) -> str | None:
        return self._finder.found

    def add(self, token_ids: Sequence[int]) -> tuple[str, int]:
        """The text that these tokens make final, and how many of them belong to the answer: none after a stop text."""
        text = ""
        for count, token_id in enumerate(token_ids, 1):
            piece = self._detokenizer.add([token_id])
            self._num_tokens += 1
            # As in vLLM, a stop text does not count as long as min_tokens holds.
            text += self._finder.add(piece) if self._num_tokens > self._min_tokens else piece
            if self._finder.found is not None:
                return text, count
        return text, len(token_ids)

    def rest(self) -> str:
        """At the end: what only might have become a stop text. Half a character stays out, as in vLLM."""
        return self._finder.flush()
