"""Paged attention by our Triton kernels, on a GPU or in the interpreter. Knows which kernel takes whom. Chapter 13.

    query tokens of a request    1                         2 to 8 (drafts, short pieces)    more
    kernel                       decode                    decode, packed                   prefill
                                 each context whole, or in splits that are merged

What `kernels.tiles` routes away on a card goes to torch's attention instead.
"""

from dataclasses import dataclass
from itertools import accumulate

import torch

from mini_vllm.engine.attention.backend import AttentionMetadata
from mini_vllm.engine.attention.torch import TorchPagedAttention
from mini_vllm.engine.device import to_device
from mini_vllm.errors import ConfigError
from mini_vllm.kernels import tiles
from mini_vllm.kernels.kv_store import store_kv
from mini_vllm.kernels.mode import interpreting
from mini_vllm.kernels.paged_decode import LARGEST_QUERY_LEN, paged_decode
from mini_vllm.kernels.paged_prefill import paged_prefill, plan_tiles
from mini_vllm.kernels.split_kv import Workspace, num_splits, paged_decode_split, workspace_shape
from mini_vllm.kernels.tiles import DecodeTile, PrefillTile, Routed

DTYPES = ("float16", "bfloat16", "float32")
DECODE_WIDTHS = (1, 2, 4, LARGEST_QUERY_LEN)  # few, because each is compiled by itself
_PREFILL, _TORCH = 0, -1  # beside the widths: who else may take a request


@dataclass
class _Decode:
    """One launch for these requests, each with at most `width` rows. workspace: None if contexts are not split."""

    requests: torch.Tensor  # [B] int32
    width: int
    tile: DecodeTile
    splits: int
    workspace: Workspace | None


