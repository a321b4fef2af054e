"""Turns a plan into one forward pass over all scheduled tokens. Knows the model and the KV tensors; decides nothing.

Several requests, prompt chunks and single decode tokens alike, are laid end to end in one ragged batch. Chapter 14.

    launch    plan -> states, copies -> inputs -> forward, or a recorded one -> tokens        queued on the device
    result                                                                     tokens -> host, states
"""

from collections import deque
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from mini_vllm.core.output import ModelRunnerOutput, SchedulerOutput
from mini_vllm.engine.attention.backend import AttentionBackend
from mini_vllm.engine.attention.torch import TorchPagedAttention
from mini_vllm.engine.cuda_graphs import DecodeGraphs, GraphRecorder
from mini_vllm.engine.device import current, to_device
from mini_vllm.engine.input_batch import InputBatch, StepInputs
from mini_vllm.engine.kv_pool import KVPool
from mini_vllm.engine.ngram_proposer import NgramProposer
from mini_vllm.engine.request_state import UNKNOWN, RequestState
from mini_vllm.engine.sampler import Sampled, Sampler, likeliest
from mini_vllm.engine.step_in_flight import AtEnd, StepInFlight, TokensOnTheirWay

PADDING = -1  # a draft that only gives a row its width, as in vLLM


class ModelRunner:
    """model: `LlamaForCausalLM`, on the device where all runs. The KV pool has one block more than `num_gpu_blocks`:
    block 0, the null block.

    end_token_ids: end an answer, so min_tokens keeps them away. num_speculative_tokens: drafts to propose a request.
    num_host_blocks: size of the pool to which a plan may swap KV out.
    max_num_seqs, max_num_batched_tokens, max_model_len: sizes that the buffers have from the start; see `InputBatch`.
    recorder: records decode steps of up to max_num_seqs requests as CUDA graphs, here and now; None: none are recorded.
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
        max_num_seqs: int = 8,
        max_num_batched_tokens: int = 64,
        max_model_len: int = 256,
        recorder: GraphRecorder | None = None,
    ):
        self.model = model
        self.device: torch.device = model.device
        self.num_speculative_tokens = num_speculative_tokens
        self.make_proposer: Callable[[], NgramProposer] = NgramProposer  # one for each request
        self.num_drafted = self.num_accepted = 0  # drafts that were verified, and those that were right
        self.end_token_ids = tuple(end_token_ids)
        self.attn_backend = attn_backend or TorchPagedAttention(model.config.sliding_window)
        self.sampler = Sampler()
        self.states: dict[str, RequestState] = {}
        self.kv_pool = KVPool(model.config, model.dtype, self.device, num_gpu_blocks, block_size, num_host_blocks)
        self.inputs = InputBatch(
            self.device,
            block_size,
            max_num_batched_tokens=max_num_batched_tokens,
            max_num_seqs=max_num_seqs,
            max_model_len=max_model_len,
        )
        self._in_flight: deque[StepInFlight] = deque()
        self.graphs: DecodeGraphs | None = None
        if recorder is not None:
            with torch.inference_mode(), current(self.device):
                self.graphs = DecodeGraphs(self.inputs, self._forward, recorder, max_num_seqs, max_model_len)

    def execute(self, plan: SchedulerOutput) -> ModelRunnerOutput:
        """Run one step; the requests' rows stand in the order of `plan.num_scheduled_tokens`."""
        return self.launch(plan).result()

    @torch.inference_mode()
    def launch(self, plan: SchedulerOutput) -> StepInFlight:
        """Queue one step on the device; a GPU may not be through with the one before it.

        A request that the step before samples for goes on with its token unseen: it is taken from the device. Whoever
        needs to see it (drafts, penalties, random numbers) is waited for.
        """
        while len(self._in_flight) > 1:
            self._in_flight.popleft().result()
        with current(self.device):
            step = self._launch(plan)
        self._in_flight.append(step)
        return step

    def reset(self) -> None:
        """Forget all requests. What is in flight computes to its end, and nobody asks for it."""
        for state in self.states.values():
            self.inputs.free_row(state.row)
        self.states.clear()
        self._in_flight.clear()

    def _launch(self, plan: SchedulerOutput) -> StepInFlight:
        self._update_states(plan)
        self.kv_pool.swap(plan.swapped_out, plan.swapped_in)
        at_end, rows, token_ids = self._pieces(plan)
        if not token_ids:
            return self._step(plan, at_end, list)
        hidden = self._hidden(plan, token_ids)  # [T, hidden]
        if not at_end:
            return self._step(plan, at_end, list)

        is_everybody = rows == list(range(len(hidden)))
        logits = self.model.compute_logits(hidden if is_everybody else hidden[to_device(rows, self.device)])
        if not all(mine.state.wants_likeliest(len(mine.drafts)) for mine in at_end):
            results = self._drawn(logits, at_end)
            step, must_wait = self._step(plan, at_end, lambda: results), True
        else:
            sampled, must_wait = likeliest(logits), self.num_speculative_tokens > 0
            step = self._step(plan, at_end, TokensOnTheirWay(sampled).read)
            if not must_wait:
                who = to_device([mine.state.row for mine in at_end], self.device)
                self.inputs.sampled.index_copy_(0, who, sampled.clamp(min=0))
        for mine in at_end:
            mine.state.token_ids.append(UNKNOWN)
        if must_wait:
            step.result()
        return step

    def _step(self, plan: SchedulerOutput, at_end: list[AtEnd], read: Callable[[], list[Sampled]]) -> StepInFlight:
        return StepInFlight(list(plan.num_scheduled_tokens), at_end, read, self._settle)

    def _drawn(self, logits: Tensor, at_end: list[AtEnd]) -> list[Sampled]:
        """Rows that depend on the texts before them: those must be known."""
        for step in self._in_flight:
            step.result()
        rows = [mine.state.sampling_row(mine.drafts[:i]) for mine in at_end for i in range(len(mine.drafts) + 1)]
        return self.sampler.sample(logits, rows)

    def _settle(self, mine: AtEnd, tokens: list[int], output: ModelRunnerOutput) -> None:
        self.num_drafted += len(mine.drafts)
        self.num_accepted += len(tokens) - 1
        if self.num_speculative_tokens:
            known = mine.state.token_ids
            output.draft_token_ids[mine.req_id] = mine.state.proposer.propose(known, self.num_speculative_tokens)

    def _update_states(self, plan: SchedulerOutput) -> None:
        for req_id in plan.finished_req_ids:
            if (state := self.states.pop(req_id, None)) is not None:
                self.inputs.free_row(state.row)
        for new in plan.scheduled_new_reqs:
            params, prompt = new.sampling_params, list(new.prompt_token_ids)
            self.states[new.req_id] = RequestState(
                prompt,
                self.inputs.add_row(new.block_ids),
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
            self.inputs.clear_row(self.states[req_id].row)
        for req_id, block_ids in cached.new_block_ids.items():
            self.inputs.append_blocks(self.states[req_id].row, block_ids)

    def _pieces(self, plan: SchedulerOutput) -> tuple[list[AtEnd], list[int], list[int]]:
        """Who samples, the rows of the batch that they sample from, and the tokens of all pieces.

        New tokens come to those whose piece reaches the end of what is known; with drafts, there and at each draft.

            row        last known    draft 1     draft 2
            its token  = draft 1?    = draft 2?  the one after      kept up to the first that differs

        The token of a row is the one that would have been sampled without drafts, so drafts change no answer.
        """
        at_end: list[AtEnd] = []
        rows: list[int] = []
        token_ids: list[int] = []
        for req_id, n in plan.num_scheduled_tokens.items():
            state, given = self.states[req_id], plan.scheduled_spec_decode_tokens.get(req_id, [])
            known, end = len(state.token_ids), state.num_computed_tokens + n
            token_ids += state.token_ids[state.num_computed_tokens : end]
            if given:
                # A piece with drafts ends with them. Any token will do for padding: what comes of it is not looked at.
                token_ids += [max(token_id, 0) for token_id in given]
            if end == known + len(given):
                drafts = [token_id for token_id in given if token_id != PADDING]
                at_end.append(AtEnd(req_id, state, drafts, known))
                last_known = len(token_ids) - 1 - len(given)
                rows += range(last_known, last_known + len(drafts) + 1)
        return at_end, rows, token_ids

    def _hidden(self, plan: SchedulerOutput, token_ids: list[int]) -> Tensor:
        """The forward pass, a recorded one if there is one for it; [T, hidden]. Advances `num_computed_tokens`."""
        query_lens = list(plan.num_scheduled_tokens.values())
        rows, firsts = [], []
        for req_id, n in plan.num_scheduled_tokens.items():
            state = self.states[req_id]
            rows.append(state.row)
            firsts.append(state.num_computed_tokens)
            state.num_computed_tokens += n
        size = self.graphs.size_for(query_lens) if self.graphs else None
        most = self.model.padded_rows(len(token_ids))
        inputs = self.inputs.fill(token_ids, rows, firsts, query_lens, padded_to=size or 0, min_rows=most)
        if self.graphs is not None and size is not None and self.graphs.are_valid:
            return self.graphs.replay(size)[: len(token_ids)]
        return self._forward(inputs)[: len(token_ids)]

    def _forward(self, inputs: StepInputs) -> Tensor:
        return self.model(inputs.input_ids, inputs.positions, self.kv_pool.caches, self.attn_backend, inputs.meta)

    @property
    def kv_caches(self) -> list[Tensor]:
        return self.kv_pool.caches

    @property
    def host_caches(self) -> list[Tensor]:
        return self.kv_pool.host_caches
