"""Turns GGUF's stored blocks into plain numbers. Knows block layouts; no file and no model. Chapter 14."""

from collections.abc import Callable
from dataclasses import dataclass

import torch

_BLOCK = 32  # weights per block in every format below that has blocks


@dataclass(frozen=True)
class StorageType:
    """One way to store weights: `block_bytes` bytes hold `block_size` weights.

    `decode` takes uint8 [blocks, block_bytes] and returns float32 [blocks, block_size].
    """

    name: str
    block_size: int
    block_bytes: int
    decode: Callable[[torch.Tensor], torch.Tensor]


def dequantize(raw: torch.Tensor, storage: StorageType, dtype: torch.dtype) -> torch.Tensor:
    """uint8 [n_bytes] → `dtype` [n_weights]. Computes in float32 and rounds once; never aliases `raw`."""
    blocks = raw.view(-1, storage.block_bytes)
    weights = torch.empty(blocks.shape[0] * storage.block_size, dtype=dtype)
    rows = (1 << 20) // storage.block_size  # a million weights at a time stay in the processor's cache
    for start in range(0, blocks.shape[0], rows):
        piece = storage.decode(blocks[start : start + rows]).view(-1)
        weights[start * storage.block_size :][: piece.numel()].copy_(piece)
    return weights


def _half(pair: torch.Tensor) -> torch.Tensor:
    """uint8 [blocks, 2] → float32 [blocks, 1]: the scale or minimum that a block starts with."""
    return pair.contiguous().view(torch.float16).float()


def _nibbles(packed: torch.Tensor) -> torch.Tensor:
    """uint8 [blocks, 16] → float32 [blocks, 32]. All low halves come first, then all high halves."""
    return torch.cat((packed & 0x0F, packed >> 4), dim=1).float()


def _f32(blocks: torch.Tensor) -> torch.Tensor:
    return blocks.contiguous().view(torch.float32)


def _f16(blocks: torch.Tensor) -> torch.Tensor:
    return blocks.contiguous().view(torch.float16).float()


def _bf16(blocks: torch.Tensor) -> torch.Tensor:
    return blocks.contiguous().view(torch.bfloat16).float()


def _q8_0(blocks: torch.Tensor) -> torch.Tensor:
    """Scale (half), then 32 signed bytes: w = scale · q."""
    return blocks[:, 2:].view(torch.int8).float() * _half(blocks[:, :2])


def _q4_0(blocks: torch.Tensor) -> torch.Tensor:
    """Scale (half), then 32 nibbles: w = scale · (q − 8)."""
    return (_nibbles(blocks[:, 2:]) - 8) * _half(blocks[:, :2])


def _q4_1(blocks: torch.Tensor) -> torch.Tensor:
    """Scale and minimum (halves), then 32 nibbles: w = scale · q + minimum."""
    # Two steps, two roundings: a fused multiply-add would differ from the reference in the last bit.
    return (_nibbles(blocks[:, 4:]) * _half(blocks[:, :2])).add_(_half(blocks[:, 2:4]))


# The key is the number that a GGUF file stores.
STORAGE_TYPES: dict[int, StorageType] = {
    0: StorageType("F32", 1, 4, _f32),
    1: StorageType("F16", 1, 2, _f16),
    2: StorageType("Q4_0", _BLOCK, 2 + 16, _q4_0),
    3: StorageType("Q4_1", _BLOCK, 2 + 2 + 16, _q4_1),
    8: StorageType("Q8_0", _BLOCK, 2 + 32, _q8_0),
    30: StorageType("BF16", 1, 2, _bf16),
}

# Names of the formats that are not decoded here, so that the message can say which one a file uses.
OTHER_TYPE_NAMES = {
    6: "Q5_0", 7: "Q5_1", 9: "Q8_1", 10: "Q2_K", 11: "Q3_K", 12: "Q4_K", 13: "Q5_K", 14: "Q6_K", 15: "Q8_K",
    16: "IQ2_XXS", 17: "IQ2_XS", 18: "IQ3_XXS", 19: "IQ1_S", 20: "IQ4_NL", 21: "IQ3_S", 22: "IQ2_S",
    23: "IQ4_XS", 24: "I8", 25: "I16", 26: "I32", 27: "I64", 28: "F64", 29: "IQ1_M", 34: "TQ1_0", 35: "TQ2_0",
}  # fmt: skip
