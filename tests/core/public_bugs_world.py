"""A world for the public bugs: one scheduler, a worker without a model, every step checked. Knows plans and KV slots.

A KV slot holds a number made of its token, the adapter and *all slots before it, read back through the block table*,
as attention would; the next token is drawn from the last slot. So a block shared by mistake, a stale slot, a lost
recompute or a wrong position ends in a wrong token, and `solo()` says what the right ones are.
"""

import zlib
from array import array
from collections import deque

from mini_vllm.config import SchedulerConfig
from mini_vllm.core.async_scheduler import AsyncScheduler
from mini_vllm.core.output import ModelRunnerOutput, RequestOutput, SchedulerOutput
from mini_vllm.core.watch import SchedulerWatch
from mini_vllm.request import Request
from mini_vllm.sampling_params import SamplingParams

VOCABULARY = 97


def kv_value(before: list[int], token: int, adapter: str | None) -> int:
    return zlib.crc32(array("q", [*before, token]).tobytes(), zlib.crc32((adapter or "").encode()))


def solo(prompt, num_tokens: int, adapter: str | None = None) -> list[int]:
    """The outputs of a request that is alone in the world: no blocks, no chunks, no cache."""
    values: list[int] = []
    tokens = list(prompt)
    for position in range(len(tokens) + num_tokens - 1):
        values.append(kv_value(values, tokens[position], adapter))
        if position == len(tokens) - 1:
            tokens.append(values[-1] % VOCABULARY)
    return tokens[len(prompt) :]


def resumed_with(plan: SchedulerOutput) -> dict[str, int]:
    """Who comes back from preemption in this plan, and with how many computed tokens."""
    cached = plan.scheduled_cached_reqs
    computed = dict(zip(cached.req_ids, cached.num_computed_tokens, strict=True))
    return {req_id: computed[req_id] for req_id in cached.resumed_req_ids}


