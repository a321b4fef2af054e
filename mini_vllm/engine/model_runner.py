"""Turns a plan into one forward pass over all scheduled tokens. Knows the model and the KV tensors; decides nothing.

Several requests, prompt chunks and single decode tokens alike, are laid end to end in one ragged batch. Chapter 14.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice, zip_longest

import torch

from mini_vllm.core.output import ModelRunnerOutput, SchedulerOutput
from mini_vllm.engine.attention.backend import AttentionBackend, AttentionMetadata
from mini_vllm.engine.attention.torch import TorchPagedAttention
from mini_vllm.engine.ngram_proposer import NgramProposer
from mini_vllm.engine.sampler import Sampled, Sampler, SamplingRow
from mini_vllm.sampling_params import SamplingParams

PADDING = -1  # a draft that only gives a row its width, as in vLLM


@dataclass
class _RequestState:
    """The worker's copy of a request: the plan carries only what changed."""

    token_ids: list[int]
    block_ids: list[int]
    num_computed_tokens: int
    num_prompt_tokens: int
    params: SamplingParams
    never: tuple[int, ...]  # token ids that may not come before params.min_tokens
    proposer: NgramProposer

    def sampling_row(self, drafted: list[int]) -> SamplingRow:
        """What the sampler must know to draw the token after the known ones and these drafts."""
        prompt, output = self.token_ids[: self.num_prompt_tokens], self.token_ids[self.num_prompt_tokens :]
        return SamplingRow(self.params, prompt, output + drafted, self.never)


