"""What one step has to compute, in counts of tokens. Knows no model and no machine. Chapter 2."""

from collections.abc import Iterable
from dataclasses import dataclass, fields

from mini_vllm.errors import ConfigError
from mini_vllm.roofline.arguments import require_whole


@dataclass(frozen=True, slots=True)
class StepWork:
    """The work of one step, summed over its sequences. A sequence has n new tokens and c computed before:

              c computed     n new
        |-----------------|=========|
        the keys and values of c are read from the KV cache, those of n written: c + n tokens of KV traffic;
        new token i looks at c + i + 1 tokens: n·c + n(n + 1)/2 query-key pairs.

    n_prefill: new tokens of prompts. n_decode: new tokens of decodes, one a sequence.
    kv_tokens: sum of c + n. attention_pairs: sum of n·c + n(n + 1)/2.
    n_seqs: sequences. n_sampled: those that get a token, for which alone the output head is computed.
    """

    n_prefill: int = 0
    n_decode: int = 0
    kv_tokens: int = 0
    attention_pairs: int = 0
    n_seqs: int = 0
    n_sampled: int = 0

    def __post_init__(self) -> None:
        for field in fields(self):
            require_whole(getattr(self, field.name), field.name)
        new = self.n_prefill + self.n_decode
        for name in ("kv_tokens", "attention_pairs"):
            if getattr(self, name) < new:
                raise ConfigError(
                    f"{name}={getattr(self, name)} is less than the {new} new tokens; each is written to the KV cache "
                    "and looks at least at itself"
                )
        if not self.n_decode <= self.n_seqs <= new:
            raise ConfigError(
                f"n_seqs={self.n_seqs} does not fit {self.n_prefill} prefill and {self.n_decode} decode tokens: a "
                "decode is a sequence, and a sequence has a token"
            )
        if self.n_sampled > self.n_seqs:
            raise ConfigError(f"n_sampled={self.n_sampled} is above n_seqs={self.n_seqs}: a sequence gets one token")

    @property
    def new_tokens(self) -> int:
        return self.n_prefill + self.n_decode

    @classmethod
    def prefill(cls, tokens: int, computed: int = 0, sampled: bool = True) -> "StepWork":
        """One prompt, or a chunk of it after `computed` tokens. `sampled`: it reaches the prompt's end."""
        require_whole(tokens, "tokens", least=1)
        require_whole(computed, "computed")
        pairs = tokens * computed + tokens * (tokens + 1) // 2
        return cls(tokens, 0, computed + tokens, pairs, 1, int(sampled))

    @classmethod
    def decode(cls, batch: int, context: int) -> "StepWork":
        """`batch` sequences, one new token each, which looks at `context` tokens, itself included."""
        require_whole(batch, "batch", least=1)
        require_whole(context, "context", least=1)
        return cls(0, batch, batch * context, batch * context, batch, batch)

    @classmethod
    def mixed(cls, parts: Iterable["StepWork"]) -> "StepWork":
        """All of `parts` in one step."""
        rows = [(p.n_prefill, p.n_decode, p.kv_tokens, p.attention_pairs, p.n_seqs, p.n_sampled) for p in parts]
        return cls(*map(sum, zip(*rows, strict=True)))
