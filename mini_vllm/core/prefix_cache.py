"""Names for the content of KV blocks: a hash chain over the whole prefix. Knows tokens; knows no pool. Chapter 7."""

import functools
import hashlib
import struct
from collections.abc import Callable

from mini_vllm.request import Request


def block_hash(parent: bytes, token_ids: list[int]) -> bytes:
    """Name of a full block, given the name of the block before it.

    KV at a position depends on *all* tokens before it, so the name must too: equal blocks after different prefixes
    get different names. SHA-256 over fixed-width ids: two prefixes that share a name would be a SHA-256 collision, so
    no request can be shown another's KV by accident, nor on purpose.
    """
    return hashlib.sha256(parent + _packer(len(token_ids))(*token_ids)).digest()


@functools.cache
def _packer(num_tokens: int) -> Callable[..., bytes]:
    """Eight bytes a token, the same on every machine; `Request` sees to it that they are enough."""
    return struct.Struct(f"<{num_tokens}Q").pack


def root_hash(cache_salt: str | None, adapter: str | None) -> bytes:
    """Where a request's chain starts. Requests share blocks only within the same salt and the same adapter.

    Each part carries its length, so that ("ab", "c") and ("a", "bc") differ; None differs from "".
    """
    # surrogatepass: a salt comes from outside, and half an emoji in it must not stop the whole engine.
    names = [None if part is None else part.encode(errors="surrogatepass") for part in (cache_salt, adapter)]
    return hashlib.sha256(b"/".join(b"-" if n is None else b"%d:%b" % (len(n), n) for n in names)).digest()


def extend_hashes(request: Request, block_size: int, num_blocks: int) -> list[bytes]:
    """The request's chain, made at least `num_blocks` long; all those blocks are full of known tokens."""
    hashes = request.block_hashes
    while len(hashes) < num_blocks:
        start = len(hashes) * block_size
        parent = hashes[-1] if hashes else root_hash(request.cache_salt, request.adapter)
        hashes.append(block_hash(parent, request.token_ids[start : start + block_size]))
    return hashes
