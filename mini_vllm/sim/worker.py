"""Stands in for the GPU: how long does a step take, who gets a token? Knows plans and a clock. Chapter 12.

It keeps its own account of how far each request is, from the plans alone, as a real model runner does.
"""

from array import array
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from mini_vllm.core.output import ModelRunnerOutput, SchedulerOutput
from mini_vllm.errors import SchedulerStalledError
from mini_vllm.sim.clock import Clock, StepLoad
from mini_vllm.sim.request_log import Live
from mini_vllm.sim.workloads import OUTPUT_TOKEN

SAMPLED = [OUTPUT_TOKEN]
# So many evictions in a row without a token for anybody: those who run evict each other in turn, for ever.
MOST_FRUITLESS_PREEMPTIONS = 1000


@dataclass
class Totals:
    """Sums over the steps that start after the warm-up. Seconds are summed over time, blocks and requests with it.

    computed_tokens: all that steps computed, `padding_tokens` (places of a padded batch that hold nobody's token) and
    recomputed ones included. block_s, seq_s: KV blocks in use, and requests in the batch, times seconds.
    """

    steps: int = 0
    busy_s: float = 0.0
    computed_tokens: int = 0
    padding_tokens: int = 0
    recomputed_tokens: int = 0
    output_tokens: int = 0
    preemptions: int = 0
    block_s: float = 0.0
    seq_s: float = 0.0
    peak_blocks: int = 0


class SimWorker:
    """Executes plans on a clock.

    used_blocks: how many KV blocks are taken right now. charge: what a step is charged for, if not for its own tokens
    (padded batches). warmup_s: steps that start earlier are left out of the sums.
    """

    def __init__(
        self,
        clock: Clock,
        used_blocks: Callable[[], int],
        charge: Callable[[SchedulerOutput, StepLoad], StepLoad] | None = None,
        warmup_s: float = 0.0,
    ):
        self.clock = clock
        self.used_blocks = used_blocks
        self.charge = charge
        self.warmup_s = warmup_s
        self.now = 0.0
        self.live: dict[str, Live] = {}
        self.totals = Totals()
        self.gaps_us: Counter[int] = Counter()  # times between two tokens of a request, in whole microseconds
        self.fruitless_preemptions = 0  # since somebody got a token
        self.repeats = False  # the latest step let nobody in or out, and computed one token of each

    def execute(self, plan: SchedulerOutput) -> ModelRunnerOutput:
        live, start = self.live, self.now
        for req_id in plan.preempted_req_ids:
            r = live[req_id]
            r.preemptions += 1
            r.discarded_tokens += r.computed
            r.furthest = max(r.furthest, r.computed)
            r.computed = 0
        for new in plan.scheduled_new_reqs:
            r = live[new.req_id]
            r.computed = r.hit_tokens = new.num_computed_tokens
            r.scheduled_s = start
        cached = plan.scheduled_cached_reqs
        for req_id in cached.resumed_req_ids:
            live[req_id].computed = cached.num_computed_tokens[cached.req_ids.index(req_id)]

        n_prefill = n_decode = kv_tokens = pairs = recomputed = 0
        sampling = []
        for req_id, tokens in plan.num_scheduled_tokens.items():
            r = live[req_id]
            computed = r.computed
            end = r.computed = computed + tokens
            kv_tokens += end
            if tokens == 1 and computed >= r.prompt_tokens:
                n_decode += 1
                pairs += end
            else:
                n_prefill += tokens
                pairs += tokens * computed + tokens * (tokens + 1) // 2
            if computed < r.furthest:
                again = min(end, r.furthest) - computed
                r.recomputed_tokens += again
                recomputed += again
            if end == r.known:
                sampling.append(r)
        own = StepLoad(n_prefill, n_decode, kv_tokens, pairs, len(plan.num_scheduled_tokens), len(sampling))
        work = self.charge(plan, own) if self.charge else own
        entered = plan.scheduled_new_reqs or cached.resumed_req_ids
        self.repeats = not (n_prefill or entered or plan.preempted_req_ids)

        self.now = end_s = self.clock.after(start, work)
        for r in sampling:
            r.known += 1
            if r.known == r.prompt_tokens + 1:
                r.first_token_s = end_s
            else:
                gap_s = end_s - r.last_token_s
                if gap_s > r.longest_gap_s:
                    r.longest_gap_s = gap_s
                if r.measured:
                    self.gaps_us[int(1e6 * gap_s + 0.5)] += 1
            r.last_token_s = end_s
            if r.times is not None:
                r.times.append(end_s)
        self.fruitless_preemptions += len(plan.preempted_req_ids)
        if sampling:
            self.fruitless_preemptions = 0
        elif self.fruitless_preemptions >= MOST_FRUITLESS_PREEMPTIONS:
            raise SchedulerStalledError(
                f"{self.fruitless_preemptions} preemptions since the last token, the latest of "
                f"{', '.join(plan.preempted_req_ids)}: requests that do not fit together evict each other in turn. "
                "Give them more KV blocks, or let nobody in who does not fit whole (reserve_full_isl=True)"
            )
        if start >= self.warmup_s:
            self._count(start, own, work, recomputed, len(plan.preempted_req_ids))
        return ModelRunnerOutput({r.req_id: SAMPLED for r in sampling})

    def _count(self, start: float, own: StepLoad, work: StepLoad, recomputed: int, preemptions: int) -> None:
        totals, lasted_s, used = self.totals, self.now - start, self.used_blocks()
        totals.steps += 1
        totals.busy_s += lasted_s
        totals.computed_tokens += work.new_tokens
        totals.padding_tokens += work.new_tokens - own.new_tokens
        totals.recomputed_tokens += recomputed
        totals.output_tokens += own.n_sampled
        totals.preemptions += preemptions
        totals.block_s += used * lasted_s
        totals.seq_s += own.n_seqs * lasted_s
        totals.peak_blocks = max(totals.peak_blocks, used)

    def keep_times(self, live: Live) -> None:
        """From now on, remember when each token of this request comes."""
        live.times = array("d")