class World:
    """`add`, `step`, `drain`. An asynchronous scheduler gets each output one plan late."""

    def __init__(self, scheduler_cls, **limits):
        self.config = SchedulerConfig(**{"block_size": 4, **limits})
        self.scheduler = scheduler_cls(self.config)
        self.lag = 1 if issubclass(scheduler_cls, AsyncScheduler) else 0
        self.watch = None if self.lag else SchedulerWatch(self.scheduler, self.config)
        self.requests: dict[str, Request] = {}
        self.outputs: dict[str, list[int]] = {}
        self.ends: dict[str, list[str]] = {}
        self.plans: list[SchedulerOutput] = []
        self.writes: list[tuple[str, int]] = []  # (request, position) in the order in which slots were written
        self.drafter = None  # outputs known so far -> draft tokens for the next step
        self._in_flight: deque[tuple[SchedulerOutput, ModelRunnerOutput]] = deque()
        self._slots: dict[tuple[int, int], int] = {}
        self._tokens: dict[str, list[int]] = {}
        self._tables: dict[str, list[int]] = {}

    @property
    def free(self) -> int:
        return self.scheduler.kv_cache_manager.num_free_blocks

    @property
    def num_preemptions(self) -> int:
        return sum(len(plan.preempted_req_ids) for plan in self.plans)

    @property
    def num_computed(self) -> int:
        return sum(plan.total_num_scheduled_tokens for plan in self.plans)

    def hits(self, req_id: str) -> int:
        """Tokens that a newcomer found in the prefix cache."""
        return next(n.num_computed_tokens for p in self.plans for n in p.scheduled_new_reqs if n.req_id == req_id)

    def blocks(self, req_id: str) -> list[int]:
        return list(self.scheduler.kv_cache_manager.get_block_ids(req_id))

    def waiting(self) -> list[str]:
        return [r.request_id for r in self.scheduler.waiting]

    def running(self) -> list[str]:
        return [r.request_id for r in self.scheduler.running]

    def add(self, req_id: str, prompt, max_tokens: int, **params) -> Request:
        """`prompt`: token ids, or a length (then the tokens are this request's own)."""
        if isinstance(prompt, int):
            prompt = [1000 * zlib.crc32(req_id.encode()) + i for i in range(prompt)]
        request = Request(req_id, list(prompt), SamplingParams(max_tokens=max_tokens, ignore_eos=True), **params)
        self.scheduler.add_request(request)
        self.requests[req_id], self.outputs[req_id], self.ends[req_id] = request, [], []
        if self.watch:
            self.watch.arrived(request)
        return request

    def abort(self, *req_ids: str) -> None:
        live = [req_id for req_id in dict.fromkeys(req_ids) if req_id in self.scheduler.requests]
        self.scheduler.finish_requests(req_ids)
        for req_id in live:
            self.ends[req_id].append(self.requests[req_id].finish_reason)
        if self.watch:
            self.watch.left(live)
        self.check()

    def step(self) -> dict[str, int]:
        """One step; returns what was scheduled."""
        plan = self.plan()
        self.finish_step()
        return plan.num_scheduled_tokens

    def plan(self) -> SchedulerOutput:
        """The first half of a step: plan and execute."""
        plan = self.scheduler.schedule()
        assert plan.total_num_scheduled_tokens <= self.config.token_budget
        self.plans.append(plan)
        if self.watch:
            self.watch.planned(plan)
        self._in_flight.append((plan, self._execute(plan)))
        return plan

    def finish_step(self, everything: bool = False) -> list[RequestOutput]:
        """The second half: tell the scheduler what came out, one step late if it is asynchronous."""
        news = []
        while len(self._in_flight) > (0 if everything else self.lag):
            plan, output = self._in_flight.popleft()
            step_news = self.scheduler.update_from_output(plan, output)
            if self.watch:
                self.watch.updated(plan, output, step_news)
            news += step_news
        for item in news:
            self.outputs[item.request_id] += item.new_token_ids
            if item.finished:
                self.ends[item.request_id].append(item.finish_reason)
        self.check()
        return news

    def drain(self, max_steps: int = 3_000) -> None:
        """Step to the end. No step may pass in which somebody is unfinished, nothing is planned and none in flight."""
        for _ in range(max_steps):
            if not self.scheduler.has_unfinished_requests():
                break
            was_in_flight = len(self._in_flight)
            scheduled = self.step()
            stuck = self.scheduler.has_unfinished_requests() and not (scheduled or was_in_flight)
            assert not stuck or self.plans[-1].preempted_req_ids, f"stuck: {self.plans[-1]}"
        self.finish_step(everything=True)
        assert not self.scheduler.has_unfinished_requests(), f"not done after {max_steps} steps"
        assert self.free == self.config.num_gpu_blocks, "blocks are left over"
        assert all(len(ends) == 1 for ends in self.ends.values()), f"everybody ends exactly once: {self.ends}"

    def outputs_are_right(self) -> bool:
        """Every request got the tokens that it would have got alone (an aborted one: the first of them)."""
        for request in self.requests.values():
            got = self.outputs[request.request_id]
            if got and got != solo(request.prompt_token_ids, len(got), request.adapter):
                return False
        return True

    def check(self) -> None:
        """The books of the scheduler, counted anew: free + held = pool, and no block more than the tokens need."""
        manager, config = self.scheduler.kv_cache_manager, self.config
        (getattr(self.scheduler, "check_integrity", None) or manager.check_integrity)()
        held = {block for table in manager.req_to_blocks.values() for block in table}
        assert 0 <= self.free == config.num_gpu_blocks - len(held)
        if not config.num_speculative_tokens:  # rejected drafts keep their blocks
            for request in self.scheduler.running:
                need = config.blocks_for(request.num_computed_tokens)
                assert len(self.blocks(request.request_id)) == need, f"{request.request_id} holds more than it needs"

    # --- the worker ---

    def _execute(self, plan: SchedulerOutput) -> ModelRunnerOutput:
        for req_id in plan.finished_req_ids:
            self._tokens.pop(req_id, None)
        start = {}
        for new in plan.scheduled_new_reqs:
            assert new.req_id not in self._tokens, f"{new.req_id} is sent as new, but was never reported as finished"
            self._tokens[new.req_id] = list(new.prompt_token_ids)
            self._tables[new.req_id] = list(new.block_ids)
            start[new.req_id] = new.num_computed_tokens
        cached = plan.scheduled_cached_reqs
        start |= zip(cached.req_ids, cached.num_computed_tokens, strict=True)
        for req_id in cached.resumed_req_ids:
            self._tables[req_id] = []
        for req_id, blocks in cached.new_block_ids.items():
            self._tables[req_id] += blocks
        output = ModelRunnerOutput()
        for req_id, num_new in plan.num_scheduled_tokens.items():
            drafts = plan.scheduled_spec_decode_tokens.get(req_id, [])
            output.sampled_token_ids[req_id] = self._run(req_id, start[req_id], num_new, drafts)
            if self.drafter and output.sampled_token_ids[req_id]:
                outputs = self._tokens[req_id][self.requests[req_id].num_prompt_tokens :]
                output.draft_token_ids[req_id] = self.drafter(outputs)
        return output

    def _run(self, req_id: str, start: int, num_new: int, drafts: list[int]) -> list[int]:
        """Fill the slots; at the end of the known tokens take the drafts that prove right and one token more."""
        known, adapter = self._tokens[req_id], self.requests[req_id].adapter
        tokens = [*known, *drafts]
        assert 1 <= num_new <= len(tokens) - start, f"{req_id}: {num_new} from {start} of {len(tokens)} tokens"
        unwritten = [p for p in range(start) if self._slot(req_id, p) not in self._slots]
        assert not unwritten, f"{req_id} reads positions {unwritten}, which nobody has computed"
        values = [self._slots[self._slot(req_id, p)] for p in range(start)]
        for position in range(start, start + num_new):
            values.append(kv_value(values, tokens[position], adapter))
            self._slots[self._slot(req_id, position)] = values[-1]
            self.writes.append((req_id, position))
        sampled: list[int] = []
        for position in range(len(known) - 1, start + num_new):
            if sampled and tokens[position] != sampled[-1]:
                break
            sampled.append(values[position] % VOCABULARY)
        known += sampled
        return sampled

    def _slot(self, req_id: str, position: int) -> tuple[int, int]:
        return self._tables[req_id][position // self.config.block_size], position % self.config.block_size
