"""A request of known length, as a simulation is given it. Knows sizes and a time, no scheduler. Chapters 1 to 12."""

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Integral

from mini_vllm.errors import InvalidRequestError


@dataclass(frozen=True)
class SimRequest:
    """A request of known length: it will emit exactly `max_tokens` tokens. priority: smaller is served first.

    prefix: token ids that its prompt begins with, where others begin so too (chapter 7); the rest nobody else has.
    """

    request_id: str
    prompt_len: int
    max_tokens: int
    arrival_step: int = 0
    priority: int = 0
    prefix: Sequence[int] = ()

    def __post_init__(self) -> None:
        for name in ("prompt_len", "arrival_step"):
            if not isinstance(value := getattr(self, name), Integral) or value < 0:
                what = f"request {self.request_id!r} has {name}={value!r}"
                raise InvalidRequestError(f"{what}; give a whole number of at least 0")

    def prompt_token_ids(self) -> list[int]:
        """Behind its prefix, ids that no other request has: caching finds nothing that was not meant to be shared."""
        own = [zlib.crc32(self.request_id.encode()), *range(self.prompt_len)]
        return [*self.prefix, *own][: self.prompt_len]
