"""The tensors of one step, in the same memory each step. Knows pieces and block tables; knows no model. Chapter 14.

Beside a GPU each array exists twice: in pinned host memory, where the step's numbers are written, and on the device,
where the copy arrives while the host goes on. On a CPU both are the same tensor.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from mini_vllm.engine.attention.backend import AttentionMetadata
from mini_vllm.engine.device import to_device
from mini_vllm.engine.request_state import UNKNOWN

PADDED_SLOT = -1  # of a row that is nobody's: its KV goes nowhere


class Buffer:
    """One array, `host` and `device`; `array` is the host's side for NumPy."""

    def __init__(self, shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> None:
        on_gpu = device.type == "cuda"
        self.host = torch.zeros(*shape, dtype=dtype, pin_memory=on_gpu)
        self.device = torch.zeros(*shape, dtype=dtype, device=device) if on_gpu else self.host
        self.array = self.host.numpy()

    def upload(self, num_rows: int) -> Tensor:
        """The first rows on the device; the copy may still be under way."""
        if self.device is not self.host:
            self.device[:num_rows].copy_(self.host[:num_rows], non_blocking=True)
        return self.device[:num_rows]


@dataclass
class StepInputs:
    """input_ids, positions: [T] int64, or longer than `meta` knows: rows that no request owns."""

    input_ids: Tensor
    positions: Tensor
    meta: AttentionMetadata


class InputBatch:
    """Block tables of all requests that the worker knows, and the inputs of the present step.

    The limits are sizes to begin with: whatever is larger makes the buffers grow, which moves them, and `version` tells
    those who hold on to an address.
    """

    def __init__(
        self,
        device: torch.device,
        block_size: int,
        *,
        max_num_batched_tokens: int = 64,
        max_num_seqs: int = 8,
        max_model_len: int = 256,
    ) -> None:
        self.device, self.block_size = device, block_size
        self.version = 0
        self._tables = np.zeros((0, 0), dtype=np.int32)  # [rows, width]: a request keeps its row
        self._num_blocks: list[int] = []  # of each row
        self._free_rows: list[int] = []
        self._num_tokens = self._num_seqs = self._width = 0
        self.sampled = torch.zeros(0, dtype=torch.int64, device=device)  # [rows]: latest token of each, see `fill`
        self._copied: torch.cuda.Event | None = None  # the latest step's numbers have left the host
        self._fit(max_num_batched_tokens, max_num_seqs, -(-max_model_len // block_size))

    def _fit(self, num_tokens: int, num_seqs: int, width: int) -> None:
        """Make room for a step of this size."""
        if num_tokens > self._num_tokens:
            self._num_tokens = max(num_tokens, 2 * self._num_tokens)
            self.input_ids, self.positions, self.slot_mapping = (self._buffer(self._num_tokens) for _ in range(3))
        if num_seqs > self._num_seqs or width > self._width:
            self._num_seqs = num_seqs if num_seqs <= self._num_seqs else max(num_seqs, 2 * self._num_seqs)
            self._width = width if width <= self._width else max(width, 2 * self._width)
            self.query_start_loc = self._buffer(self._num_seqs + 1, dtype=torch.int32)
            self.seq_lens = self._buffer(self._num_seqs, dtype=torch.int32)
            self.block_table = self._buffer(self._num_seqs, self._width, dtype=torch.int32)

    def _buffer(self, *shape: int, dtype: torch.dtype = torch.int64) -> Buffer:
        self.version += 1
        return Buffer(shape, dtype, self.device)

    # --- block tables ---

    def add_row(self, block_ids: Sequence[int]) -> int:
        """A row for a new request's block table."""
        if not self._free_rows:
            num_rows = len(self._tables)
            more = max(8, num_rows)
            self._tables = np.pad(self._tables, ((0, more), (0, 0)))
            self._num_blocks += [0] * more
            self._free_rows += range(num_rows + more - 1, num_rows - 1, -1)
            fresh = torch.zeros(more, dtype=torch.int64, device=self.device)
            self.sampled = torch.cat((self.sampled, fresh))
        row = self._free_rows.pop()
        self.append_blocks(row, block_ids)
        return row

    def append_blocks(self, row: int, block_ids: Sequence[int]) -> None:
        first = self._num_blocks[row]
        end = first + len(block_ids)
        if end > self._tables.shape[1]:
            self._tables = np.pad(self._tables, ((0, 0), (0, max(end, self._tables.shape[1]))))
        self._tables[row, first:end] = block_ids
        self._num_blocks[row] = end

    def clear_row(self, row: int) -> None:
        """An empty block table: whoever comes back from preemption gets a new one."""
        self._tables[row] = 0
        self._num_blocks[row] = 0

    def free_row(self, row: int) -> None:
        self.clear_row(row)
        self._free_rows.append(row)

    # --- the step ---

    def fill(
        self,
        token_ids: Sequence[int],
        rows: Sequence[int],
        firsts: Sequence[int],
        query_lens: Sequence[int],
        padded_to: int = 0,
        min_rows: int = 0,
    ) -> StepInputs:
        """Lay the pieces of all requests end to end.

        token_ids: of all pieces; `UNKNOWN` is what the step before samples for that request, see `sampled`.
        rows, firsts, query_lens: of each request its row, the position of its piece's first token, its length.
        padded_to: append requests that are nobody's, of one row each, up to so many; for decodes only.
        min_rows: of `input_ids` and `positions`; those that no request owns are behind all others.
        """
        if self._copied is not None:
            self._copied.synchronize()  # a copy reads the host's side when its turn comes, not when it is asked for
        num_live, live_tokens = len(rows), len(token_ids)
        num_padded = max(0, padded_to - num_live)
        num_seqs, num_tokens = num_live + num_padded, live_tokens + num_padded
        lens = np.fromiter(query_lens, np.int64, num_live)
        first_positions = np.fromiter(firsts, np.int64, num_live)
        ends = first_positions + lens
        max_seq_len = int(ends.max(initial=0))
        width = -(-max_seq_len // self.block_size)
        num_rows = max(num_tokens, min_rows)
        self._fit(num_rows, num_seqs, width)

        query_start_loc = self.query_start_loc.array[: num_seqs + 1]
        query_start_loc[0] = 0
        np.cumsum(lens, out=query_start_loc[1 : num_live + 1])
        query_start_loc[num_live + 1 :] = np.arange(live_tokens + 1, num_tokens + 1)
        self.seq_lens.array[:num_live] = ends
        self.block_table.array[:num_live, :width] = self._tables[rows, :width]

        row_of_token = np.repeat(np.fromiter(rows, np.int64, num_live), lens)
        positions = np.arange(live_tokens) + np.repeat(first_positions - query_start_loc[:num_live], lens)
        blocks = self._tables[row_of_token, positions // self.block_size].astype(np.int64)
        self.input_ids.array[:live_tokens] = token_ids
        self.positions.array[:live_tokens] = positions
        self.slot_mapping.array[:live_tokens] = blocks * self.block_size + positions % self.block_size
        unknown = np.flatnonzero(self.input_ids.array[:live_tokens] == UNKNOWN)

        self.input_ids.array[live_tokens:num_rows] = 0
        self.positions.array[live_tokens:num_rows] = 0
        if num_padded:
            self.seq_lens.array[num_live:num_seqs] = 0
            self.slot_mapping.array[live_tokens:num_tokens] = PADDED_SLOT
        input_ids = self.input_ids.upload(num_rows)
        meta = AttentionMetadata(
            query_start_loc=self.query_start_loc.upload(num_seqs + 1),
            seq_lens=self.seq_lens.upload(num_seqs),
            block_table=self.block_table.upload(num_seqs),
            slot_mapping=self.slot_mapping.upload(num_tokens),
            max_query_len=int(lens.max(initial=1)),
            max_seq_len=max_seq_len,
            query_lens=[*query_lens, *[1] * num_padded],
            context_lens=[*ends.tolist(), *[0] * num_padded],
        )
        inputs = StepInputs(input_ids, self.positions.upload(num_rows), meta)
        if len(unknown):
            taken = self.sampled[to_device(row_of_token[unknown], self.device)]
            input_ids.index_copy_(0, to_device(unknown, self.device), taken)
        if self.device.type == "cuda":
            self._copied = torch.cuda.Event()
            self._copied.record()
        return inputs
