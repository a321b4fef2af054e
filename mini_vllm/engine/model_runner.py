"""Turns a plan into one forward pass over all scheduled tokens. Knows the model and the KV tensors; decides nothing.

Several requests, prompt chunks and single decode tokens alike, are laid end to end in one ragged batch. Chapter 14.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from mini_vllm.core.output import ModelRunnerOutput, SchedulerOutput
from mini_vllm.engine.attention.backend import AttentionBackend, AttentionMetadata
from mini_vllm.engine.attention.torch import TorchPagedAttention
from mini_vllm.engine.sampler import Sampler, SamplingRow
from mini_vllm.sampling_params import SamplingParams


@dataclass
class _RequestState:
    """The worker's copy of a request: the plan carries only what changed."""

    token_ids: list[int]
    block_ids: list[int]
    num_computed_tokens: int
    num_prompt_tokens: int
    params: SamplingParams
    never: tuple[int, ...]  # token ids that may not come before params.min_tokens

    def sampling_row(self) -> SamplingRow:
        prompt, output = self.token_ids[: self.num_prompt_tokens], self.token_ids[self.num_prompt_tokens :]
        return SamplingRow(self.params, prompt, output, self.never)


class ModelRunner:
    """model: `LlamaForCausalLM`. The KV pool has one block more than `num_gpu_blocks`: block 0, the null block.

    end_token_ids: end an answer, so min_tokens keeps them away.
    """

    def __init__(
        self,
        model,
        num_gpu_blocks: int,
        block_size: int,
        attn_backend: AttentionBackend | None = None,
        *,
        end_token_ids: Sequence[int] = (),
    ):
        self.model = model
        self.end_token_ids = tuple(end_token_ids)
        self.block_size = block_size
        self.attn_backend = attn_backend or TorchPagedAttention(model.config.sliding_window)
        self.sampler = Sampler()
        self.states: dict[str, _RequestState] = {}
        cfg = model.config
        # Zeros, not empty: a masked position has weight 0, and 0 times a stray NaN would still be NaN.
        shape = (2, num_gpu_blocks + 1, block_size, cfg.num_key_value_heads, cfg.head_dim)
        self.kv_caches = [torch.zeros(shape, dtype=model.dtype) for _ in range(cfg.num_hidden_layers)]

    @torch.inference_mode()
    def execute(self, plan: SchedulerOutput) -> ModelRunnerOutput:
        """Run one step; the requests' rows stand in the order of `plan.num_scheduled_tokens`."""
        self._update_states(plan)
        if not plan.num_scheduled_tokens:
            return ModelRunnerOutput()
        req_ids = list(plan.num_scheduled_tokens)
        input_ids, positions, meta = self._prepare_inputs(plan.num_scheduled_tokens)
        hidden = self.model(input_ids, positions, self.kv_caches, self.attn_backend, meta)  # [T, hidden]

        # Only a request whose piece reaches the end of its known tokens gets a new one.
        at_end = [
            i for i, r in enumerate(req_ids) if self.states[r].num_computed_tokens == len(self.states[r].token_ids)
        ]
        output = ModelRunnerOutput({req_id: [] for req_id in req_ids})
        if at_end:
            last_rows = meta.query_start_loc[1:].long()[at_end] - 1
            logits = self.model.compute_logits(hidden[last_rows])  # [len(at_end), vocab]
            states = [self.states[req_ids[i]] for i in at_end]
            drawn = self.sampler.sample(logits, [state.sampling_row() for state in states])
            for i, state, result in zip(at_end, states, drawn, strict=True):
                if result.token_id is None:
                    output.errors[req_ids[i]] = result.error
                    continue
                output.sampled_token_ids[req_ids[i]].append(result.token_id)
                state.token_ids.append(result.token_id)
                if result.logprobs is not None:
                    output.logprobs[req_ids[i]] = [result.logprobs]
        return output

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
            )
        cached = plan.scheduled_cached_reqs
        for req_id, num_computed_tokens in zip(cached.req_ids, cached.num_computed_tokens, strict=True):
            self.states[req_id].num_computed_tokens = num_computed_tokens
        for req_id in cached.resumed_req_ids:
            self.states[req_id].block_ids = []
        for req_id, block_ids in cached.new_block_ids.items():
            self.states[req_id].block_ids += block_ids

    def _prepare_inputs(
        self, num_scheduled_tokens: dict[str, int]
    ) -> tuple[torch.Tensor, torch.Tensor, AttentionMetadata]:
        """Lay the scheduled tokens of all requests end to end; advances `num_computed_tokens` of the states."""
        input_ids: list[int] = []
        positions: list[int] = []
        slot_mapping: list[int] = []
        starts, seq_lens, tables = [0], [], []
        for req_id, n in num_scheduled_tokens.items():
            state = self.states[req_id]
            first = state.num_computed_tokens
            end = first + n
            input_ids += state.token_ids[first:end]
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
            max_query_len=max(num_scheduled_tokens.values()),
            max_seq_len=max(seq_lens),
        )
        return torch.tensor(input_ids), torch.tensor(positions), meta
