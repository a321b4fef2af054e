"""Many steps at once, where each would only give every running request one more token. Chapter 12.

It leaves scheduler, blocks, timestamps and sums exactly as the same steps taken one by one would: a test compares all
of them on random runs. Knows `core.Scheduler` from the inside, as `core.fast_path` does.

    may repeat until  somebody finishes | somebody arrives | a block is needed and none is free | the run is cut
    and if others wait and prefixes are cached, until a block is taken or filled: they may find another hit then
"""

from mini_vllm.core.block_pool import BlockPool
from mini_vllm.core.scheduler import Scheduler
from mini_vllm.request import Request
from mini_vllm.sim.clock import StepLoad
from mini_vllm.sim.request_log import Live
from mini_vllm.sim.worker import SimWorker
from mini_vllm.sim.workloads import OUTPUT_TOKEN


def can_fast_forward(scheduler: object) -> bool:
    """Whether its steps are known from the inside: `core.Scheduler` with another queue or gates at most."""
    return (
        isinstance(scheduler, Scheduler)
        and scheduler.fast_path
        and type(scheduler).schedule is Scheduler.schedule
        and type(scheduler).update_from_output is Scheduler.update_from_output
    )


def fast_forward(scheduler: Scheduler, worker: SimWorker, until_s: float) -> int:
    """Take as many steps as are sure to repeat, none that starts at `until_s` or later; returns their number.

    The caller knows that nobody who waits can enter, that each running request has one token to compute, and that all
    of these fit into the budget, as they did in the step before.
    """
    running, longest = scheduler.running, scheduler.config.max_model_len
    most = min(min(r.longest, longest) - len(r.token_ids) for r in running) - 1  # the step of an end is a real one
    if most < 1:
        return 0
    blocks = _BlocksToCome(scheduler)
    live = [worker.live[r.request_id] for r in running]
    steps = _advance(blocks, worker, live, most, until_s)
    if steps:
        for request, state in zip(running, live, strict=True):
            request.num_computed_tokens += steps
            request.token_ids += [OUTPUT_TOKEN] * (request.num_computed_tokens + 1 - len(request.token_ids))
            state.computed += steps
            state.known += steps
            state.last_token_s = worker.now
        blocks.settle()
    return steps


def _advance(blocks: "_BlocksToCome", worker: SimWorker, live: list[Live], most: int, until_s: float) -> int:
    """The clock's side of the steps: times, gaps and sums, added up in the order of the steps."""
    batch, totals, gaps_us, after = len(live), worker.totals, worker.gaps_us, worker.clock.after
    kv_tokens = sum(state.computed for state in live)
    work = StepLoad(0, batch, kv_tokens, kv_tokens, batch, batch)
    num_measured = sum(state.measured for state in live)
    timed = [state.times for state in live if state.times is not None]
    now, steps, longest_gap_s, used = worker.now, 0, 0.0, worker.used_blocks()
    due, size = blocks.due, blocks.block_size
    while steps < most and now < until_s:
        if due[steps % size]:
            if (taken := blocks.step(steps)) is None:
                break
            used += taken
        kv_tokens += batch
        work.kv_tokens = work.attention_pairs = kv_tokens
        start, now = now, after(now, work)
        gap_s = now - start
        if gap_s > longest_gap_s:
            longest_gap_s = gap_s
        if num_measured:
            gaps_us[int(1e6 * gap_s + 0.5)] += num_measured
        for times in timed:
            times.append(now)
        steps += 1
        if start >= worker.warmup_s:
            totals.steps += 1
            totals.busy_s += gap_s
            totals.computed_tokens += batch
            totals.output_tokens += batch
            totals.block_s += used * gap_s
            totals.seq_s += batch * gap_s
            if used > totals.peak_blocks:
                totals.peak_blocks = used
    worker.now = now
    for state in live:
        state.longest_gap_s = max(state.longest_gap_s, longest_gap_s)
    return steps


class _BlocksToCome:
    """Which running requests will take or fill a block in which of the coming steps.

    All advance by one token a step, so a request's blocks come due every block_size steps: `due[i]` holds those of the
    steps i, i + block_size, …, in the order of `running`, in which the pool is asked.
    """

    def __init__(self, scheduler: Scheduler):
        self.scheduler = scheduler
        self.caching = scheduler.config.enable_prefix_caching
        # Who waits may find other hits once the pool has changed.
        self.stop_at_due = self.caching and len(scheduler.waiting) > 0
        self.pool: BlockPool = scheduler.kv_cache_manager.block_pool
        self.block_size = size = scheduler.config.block_size
        self.due: list[list[tuple[Request, list[int], bool, bool]]] = [[] for _ in range(size)]
        tables = scheduler.kv_cache_manager.req_to_blocks
        for request in scheduler.running:
            table = tables[request.request_id]
            takes = -request.num_computed_tokens % size
            fills = (takes - 1) % size
            if takes == fills:  # blocks of one token
                self.due[takes].append((request, table, True, self.caching))
                continue
            self.due[takes].append((request, table, True, False))
            if self.caching:
                self.due[fills].append((request, table, False, True))

    def step(self, step: int) -> int | None:
        """Hand out the blocks of one step; returns how many, or None if the step must be a real one."""
        due = self.due[step % self.block_size]
        num_blocks = sum(takes for _, _, takes, _ in due) if self.caching else len(due)
        if self.stop_at_due or num_blocks > self.pool.num_free_blocks:
            return None
        for request, table, takes, fills in due:
            if takes:
                table += self.pool.take(1)
            if fills:
                self._publish(request, request.num_computed_tokens + step + 1)
        return num_blocks

    def _publish(self, request: Request, num_tokens: int) -> None:
        """Register the block that is full with `num_tokens` tokens."""
        request.token_ids += [OUTPUT_TOKEN] * (num_tokens - len(request.token_ids))
        self.scheduler.kv_cache_manager.register_next_block(request)

    def settle(self) -> None:
        """Say again up to where each request needs no look, as `KVCacheManager.allocate_slots` does."""
        manager = self.scheduler.kv_cache_manager
        for request in self.scheduler.running:
            num_blocks = len(manager.req_to_blocks[request.request_id])
            request.quiet_until = manager.quiet_until(num_blocks, request.num_computed_tokens)
