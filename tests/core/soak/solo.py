"""Does a request ever get through alone? Found by running it, not by arithmetic. Knows configurations and lengths.

This is what a refusal at the door is held against: a request that is taken must reach its end alone on its machine,
also if it is evicted after any of its tokens and starts over with all of them.
"""

from collections import Counter, deque
from dataclasses import dataclass, replace

from mini_vllm.config import SchedulerConfig
from mini_vllm.core.async_scheduler import AsyncScheduler
from mini_vllm.core.output import ModelRunnerOutput, SchedulerOutput
from mini_vllm.core.scheduler import Scheduler
from mini_vllm.request import Request
from mini_vllm.sampling_params import SamplingParams
from tests.core.soak.broken import need


@dataclass(frozen=True)
class Solo:
    """How it went: did it end without a stall or an eviction, and the most blocks it held at once."""

    ends: bool
    most_blocks: int


class SoloRuns:
    """Runs of single requests on one configuration; each only once."""

    def __init__(self, config: SchedulerConfig, num_steps_ahead: int, stats: Counter):
        self.config, self.num_steps_ahead, self.stats = replace(config, refuse_unfittable=False), num_steps_ahead, stats
        self._runs: dict[tuple[int, int], Solo] = {}

    def check_taken(self, request: Request) -> None:
        cfg = self.config
        widest = cfg.max_model_len + cfg.num_speculative_tokens + cfg.num_lookahead_tokens
        if -(-widest // cfg.block_size) > cfg.num_gpu_blocks:  # else the pool holds any request whole
            need(self._from_every_start(request).ends, *_lengths(request), "is taken and never ends, even alone")
            self.stats["taken, on a pool that does not hold everybody"] += 1

    def check_refused(self, request: Request) -> None:
        """Who is refused cannot get through alone; or it is so close that company could make the difference:

        drafts and lookahead may reach beyond its last token, and with a window its pieces may begin and end elsewhere,
        by the window less one token and one block at most. Not so with `reserve_full_isl`, which would not let it in.
        """
        self.stats["refused"] += 1
        cfg, solo = self.config, self._from_every_start(request)
        if not solo.ends:
            return
        margin = cfg.num_speculative_tokens + cfg.num_lookahead_tokens
        if cfg.sliding_window and (margin or not cfg.reserve_full_isl):
            margin += cfg.sliding_window - 1 + cfg.block_size
        is_close = solo.most_blocks + -(-margin // cfg.block_size) > cfg.num_gpu_blocks
        need(is_close, *_lengths(request), "is refused, and needs only", solo.most_blocks)
        self.stats["refused, and would have ended alone"] += 1

    def _from_every_start(self, request: Request) -> Solo:
        """The worst over all starts: fresh, and evicted with one, two, … outputs."""
        longest = min(request.num_prompt_tokens + request.sampling_params.max_tokens, self.config.max_model_len)
        runs = [self._run(known, longest) for known in range(request.num_prompt_tokens, longest)]
        return Solo(all(r.ends for r in runs), max(r.most_blocks for r in runs))

    def _run(self, num_known: int, longest: int) -> Solo:
        if (num_known, longest) not in self._runs:
            # Drafts that are accepted move it on in another rhythm than those that are not.
            most = self.config.num_speculative_tokens
            rhythms = {0, most, most + 1} if most else {0}
            runs = [self._run_with_drafts(num_known, longest, rhythm) for rhythm in rhythms]
            self._runs[num_known, longest] = Solo(all(r.ends for r in runs), max(r.most_blocks for r in runs))
        return self._runs[num_known, longest]

    def _run_with_drafts(self, num_known: int, longest: int, rhythm: int) -> Solo:
        cfg = self.config
        scheduler = (AsyncScheduler if self.num_steps_ahead else Scheduler)(cfg)
        # Every token another one, so that the prefix cache finds nothing of use.
        request = Request("A", list(range(num_known)), SamplingParams(max_tokens=longest - num_known, ignore_eos=True))
        scheduler.add_request(request)
        under_way: deque[tuple[SchedulerOutput, ModelRunnerOutput]] = deque()
        most_blocks = num_sampled = num_evictions = 0
        while scheduler.has_unfinished_requests():
            num_held = cfg.num_gpu_blocks - scheduler.kv_cache_manager.num_free_blocks
            plan = scheduler.schedule()
            # With a window some are given back before schedule() returns: what it held at once is in the plan.
            given = [new.block_ids for new in plan.scheduled_new_reqs]
            given += plan.scheduled_cached_reqs.new_block_ids.values()
            most_blocks = max(most_blocks, num_held + sum(len(blocks) for blocks in given))
            num_evictions += len(plan.preempted_req_ids)
            is_moving = plan.num_scheduled_tokens or any(before.num_scheduled_tokens for before, _ in under_way)
            # Two steps ahead it may ask for a block for one step too many (as in vLLM), and ends while it waits.
            if not is_moving or num_evictions > (self.num_steps_ahead == 2):
                return Solo(False, most_blocks)
            output = ModelRunnerOutput()
            if plan.num_scheduled_tokens and not request.is_prefill_chunk:
                drafts = len(plan.scheduled_spec_decode_tokens.get("A", ()))
                is_steady = rhythm <= cfg.num_speculative_tokens
                num_accepted = min(drafts, rhythm) if is_steady else num_sampled % (drafts + 1)
                fresh = range(1000 + num_sampled, 1001 + num_sampled + num_accepted)
                num_sampled += len(fresh)
                output = ModelRunnerOutput({"A": list(fresh)}, {"A": [-1] * cfg.num_speculative_tokens})
            under_way.append((plan, output))
            while len(under_way) > self.num_steps_ahead:
                scheduler.update_from_output(*under_way.popleft())
        return Solo(True, most_blocks)


def _lengths(request: Request) -> tuple[object, ...]:
    return (request.request_id, request.num_prompt_tokens, "+", request.sampling_params.max_tokens)