class TritonPagedAttention:
    """num_heads, num_kv_heads, head_dim, dtype: of the model; device: where its tensors are.

    sliding_window: a token sees itself and the `sliding_window` - 1 before it; None is all.
    Raises ConfigError for a dtype that no kernel takes.
    """

    def __init__(
        self,
        num_heads: int,
        num_kv_heads: int,
        head_dim: int,
        dtype: torch.dtype,
        device: str | torch.device = "cuda",
        sliding_window: int | None = None,
    ) -> None:
        dtype_name = str(dtype).removeprefix("torch.")
        if dtype_name not in DTYPES:
            raise ConfigError(
                f"attention_backend='triton' has no kernel for {dtype_name}, only for {', '.join(DTYPES)}; "
                "take one of them, or attention_backend='torch'"
            )
        self.num_heads, self.num_kv_heads, self.head_dim = num_heads, num_kv_heads, head_dim
        self.group = num_heads // num_kv_heads
        self.device, self.sliding_window = torch.device(device), sliding_window
        self.torch = TorchPagedAttention(sliding_window)
        self.num_sms = 1
        self.decode_tiles: dict[int, DecodeTile | Routed]  # by width
        self.prefill_tile: PrefillTile | Routed
        if interpreting():
            self.decode_tiles = dict.fromkeys(DECODE_WIDTHS, tiles.INTERPRETER_DECODE)
            self.prefill_tile = tiles.INTERPRETER_PREFILL
        else:
            card = tiles.card_of(self.device)
            self.num_sms = card.num_sms
            shape = (card, head_dim, self.group, dtype_name)
            self.decode_tiles = {width: tiles.decode_tile(*shape, width) for width in DECODE_WIDTHS}
            self.prefill_tile = tiles.prefill_tile(*shape)
        self._numbers = torch.zeros(0, dtype=torch.int32)

    @property
    def routed(self) -> dict[str, str]:
        """What goes to torch's attention on this card, and why; empty where the kernels take everything."""
        if not isinstance(self.prefill_tile, Routed):
            return {}
        decodes = {f"decode of up to {n} tokens": tile for n, tile in self.decode_tiles.items()}
        served = {**decodes, "prefill": self.prefill_tile}
        return {what: tile.reason for what, tile in served.items() if isinstance(tile, Routed)}

    @property
    def supports_cuda_graphs(self) -> bool:
        return isinstance(self.decode_tiles[1], DecodeTile)

    def forward(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, kv_cache: torch.Tensor, meta: AttentionMetadata
    ) -> torch.Tensor:
        """See `AttentionBackend.forward`."""
        owned = len(meta.slot_mapping)
        store_kv(k[:owned], v[:owned], kv_cache, meta.slot_mapping)
        if not meta.scratch:
            self._plan(meta)
        out = torch.empty_like(q, memory_format=torch.contiguous_format)
        inputs = (out, q, kv_cache, meta.query_start_loc, meta.seq_lens, meta.block_table)
        window = self.sliding_window
        for mine in meta.scratch["decodes"]:
            if mine.workspace is None:
                paged_decode(*inputs, mine.requests, max_query_len=mine.width, sliding_window=window, tile=mine.tile)
            else:
                paged_decode_split(
                    *inputs,
                    mine.requests,
                    num_splits=mine.splits,
                    workspace=mine.workspace,
                    max_query_len=mine.width,
                    sliding_window=window,
                    tile=mine.tile,
                )
        if (tiles_of_step := meta.scratch["prefill"]) is not None:
            assert isinstance(self.prefill_tile, PrefillTile)
            paged_prefill(*inputs, tiles_of_step, sliding_window=window, tile=self.prefill_tile)
        if (routed := meta.scratch["torch"]) is not None:
            rows, part = routed
            out[rows] = self.torch.forward(q[rows], k[rows], v[rows], kv_cache, part)  # stores the same KV once more
        return out

    def _plan(self, meta: AttentionMetadata) -> None:
        """Sort the step's requests by kernel; once a step, from what the host knows."""
        short = max((n for n in meta.query_lens if n <= LARGEST_QUERY_LEN), default=1)
        widest = next(width for width in DECODE_WIDTHS if width >= short)
        taken_by: dict[int, list[int]] = {}
        for request, n in enumerate(meta.query_lens):
            if n:
                taken_by.setdefault(self._kernel_for(n, widest), []).append(request)

        prefills, routed = taken_by.pop(_PREFILL, []), taken_by.pop(_TORCH, [])
        meta.scratch = {
            "decodes": [self._decode(meta, width, requests) for width, requests in taken_by.items()],
            "prefill": None,
            "torch": _part(meta, routed) if routed else None,
        }
        if prefills and isinstance(self.prefill_tile, PrefillTile):
            block_m = self.prefill_tile.block_m
            meta.scratch["prefill"] = plan_tiles(meta.query_lens, prefills, self.group, block_m, self.device)

    def _kernel_for(self, query_len: int, widest: int) -> int:
        """The width of a decode launch, `_PREFILL` or `_TORCH`."""
        width = 1 if query_len == 1 else widest
        if query_len <= LARGEST_QUERY_LEN and isinstance(self.decode_tiles[width], DecodeTile):
            return width
        return _PREFILL if isinstance(self.prefill_tile, PrefillTile) else _TORCH

    def _decode(self, meta: AttentionMetadata, width: int, requests: list[int]) -> _Decode:
        longest = max(meta.context_lens[request] for request in requests)
        in_sight = min(longest, self.sliding_window or longest)
        splits = num_splits(self.num_sms, len(requests), self.num_kv_heads, in_sight)
        workspace, tile = None, self.decode_tiles[width]
        assert isinstance(tile, DecodeTile)
        if splits > 1:
            shape = workspace_shape(len(requests), self.num_heads, self.num_kv_heads, self.head_dim, splits, width)
            workspace = Workspace.empty(shape, self.device)
        return _Decode(self._as_tensor(requests), width, tile, splits, workspace)

    def _as_tensor(self, requests: list[int]) -> torch.Tensor:
        """[B] int32 on the device; without a copy where they are the first of the batch, as in a step of decodes."""
        if requests != list(range(len(requests))):
            return to_device(requests, self.device, torch.int32)
        if len(requests) > len(self._numbers):
            self._numbers = torch.arange(2 * len(requests), dtype=torch.int32, device=self.device)
        return self._numbers[: len(requests)]


def _part(meta: AttentionMetadata, requests: list[int]) -> tuple[torch.Tensor, AttentionMetadata]:
    """The rows of these requests, and what the step is without the others."""
    device = meta.seq_lens.device
    starts = [0, *accumulate(meta.query_lens)]
    rows = to_device([row for i in requests for row in range(starts[i], starts[i + 1])], device)
    chosen = to_device(requests, device)
    query_lens, context_lens = [meta.query_lens[i] for i in requests], [meta.context_lens[i] for i in requests]
    part = AttentionMetadata(
        to_device([0, *accumulate(query_lens)], device, torch.int32),
        meta.seq_lens[chosen],
        meta.block_table[chosen],
        meta.slot_mapping[rows],
        max(query_lens),
        max(context_lens),
        query_lens=query_lens,
        context_lens=context_lens,
    )
    return rows, part
