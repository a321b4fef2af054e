"""Logits to token ids, each row by its own request's parameters. Knows no request and no batch order. Chapter 14.

The order of the steps is vLLM's (0.33.0, `vllm/v1/sample/sampler.py`):

    logits -> log-probabilities asked for -> min_tokens -> penalties -> greedy, or
    temperature -> min_p -> top_k -> top_p -> one random number
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from mini_vllm.sampling_params import SamplingParams


@dataclass
class SamplingRow:
    """What one row of logits needs to become a token.

    output_token_ids: what the request has emitted; how many decides its random number, together with params.seed.
    never: token ids that must not come while min_tokens holds (end and stop tokens).
    """

    params: SamplingParams
    prompt_token_ids: Sequence[int] = ()
    output_token_ids: Sequence[int] = ()
    never: Sequence[int] = ()


@dataclass
class TokenLogprobs:
    """Of one position: token id -> natural log of its probability; the taken token and the likeliest ones."""

    token_id: int
    logprob: float
    rank: int  # 1 for the likeliest
    top: dict[int, float] = field(default_factory=dict)


@dataclass
class Sampled:
    """One row's result. token_id: None if the logits are not finite numbers, so that there is nothing to choose by."""

    token_id: int | None
    logprobs: TokenLogprobs | None = None


NO_TOKEN = -1  # in the place of a token id: the row's logits are no finite numbers


def likeliest(logits: Tensor) -> Tensor:
    """logits [N, vocab_size] -> [N] int64: the likeliest token of each row, or `NO_TOKEN`."""
    # max, since argmax takes four times as long in bfloat16 on a CPU. The max of a row that holds a NaN is a NaN.
    values, token_ids = logits.max(dim=-1)
    return torch.where(torch.isfinite(values), token_ids, NO_TOKEN)


class Sampler:
    """Draws one token a row. Rows do not see each other: a row's token is the same in any company."""

    def sample(self, logits: Tensor, rows: Sequence[SamplingRow]) -> list[Sampled]:
        """logits: [N, vocab_size], one row of `rows` each. Greedy rows take one argmax together."""
        if not rows:
            return []
        token_ids = likeliest(logits).tolist()  # one copy to the host
        results = []
        for i, (token_id, row) in enumerate(zip(token_ids, rows, strict=True)):
            if token_id == NO_TOKEN:
                results.append(Sampled(None))
            elif _is_plain(row):
                results.append(Sampled(token_id))
            else:
                results.append(_sample_row(logits[i], row))
        return results


def _is_plain(row: SamplingRow) -> bool:
    """The likeliest token, and nothing else, is asked for."""
    params = row.params
    return params.is_greedy and params.logprobs is None and not params.has_penalties and not _forbids(row)


def _forbids(row: SamplingRow) -> bool:
    return bool(row.never) and len(row.output_token_ids) < row.params.min_tokens


def _sample_row(logits: Tensor, row: SamplingRow) -> Sampled:
    """logits [vocab_size] -> a token, by the steps in the head of this file."""
    params, raw = row.params, logits
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32), copy=True)
    if _forbids(row):
        # A stop token that the model does not have cannot come anyway; as an index it would end the step for everybody.
        logits[[token_id for token_id in row.never if 0 <= token_id < len(logits)]] = -torch.inf
    if params.has_penalties:
        _penalise(logits, row)
    token_id = int(logits.argmax()) if params.is_greedy else _draw(logits, row)
    wanted = params.logprobs
    return Sampled(token_id, None if wanted is None else _logprobs(raw, token_id, wanted))


def _penalise(logits: Tensor, row: SamplingRow) -> None:
    """In place. Repetition looks at prompt and output, the other two at the output only, as in vLLM."""
    params = row.params
    if params.repetition_penalty != 1.0:
        seen = torch.tensor(sorted({*row.prompt_token_ids, *row.output_token_ids}), device=logits.device)
        values = logits[seen]
        logits[seen] = torch.where(values > 0, values / params.repetition_penalty, values * params.repetition_penalty)
    if row.output_token_ids:
        output = torch.tensor(list(row.output_token_ids), device=logits.device)
        ids, counts = output.unique(return_counts=True)
        logits[ids] -= params.frequency_penalty * counts + params.presence_penalty


def _draw(logits: Tensor, row: SamplingRow) -> int:
    """One token by temperature, min_p, top_k and top_p.

    The random number u is taken from the row's seed and position; the token is the first, from the likeliest down,
    with which the sum of the probabilities passes u:

        0 |--- likeliest ---|--- second ---|- third -|...| 1
                                   u ^
    """
    params = row.params
    # In float64: a sum over 150,000 probabilities must not depend on how many of them were cut off.
    probs, order = torch.softmax(logits.double() / params.temperature, dim=-1).sort(descending=True, stable=True)
    keep = int((probs >= params.min_p * probs[0]).sum())
    if params.top_k > 0:
        keep = min(keep, params.top_k)
    probs = probs[:keep]
    if params.top_p < 1.0:
        reached = probs.cumsum(0) / probs.sum()
        probs = probs[: int((reached < params.top_p).sum()) + 1]
    reached = probs.cumsum(0)
    u = uniform(params.seed or 0, len(row.output_token_ids)) * float(reached[-1])
    place = int(torch.searchsorted(reached, u, right=True))
    return int(order[min(place, len(probs) - 1)])


def uniform(seed: int, position: int) -> float:
    """The random number in [0, 1) of a request's token number `position`: no state, so nothing can disturb it."""
    digest = hashlib.blake2b(f"{seed}/{position}".encode(), digest_size=8).digest()
    return (int.from_bytes(digest, "little") >> 11) / (1 << 53)


def seed_of(engine_seed: int, number: int) -> int:
    """A seed for answer number `number` of an engine, if it brings none of its own."""
    digest = hashlib.blake2b(f"{engine_seed}/{number}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def _logprobs(logits: Tensor, token_id: int, wanted: int) -> TokenLogprobs:
    logprobs = torch.log_softmax(logits.float(), dim=-1)
    mine = logprobs[token_id]
    values, ids = logprobs.topk(wanted) if wanted else (logprobs[:0], logprobs[:0].long())
    rank = int((logprobs > mine).sum()) + 1
    top = dict(zip(ids.tolist(), values.tolist(), strict=True))
    return TokenLogprobs(token_id, float(mine), rank, top)
