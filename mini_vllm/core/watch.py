"""Watches a scheduler from outside: is each plan within the contract? Knows plans and outputs, no scheduler's insides.

Any class with the four methods may drive the simulator and the engine (DESIGN: a learner's scheduler). The watch keeps
its own account of who waits, who runs and who owns which block, so a mistake is a named error with the arithmetic in
it, instead of a wrong token a hundred steps later. The same account feeds the trace. Chapter 4.
"""

from collections import Counter
from collections.abc import Iterable
from typing import NoReturn

from mini_vllm.config import SchedulerConfig
from mini_vllm.core.block_pool import NULL_BLOCK
from mini_vllm.core.output import ModelRunnerOutput, NewRequestData, RequestOutput, SchedulerOutput
from mini_vllm.core.request_queue import rank
from mini_vllm.errors import SchedulerContractError, SchedulerStalledError
from mini_vllm.request import Request

REQUIRED_METHODS = ("add_request", "schedule", "update_from_output", "has_unfinished_requests")
# A scheduler may idle on purpose (static batching waits for a full batch), but not for ever.
MAX_IDLE_STEPS = 64


class SchedulerWatch:
    """The public account of one run: `waiting`, `running`, `block_tables`, `computed`, `known` (tokens per request)."""

    def __init__(self, scheduler: object, config: SchedulerConfig):
        name = type(scheduler).__name__
        missing = [m for m in REQUIRED_METHODS if not callable(getattr(scheduler, m, None))]
        if missing:
            raise SchedulerContractError(
                f"{name} lacks {', '.join(missing)}; a scheduler needs {', '.join(REQUIRED_METHODS)}"
            )
        self.name = name
        self.config = config
        self.requests: dict[str, Request] = {}
        self.waiting: list[str] = []
        self.running: list[str] = []
        self.block_tables: dict[str, list[int]] = {}
        self.computed: dict[str, int] = {}
        self.known: dict[str, int] = {}
        self.owners: Counter[int] = Counter()  # block -> requests that have it in their table
        self.seen_by_worker: set[str] = set()
        self.idle_steps = 0

    @property
    def num_free_blocks(self) -> int:
        return self.config.num_gpu_blocks - len(self.owners)

    def arrived(self, request: Request) -> None:
        req_id = request.request_id
        self.requests[req_id] = request
        self._queue(req_id, at=len(self.waiting))
        self.computed[req_id] = 0
        self.known[req_id] = request.num_tokens

    def _queue(self, req_id: str, at: int) -> None:
        """Who waits stands in the order of service: by arrival, the evicted in front; or by priority."""
        self.waiting.insert(at, req_id)
        if self.config.policy == "priority":
            self.waiting.sort(key=lambda r: rank(self.requests[r], self.config.aging))

    def left(self, request_ids: Iterable[str]) -> None:
        """Finished or aborted: the request owns nothing any more."""
        for req_id in request_ids:
            for queue in (self.waiting, self.running):
                if req_id in queue:
                    queue.remove(req_id)
            self._drop_blocks(req_id)
            for table in (self.computed, self.known, self.requests):
                table.pop(req_id, None)
            self.seen_by_worker.discard(req_id)

    def planned(self, plan: SchedulerOutput) -> None:
        """Check a plan and take it into the account. Raises SchedulerContractError."""
        if not isinstance(plan, SchedulerOutput):
            self._refuse(f"returns {type(plan).__name__} from schedule(), which must return a SchedulerOutput")
        self._check_budget(plan)
        for req_id in plan.preempted_req_ids:
            if req_id not in self.running:
                self._refuse(f"preempts {req_id!r}, which is not running")
            self.running.remove(req_id)
            self._queue(req_id, at=0)
            self._drop_blocks(req_id)
            self.computed[req_id] = 0
        new_data = {new.req_id: new for new in plan.scheduled_new_reqs}
        cached = plan.scheduled_cached_reqs
        told = dict(zip(cached.req_ids, cached.num_computed_tokens, strict=True))
        resumed = set(cached.resumed_req_ids)
        # In the plan's own order: it is the order of `running`, the newly admitted and the resumed mixed.
        for req_id in plan.num_scheduled_tokens:
            if req_id in new_data:
                self._take_new(new_data[req_id])
            else:
                self._take_cached(req_id, told[req_id], cached.new_block_ids.get(req_id, []), req_id in resumed)
        self._check_pieces(plan)
        self._drop_blocks_out_of_window()
        self._check_progress(plan)

    def _take_new(self, new: NewRequestData) -> None:
        if new.req_id not in self.waiting:
            self._refuse(f"admits {new.req_id!r}, which does not wait")
        if new.req_id in self.seen_by_worker:
            self._refuse(f"sends {new.req_id!r} as new, but the worker knows it")
        request = self.requests[new.req_id]
        if new.prompt_token_ids != request.prompt_token_ids:
            self._refuse(
                f"sends the worker another prompt for {new.req_id!r}: {len(new.prompt_token_ids)} tokens, the request "
                f"has {request.num_prompt_tokens}; send the whole prompt, even if only a chunk is scheduled"
            )
        self.seen_by_worker.add(new.req_id)
        self._admit(new.req_id, new.num_computed_tokens, new.block_ids)

    def _take_cached(self, req_id: str, num_computed_tokens: int, block_ids: list[int], resumed: bool) -> None:
        if req_id not in self.seen_by_worker:
            self._refuse(f"sends no data for {req_id!r}, which is new")
        if resumed:
            if req_id not in self.waiting:
                self._refuse(f"resumes {req_id!r}, which does not wait")
            self._admit(req_id, num_computed_tokens, block_ids)
        elif num_computed_tokens != self.computed[req_id]:
            self._refuse(
                f"tells the worker that {req_id!r} has {num_computed_tokens} computed tokens, but it has "
                f"{self.computed[req_id]}: give the count from before this step"
            )
        elif block_ids:
            self._give_blocks(req_id, block_ids)

    def _admit(self, req_id: str, num_computed_tokens: int, block_ids: list[int]) -> None:
        """It enters; what it has computed already are whole blocks of a prefix hit, and not everything."""
        self.waiting.remove(req_id)
        self.running.append(req_id)
        if len(self.running) > (limit := self.config.max_num_seqs):
            self._refuse(f"runs {len(self.running)} requests ({self.running}); max_num_seqs is {limit}")
        if num_computed_tokens % self.config.block_size or not 0 <= num_computed_tokens < self.known[req_id]:
            self._refuse(
                f"admits {req_id!r} with {num_computed_tokens} computed tokens of {self.known[req_id]}: a hit is whole "
                f"blocks of {self.config.block_size} and leaves at least one token; without a hit it is 0"
            )
        self._give_blocks(req_id, block_ids, num_computed_tokens)
        self.computed[req_id] = num_computed_tokens

    def updated(self, plan: SchedulerOutput, output: ModelRunnerOutput, news: list[RequestOutput]) -> None:
        """Take the sampled tokens into the account and check what the scheduler reported."""
        if not isinstance(news, list):
            what = f"returns {type(news).__name__} from update_from_output()"
            self._refuse(f"{what}, which must return a list of RequestOutput")
        for req_id, token_ids in output.sampled_token_ids.items():
            if req_id in self.known:
                self.known[req_id] += len(token_ids)
                if token_ids and (drafts := plan.scheduled_spec_decode_tokens.get(req_id)):
                    self.computed[req_id] -= len(drafts) + 1 - len(token_ids)  # the rejected ones
        ended = {item.request_id: item.finish_reason for item in news if item.finished}
        self._check_news(plan, output, news)
        for req_id in dict.fromkeys([*plan.num_scheduled_tokens, *ended]):
            if req_id in self.requests:
                self._check_end(req_id, output.sampled_token_ids.get(req_id, []), ended.get(req_id))
        self.left(ended)

    def _check_news(self, plan: SchedulerOutput, output: ModelRunnerOutput, news: list[RequestOutput]) -> None:
        """Every sampled token is reported once, in the step that sampled it, to the request it belongs to."""
        told = {item.request_id: item.new_token_ids for item in news}
        if len(told) != len(news):
            self._refuse(f"reports a request twice in one step: {[n.request_id for n in news]}")
        for req_id in told:
            if req_id not in self.requests:
                self._refuse(f"reports news of {req_id!r}, which is not in the run")
        for req_id, token_ids in output.sampled_token_ids.items():
            if req_id not in self.requests:
                continue
            reported = told.get(req_id, [])
            if reported == token_ids:
                continue
            has_drafts = req_id in plan.scheduled_spec_decode_tokens  # a stop among accepted drafts cuts the rest off
            if not has_drafts or reported != token_ids[: len(reported)]:
                self._refuse(
                    f"reports {reported} for {req_id!r}, but the model sampled {token_ids}: report the new tokens of "
                    "this step, all of them and only them"
                )

    def _check_end(self, req_id: str, token_ids: list[int], finish_reason: str | None) -> None:
        """A request ends when it must, and not before."""
        request, known = self.requests[req_id], self.known[req_id]
        params, longest = request.sampling_params, self.config.max_model_len
        num_output = known - request.num_prompt_tokens
        is_full = num_output >= params.max_tokens or known >= longest
        must_end = is_full or not request.stop_token_ids.isdisjoint(token_ids)
        if must_end != (finish_reason is not None):
            what = f"does not end {req_id!r}, which has" if must_end else f"ends {req_id!r} too early: it has"
            self._refuse(
                f"{what} {num_output} output tokens (max_tokens {params.max_tokens}) and {known} in all "
                f"(max_model_len {longest})"
            )

    def _refuse(self, what: str) -> NoReturn:
        # Called only where something is wrong: making the words costs more than all the checks of a good step.
        raise SchedulerContractError(f"{self.name} {what}")

    def _check_budget(self, plan: SchedulerOutput) -> None:
        total, limit = plan.total_num_scheduled_tokens, self.config.max_num_batched_tokens
        pieces = plan.num_scheduled_tokens
        slots = self.config.max_num_new_slots_for_drafting * len(pieces)
        if total + slots > limit:
            parts = " + ".join(f"{req_id}:{n}" for req_id, n in pieces.items())
            parts += f", and {slots} slots for drafting" if slots else ""
            self._refuse(f"plans {total} tokens ({parts}); max_num_batched_tokens is {limit}")
        cached = plan.scheduled_cached_reqs
        if not hasattr(cached, "req_ids"):
            self._refuse(f"sends a {type(cached).__name__} as scheduled_cached_reqs, not a CachedRequestData")
        ids, counts = cached.req_ids, len(cached.num_computed_tokens)
        sent = [new.req_id for new in plan.scheduled_new_reqs] + ids
        if len(sent) != len(pieces) or set(sent) != pieces.keys():
            self._refuse(f"schedules {sorted(pieces)} but sends the worker data for {sorted(sent)}")
        if counts != len(ids):
            self._refuse(f"sends {counts} counts of computed tokens for the {len(ids)} requests {ids}")
        if strangers := {*cached.new_block_ids, *cached.resumed_req_ids}.difference(ids):
            self._refuse(f"sends blocks or a resumption for {sorted(strangers)}, not in req_ids")

    def _give_blocks(self, req_id: str, block_ids: list[int], num_hit_tokens: int = 0) -> None:
        """Only the blocks of a prefix hit may have another owner already."""
        num_shared = num_hit_tokens // self.config.block_size
        table = self.block_tables.setdefault(req_id, [])
        num_unseen = self.config.blocks_out_of_window(num_hit_tokens)
        for i, block in enumerate(block_ids):
            if i < num_unseen and block == NULL_BLOCK:
                table.append(block)
                continue
            if not (isinstance(block, int) and 1 <= block <= self.config.num_gpu_blocks):
                self._refuse(f"gives {req_id!r} block {block}; the pool has 1..{self.config.num_gpu_blocks}")
            if i >= num_shared and block in self.owners:
                owner = next(other for other, blocks in self.block_tables.items() if block in blocks)
                self._refuse(f"gives block {block} to {req_id!r}, but {owner!r} owns it")
            self.owners[block] += 1
            table.append(block)
        if not table:
            del self.block_tables[req_id]

    def _drop_blocks(self, req_id: str) -> None:
        self._disown(self.block_tables.pop(req_id, ()))

    def _disown(self, blocks: Iterable[int]) -> None:
        for block in blocks:
            if block != NULL_BLOCK:
                self.owners[block] -= 1
                if not self.owners[block]:
                    del self.owners[block]

    def _drop_blocks_out_of_window(self) -> None:
        """Sliding window: no plan says which blocks are given back; it follows from what is computed (chapter 6)."""
        for req_id in self.running if self.config.sliding_window is not None else ():
            num_unseen = self.config.blocks_out_of_window(self.computed[req_id])
            table = self.block_tables.get(req_id, [])
            self._disown(table[:num_unseen])
            table[:num_unseen] = [NULL_BLOCK] * len(table[:num_unseen])

    def _check_pieces(self, plan: SchedulerOutput) -> None:
        running, block_size, drafts = set(self.running), self.config.block_size, plan.scheduled_spec_decode_tokens
        for req_id, n in plan.num_scheduled_tokens.items():
            if req_id not in running:
                self._refuse(f"schedules {req_id!r}, which is not running")
            computed = self.computed[req_id]
            open_tokens = self.known[req_id] + len(drafts.get(req_id, ())) - computed
            if not 1 <= n <= open_tokens:
                self._refuse(
                    f"schedules {n} tokens of {req_id!r}, which has {open_tokens} to compute "
                    f"({self.known[req_id]} known - {computed} computed)"
                )
            self.computed[req_id] = computed = computed + n
            num_blocks = len(self.block_tables.get(req_id, ()))
            if computed > (room := num_blocks * block_size):
                self._refuse(f"computes {computed} tokens of {req_id!r}, whose {num_blocks} blocks hold {room}")

    def check_unfinished(self, says_unfinished: bool) -> None:
        """`has_unfinished_requests()` must agree with the account, or the run ends too early or never."""
        left = list(self.requests)
        if left and not says_unfinished:
            self._refuse(f"says that no request is unfinished, but {left} are")
        if says_unfinished and not left:
            self._refuse("says that requests are unfinished, but all have ended")

    def _check_progress(self, plan: SchedulerOutput) -> None:
        self.idle_steps = 0 if plan.num_scheduled_tokens else self.idle_steps + 1
        if self.idle_steps < MAX_IDLE_STEPS or not (self.waiting or self.running):
            return
        state = f"{len(self.running)} running, {len(self.waiting)} waiting, {self.num_free_blocks} blocks free"
        why = f"; the plan says {plan.blocked_reason!r}" if plan.blocked_reason else ""
        if self.waiting:
            head = self.waiting[0]
            need = self.config.blocks_for(self.known[head])
            why += (
                f"; queue head {head} has {self.known[head]} tokens (budget {self.config.max_num_batched_tokens} a "
                f"step) and needs {need} blocks"
            )
        raise SchedulerStalledError(
            f"{self.name} stalled: nothing was scheduled in {self.idle_steps} steps and nothing is to come "
            f"({state}{why})"
        )