class ModelRunner:
    """model: `LlamaForCausalLM`. The KV pool has one block more than `num_gpu_blocks`: block 0, the null block.

    end_token_ids: end an answer, so min_tokens keeps them away. num_speculative_tokens: drafts to propose a request.
    num_host_blocks: size of the pool to which a plan may swap KV out.
    """

    def __init__(
        self,
        model,
        num_gpu_blocks: int,
        block_size: int,
        attn_backend: AttentionBackend | None = None,
        *,
        end_token_ids: Sequence[int] = (),
        num_speculative_tokens: int = 0,
        num_host_blocks: int = 0,
    ):
        self.model = model
        self.num_speculative_tokens = num_speculative_tokens
        self.make_proposer: Callable[[], NgramProposer] = NgramProposer  # one for each request
        self.num_drafted = self.num_accepted = 0  # drafts that were verified, and those that were right
        self.end_token_ids = tuple(end_token_ids)
        self.block_size = block_size
        self.attn_backend = attn_backend or TorchPagedAttention(model.config.sliding_window)
        self.sampler = Sampler()
        self.states: dict[str, _RequestState] = {}
        cfg = model.config
        # Zeros, not empty: a masked position has weight 0, and 0 times a stray NaN would still be NaN.
        shape = (2, num_gpu_blocks + 1, block_size, cfg.num_key_value_heads, cfg.head_dim)
        self.kv_caches = [torch.zeros(shape, dtype=model.dtype) for _ in range(cfg.num_hidden_layers)]
        host_shape = (2, num_host_blocks, *shape[2:])
        self.host_caches = [torch.zeros(host_shape, dtype=model.dtype) for _ in range(cfg.num_hidden_layers)]

    @torch.inference_mode()
    def execute(self, plan: SchedulerOutput) -> ModelRunnerOutput:
        """Run one step; the requests' rows stand in the order of `plan.num_scheduled_tokens`."""
        self._update_states(plan)
        self._swap(plan)
        if not plan.num_scheduled_tokens:
            return ModelRunnerOutput()
        input_ids, positions, meta = self._prepare_inputs(plan)
        hidden = self.model(input_ids, positions, self.kv_caches, self.attn_backend, meta)  # [T, hidden]

        output = ModelRunnerOutput({req_id: [] for req_id in plan.num_scheduled_tokens})
        self._sample(plan, hidden, meta, output)
        return output

    def _sample(
        self, plan: SchedulerOutput, hidden: torch.Tensor, meta: AttentionMetadata, output: ModelRunnerOutput
    ) -> None:
        """New tokens of those whose piece reaches the end of what is known; with drafts, at the end and at each draft.

            row        last known    draft 1     draft 2
            its token  = draft 1?    = draft 2?  the one after      kept up to the first that differs

        The token of a row is the one that would have been sampled without drafts, so drafts change no answer.
        """
        at_end: list[tuple[str, _RequestState, list[int]]] = []
        rows: list[SamplingRow] = []
        hidden_rows: list[int] = []
        for req_id, end in zip(plan.num_scheduled_tokens, meta.query_start_loc[1:].tolist(), strict=True):
            state, given = self.states[req_id], plan.scheduled_spec_decode_tokens.get(req_id, [])
            if state.num_computed_tokens == len(state.token_ids) + len(given):
                drafts = [token_id for token_id in given if token_id != PADDING]
                at_end.append((req_id, state, drafts))
                last_known = end - 1 - len(given)
                hidden_rows += range(last_known, last_known + len(drafts) + 1)
                rows += [state.sampling_row(drafts[:i]) for i in range(len(drafts) + 1)]
        if not at_end:
            return
        logits = self.model.compute_logits(hidden[torch.tensor(hidden_rows)])  # [len(rows), vocab]
        results = iter(self.sampler.sample(logits, rows))
        for req_id, state, drafts in at_end:
            kept = _kept(drafts, list(islice(results, len(drafts) + 1)))
            if not kept:
                output.errors[req_id] = "the model's logits are not finite numbers"
                state.token_ids.append(0)  # one step ahead, its next row may be planned already; nobody looks at it
                continue
            tokens = [sampled.token_id for sampled in kept if sampled.token_id is not None]
            output.sampled_token_ids[req_id] = tokens
            state.token_ids += tokens
            if state.params.logprobs is not None:
                output.logprobs[req_id] = [sampled.logprobs for sampled in kept]
            self.num_drafted += len(drafts)
            self.num_accepted += len(tokens) - 1
            if self.num_speculative_tokens:
                output.draft_token_ids[req_id] = state.proposer.propose(state.token_ids, self.num_speculative_tokens)

    def _update_states(self, plan: SchedulerOutput) -> None:
        for req_id in plan.finished_req_ids:
            self.states.pop(req_id, None)
        for new in plan.scheduled_new_reqs:
            params, prompt = new.sampling_params, list(new.prompt_token_ids)
            self.states[new.req_id] = _RequestState(
                prompt,
                list(new.block_ids),
                new.num_computed_tokens,
                len(prompt),
                params,
                (*params.stop_token_ids, *self.end_token_ids),
                self.make_proposer(),
            )
        cached = plan.scheduled_cached_reqs
        for req_id, num_computed_tokens in zip(cached.req_ids, cached.num_computed_tokens, strict=True):
            self.states[req_id].num_computed_tokens = num_computed_tokens
        for req_id in cached.resumed_req_ids:
            self.states[req_id].block_ids = []
        for req_id, block_ids in cached.new_block_ids.items():
            self.states[req_id].block_ids += block_ids

    def _swap(self, plan: SchedulerOutput) -> None:
        """Copy whole blocks to the host's pool, then back; a block that goes out may be given to others at once."""
        for source, target, copies in (
            (self.kv_caches, self.host_caches, plan.swapped_out),
            (self.host_caches, self.kv_caches, [(host, block) for block, host in plan.swapped_in]),
        ):
            if copies:
                taken, given = torch.tensor(copies).unbind(1)
                for from_cache, to_cache in zip(source, target, strict=True):
                    to_cache[:, given] = from_cache[:, taken]

    def _prepare_inputs(self, plan: SchedulerOutput) -> tuple[torch.Tensor, torch.Tensor, AttentionMetadata]:
        """Lay the scheduled tokens of all requests end to end; advances `num_computed_tokens` of the states."""
        input_ids: list[int] = []
        positions: list[int] = []
        slot_mapping: list[int] = []
        starts, seq_lens, tables = [0], [], []
        for req_id, n in plan.num_scheduled_tokens.items():
            state = self.states[req_id]
            first = state.num_computed_tokens
            end = first + n
            input_ids += state.token_ids[first:end]
            # A piece with drafts ends with them. Any token will do for padding: what comes of it is not looked at.
            input_ids += [max(token_id, 0) for token_id in plan.scheduled_spec_decode_tokens.get(req_id, ())]
            positions += range(first, end)
            slot_mapping += [
                state.block_ids[p // self.block_size] * self.block_size + p % self.block_size for p in range(first, end)
            ]
            starts.append(starts[-1] + n)
            seq_lens.append(end)
            tables.append(state.block_ids)
            state.num_computed_tokens = end
        width = max(map(len, tables))
        meta = AttentionMetadata(
            query_start_loc=torch.tensor(starts, dtype=torch.int32),
            seq_lens=torch.tensor(seq_lens, dtype=torch.int32),
            block_table=torch.tensor([table + [0] * (width - len(table)) for table in tables], dtype=torch.int32),
            slot_mapping=torch.tensor(slot_mapping),
            max_query_len=max(plan.num_scheduled_tokens.values()),
            max_seq_len=max(seq_lens),
        )
        return torch.tensor(input_ids), torch.tensor(positions), meta


def _kept(drafts: list[int], results: list[Sampled]) -> list[Sampled]:
    """The sampled tokens that count: up to the first that is not the draft in its place, or that is no token."""
    kept = []
    for draft, sampled in zip_longest(drafts, results):
        if sampled.token_id is None:
            break
        kept.append(sampled)
        if sampled.token_id != draft:
            break
    return kept
