"""What a request must come to: its tokens, and what the KV slots of each position hold. Knows no schedule.

The stand-in for a model is a pure function: the value in a slot depends on every token before it (with a sliding
window: on those that two layers can see), and the next token on all the values that the last position can see. So a
block given twice, a lost recompute or a wrong position ends in a wrong token.
"""

import zlib
from functools import cache

from mini_vllm.config import SchedulerConfig
from mini_vllm.core.prefix_cache import block_hash, root_hash
from mini_vllm.request import Request
from tests.core.soak.broken import need


def slot_value(before: int, token: int) -> int:
    """What a model would leave in the KV slot of a token: it depends on everything before."""
    return (before * 1_000_003 + token * 7_919 + 12_345) & 0xFFFFFFFFFFF


def next_token(values: list[int], alphabet: int) -> int:
    """The next token, from all the KV that the last position can see."""
    return (hash(tuple(values)) >> 7) % alphabet


@cache
def tag(salt: str | None, adapter: str | None) -> int:
    """KV of another adapter is other KV. Of another salt it is the same, and shared all the same it is a leak."""
    return zlib.crc32(repr((salt, adapter)).encode())


class Truth:
    """One request alone on an endless machine: its tokens, its slot values and the names of its full blocks."""

    def __init__(self, request: Request, config: SchedulerConfig, alphabet: int, names: dict):
        self.alphabet, self.window, self.block_size = alphabet, config.sliding_window, config.block_size
        self.tag = tag(request.cache_salt, request.adapter)
        self.tokens = list(request.prompt_token_ids)
        self.values: list[int] = []  # per position; with a window the shallow layer
        self.deep: list[int] = []  # with a window: what a second layer makes of the first
        self.chain = [root_hash(request.cache_salt, request.adapter)]
        self.names = names
        num_prompt = len(self.tokens)
        params = request.sampling_params
        stops = set(params.stop_token_ids)
        if request.eos_token_id is not None and not params.ignore_eos:
            stops.add(request.eos_token_id)
        while True:
            self._extend()
            num_tokens = len(self.tokens)
            if self.tokens[-1] in stops:
                self.reason = "stop"
                break
            if num_tokens >= config.max_model_len or num_tokens - num_prompt >= params.max_tokens:
                self.reason = "length"
                break
        self.output = self.tokens[num_prompt:]
        self.num_prompt = num_prompt
        for _ in range(config.num_speculative_tokens + 4):  # drafts and steps under way look beyond the end
            self._extend()

    def _extend(self) -> None:
        """KV for all tokens, and one token more."""
        tokens, values, deep, window = self.tokens, self.values, self.deep, self.window
        for position in range(len(values), len(tokens)):
            if window is None:
                values.append(slot_value(values[-1] if values else self.tag, tokens[position]))
            else:
                values.append(slot_value(self.tag, tokens[position]))
                deep.append(hash(tuple(values[max(0, position - window + 1) :])))
            if (position + 1) % self.block_size == 0:
                first = position + 1 - self.block_size
                self.chain.append(block_hash(self.chain[-1], tokens[first : position + 1]))
                content = (values[first:], deep[first:])
                known = self.names.setdefault(self.chain[-1], content)
                need(known == content, "two contents, one name", known, content)
        seen = values if window is None else deep[-window:]
        tokens.append(next_token(seen, self.alphabet))
