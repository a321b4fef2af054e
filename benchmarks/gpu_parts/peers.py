"""Other people's decode attention on the same numbers: torch's, FlexAttention, transformers' paged path. Chapter 13.

Each `prepare(problem)` returns a call that gives [requests, num_heads, head_dim]; what it needs beforehand is done, and
not timed: a contiguous copy of the KV, an index of the pages. Every request has one new token and the same context.
"""

from collections.abc import Callable
from functools import cache

import torch
import torch.nn.functional as F

from benchmarks.gpu_parts.problems import Problem

Call = Callable[[], torch.Tensor]


def slots_of(problem: Problem) -> torch.Tensor:
    """[requests, context] int64: where in the cache each position lies."""
    size, context = problem.shape.block_size, problem.context_lens[0]
    positions = torch.arange(context, device=problem.q.device)
    return problem.block_table.long()[:, positions // size] * size + positions % size


def gathered(problem: Problem, slots: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """K and V as [requests, KV heads, context, head_dim], views of copies."""
    heads, head_dim = problem.shape.num_kv_heads, problem.shape.head_dim
    rows = problem.kv_cache.view(2, -1, heads * head_dim)
    k, v = (side.index_select(0, slots.flatten()).view(*slots.shape, heads, head_dim).transpose(1, 2) for side in rows)
    return k, v


def grouped(problem: Problem) -> torch.Tensor:
    """q as [requests, KV heads, group, head_dim]: the heads of a group in the place of query positions."""
    return problem.q.view(len(problem.query_lens), problem.shape.num_kv_heads, problem.shape.group, -1)


def sdpa_contiguous(problem: Problem) -> Call:
    """What torch reaches when there are no pages at all."""
    q, (k, v) = grouped(problem), gathered(problem, slots_of(problem))
    k, v = k.contiguous(), v.contiguous()
    return lambda: F.scaled_dot_product_attention(q, k, v).reshape_as(problem.q)


def sdpa_gathered(problem: Problem) -> Call:
    """Pages copied together in every step, as our torch backend does it."""
    q, slots = grouped(problem), slots_of(problem)
    return lambda: F.scaled_dot_product_attention(q, *gathered(problem, slots)).reshape_as(problem.q)


@cache
def _flex(is_cuda: bool):
    """Compiled for a GPU; on a CPU, where nothing is measured, a compiler would take a minute."""
    from torch.nn.attention.flex_attention import flex_attention

    return torch.compile(flex_attention, dynamic=False) if is_cuda else flex_attention


def flex(problem: Problem) -> Call:
    """FlexAttention, compiled, on a contiguous KV."""
    k, v = (x.contiguous() for x in gathered(problem, slots_of(problem)))
    q = problem.q[:, :, None]  # [requests, heads, 1, head_dim]
    return lambda: _flex(q.is_cuda)(q, k, v, enable_gqa=True).reshape_as(problem.q)


def transformers_paged(problem: Problem) -> Call:
    """What transformers' continuous batching does with "sdpa": all requests as one sequence, pages gathered, a mask."""
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    slots, requests = slots_of(problem), len(problem.query_lens)
    heads, head_dim, context = problem.shape.num_kv_heads, problem.shape.head_dim, problem.context_lens[0]
    owner = torch.arange(requests, device=problem.q.device).repeat_interleave(context)
    seen = owner[None, :] == torch.arange(requests, device=problem.q.device)[:, None]  # [requests, requests * context]
    mask = torch.zeros(seen.shape, dtype=problem.q.dtype, device=problem.q.device).masked_fill_(
        ~seen, torch.finfo(problem.q.dtype).min
    )[None, None]
    module = torch.nn.Module()
    module.num_key_value_groups = problem.shape.group
    module.is_causal = False
    q = problem.q.transpose(0, 1)[None]  # [1, heads, requests, head_dim]
    rows = problem.kv_cache.view(2, -1, heads, head_dim)

    def call() -> torch.Tensor:
        k, v = (side[slots.flatten()].transpose(0, 1)[None] for side in rows)
        return sdpa_attention_forward(module, q, k, v, mask, scaling=head_dim**-0.5)[0][
            0
        ]  # [requests, heads, head_dim]

    return call


# Name, prepare, and for how many pairs: a compiler needs its time for each.
DECODE: tuple[tuple[str, Callable[[Problem], Call], int], ...] = (
    ("torch SDPA, contiguous KV", sdpa_contiguous, 9),
    ("torch SDPA, pages gathered", sdpa_gathered, 9),
    ("transformers paged (sdpa)", transformers_paged, 9),
    ("FlexAttention, contiguous KV", flex, 2),
)
