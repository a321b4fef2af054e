"""What every attention backend gets and gives. Knows shapes; computes nothing. Chapters 13 and 14."""

from dataclasses import dataclass, field
from typing import Any, Protocol

import torch


@dataclass
class AttentionMetadata:
    """How the rows of one ragged batch belong to requests and where their KV lies.

    With T tokens of R requests in the step, laid out one request after the other:

        rows       [ r0 r0 r0 | r1 | r2 r2 ]
        query_start_loc  0      3    4     6

    query_start_loc: [R + 1] int32; the rows of request i are query_start_loc[i] : query_start_loc[i + 1].
    seq_lens: [R] int32; tokens of each request whose KV exists after this step (history and this step's rows).
    block_table: [R, max_blocks] int32; the blocks of each request's `seq_lens` tokens, behind them any block ids.
    slot_mapping: [T] int64; block_id * block_size + offset of each row's token.
    scratch: what a backend prepares once a step and uses in every layer.
    query_lens, context_lens: [R], rows of each request and `seq_lens`, on the host: nobody should wait for a GPU to
        learn what the host told it. They are read back from the tensors where they are not given.

    The tensors lie on the device. Padding, for backends with `supports_cuda_graphs` only: a request of seq_len 0 with
    one row of slot -1 stores nothing, and its output is 0.
    """

    query_start_loc: torch.Tensor
    seq_lens: torch.Tensor
    block_table: torch.Tensor
    slot_mapping: torch.Tensor
    max_query_len: int
    max_seq_len: int
    scratch: dict[str, Any] = field(default_factory=dict)
    query_lens: list[int] = field(default_factory=list)
    context_lens: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        if not self.query_lens:
            self.query_lens = self.query_start_loc.diff().tolist()
        if not self.context_lens:
            self.context_lens = self.seq_lens.tolist()


class AttentionBackend(Protocol):
    """supports_cuda_graphs: `forward` takes padded requests, and launches for a batch of decodes depend on nothing but
    its size; False where a backend does not say so."""

    def forward(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, kv_cache: torch.Tensor, meta: AttentionMetadata
    ) -> torch.Tensor:
        """Store K and V in the cache, then attend.

        q: [T, num_heads, head_dim]; k, v: [T, num_kv_heads, head_dim]. The last dimension is contiguous.
        kv_cache: [2, num_blocks, block_size, num_kv_heads, head_dim] of one layer; [0] holds K, [1] holds V.
        Returns [T, num_heads, head_dim].

        On a CPU q, k and v may have more rows than `slot_mapping`: those are nobody's (see `models.packed`), are stored
        nowhere, and what comes out for them is not looked at.
        """
        ...
