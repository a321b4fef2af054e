"""What the steps of an engine did and how long each part took. Knows plans and results; decides nothing. Chapter 14.

Its size does not grow with the run: the latest steps one by one, and sums over all of them.
"""

from collections import deque
from dataclasses import dataclass

from mini_vllm.core.output import ModelRunnerOutput, SchedulerOutput


@dataclass(slots=True)
class MeasuredStep:
    """One step as its loop saw it. Times are seconds since the run began; the counts are those while it ran."""

    plan: SchedulerOutput
    t_planned: tuple[float, float]
    num_running: int
    num_waiting: int
    num_free_blocks: int
    t_run: tuple[float, float] = (0.0, 0.0)
    t_updated: tuple[float, float] = (0.0, 0.0)


@dataclass(slots=True)
class StepStats:
    """One step in numbers.

    step: its number since the engine was made. planned_ms, run_ms, updated_ms: scheduler, model runner, scheduler.
    step_ms: by how much the clock went on; with async_scheduling less than the three together, for they overlap.
    num_prefill_tokens: of prompts, and of what a preempted request computes once more. num_decode_tokens: the others,
    drafts included. num_cached_tokens: found in the prefix cache, not computed. num_sampled_tokens: came out.
    """

    step: int
    planned_ms: float
    run_ms: float
    updated_ms: float
    step_ms: float
    num_prefill_tokens: int
    num_decode_tokens: int
    num_cached_tokens: int
    num_sampled_tokens: int
    num_running: int
    num_waiting: int
    kv_blocks_used: int
    num_preempted: int
    num_drafts_verified: int = 0
    num_drafts_accepted: int = 0


# What adds up from step to step; of the other numbers the peak is of interest.
SUMS = (
    *("planned_ms", "run_ms", "updated_ms", "step_ms"),
    *("num_prefill_tokens", "num_decode_tokens", "num_cached_tokens", "num_sampled_tokens"),
    *("num_preempted", "num_drafts_verified", "num_drafts_accepted"),
)
PEAKS = ("num_running", "num_waiting", "kv_blocks_used")


class EngineStats:
    """Statistics of an engine, over all its runs.

    steps: the latest `keep_steps`, oldest first. total: sums of all steps since the engine was made or `clear()` was
    called. peak: the largest numbers of running and waiting requests and of KV blocks in use. print() shows a summary.
    """

    def __init__(self, num_gpu_blocks: int, keep_steps: int = 1000) -> None:
        self.num_gpu_blocks = num_gpu_blocks
        self.steps: deque[StepStats] = deque(maxlen=keep_steps)
        self.num_steps = 0
        self._prompt_lens: dict[str, int] = {}
        self._t_end = 0.0
        self.clear()

    def clear(self) -> None:
        """Forget what was so far, as before a measurement; steps are numbered on."""
        self.steps.clear()
        self.total: dict[str, float] = {name: 0 for name in ("steps", *SUMS)}
        self.peak = dict.fromkeys(PEAKS, 0)

    def begin_run(self) -> None:
        """A new loop: its clock starts at 0, and it knows no request yet."""
        self._prompt_lens.clear()
        self._t_end = 0.0

    @property
    def acceptance_rate(self) -> float | None:
        """Share of the verified drafts that proved right; None if there were none."""
        verified = self.total["num_drafts_verified"]
        return self.total["num_drafts_accepted"] / verified if verified else None

    def add(self, step: MeasuredStep, output: ModelRunnerOutput) -> None:
        plan, sampled = step.plan, output.sampled_token_ids
        prefill, decode, cached = self._count_tokens(plan)
        verified = accepted = 0
        for req_id, drafts in plan.scheduled_spec_decode_tokens.items():
            if sampled.get(req_id):
                verified += sum(token_id >= 0 for token_id in drafts)  # below 0: padding
                accepted += len(sampled[req_id]) - 1
        end = step.t_updated[1]
        stats = StepStats(
            step=self.num_steps,
            planned_ms=_ms(step.t_planned),
            run_ms=_ms(step.t_run),
            updated_ms=_ms(step.t_updated),
            step_ms=_ms((max(self._t_end, step.t_planned[0]), end)),
            num_prefill_tokens=prefill,
            num_decode_tokens=decode,
            num_cached_tokens=cached,
            num_sampled_tokens=sum(map(len, sampled.values())),
            num_running=step.num_running,
            num_waiting=step.num_waiting,
            kv_blocks_used=self.num_gpu_blocks - step.num_free_blocks,
            num_preempted=len(plan.preempted_req_ids),
            num_drafts_verified=verified,
            num_drafts_accepted=accepted,
        )
        self._t_end = end
        self.num_steps += 1
        self.steps.append(stats)
        self.total["steps"] += 1
        for name in SUMS:
            self.total[name] += getattr(stats, name)
        for name in PEAKS:
            self.peak[name] = max(self.peak[name], getattr(stats, name))

    def _count_tokens(self, plan: SchedulerOutput) -> tuple[int, int, int]:
        """Tokens of prefill, of decode, and found in the cache."""
        for req_id in plan.finished_req_ids:
            self._prompt_lens.pop(req_id, None)
        old = plan.scheduled_cached_reqs
        computed = dict(zip(old.req_ids, old.num_computed_tokens, strict=True))
        cached = sum(computed[req_id] for req_id in old.resumed_req_ids)
        for new in plan.scheduled_new_reqs:
            self._prompt_lens[new.req_id] = len(new.prompt_token_ids)
            computed[new.req_id] = new.num_computed_tokens
            cached += new.num_computed_tokens
        drafts, decode = plan.scheduled_spec_decode_tokens, 0
        for req_id, tokens in plan.num_scheduled_tokens.items():
            is_decode = computed[req_id] >= self._prompt_lens[req_id] and tokens == 1 + len(drafts.get(req_id, ()))
            decode += tokens if is_decode else 0
        return plan.total_num_scheduled_tokens - decode, decode, cached

    def __str__(self) -> str:
        total, peak, num_steps = self.total, self.peak, self.total["steps"]
        if not num_steps:
            return "no steps yet"
        parts_ms = {"planned": total["planned_ms"], "run": total["run_ms"], "updated": total["updated_ms"]}
        shares = ", ".join(f"{name} {ms / sum(parts_ms.values()):.1%}" for name, ms in parts_ms.items())
        seconds, sampled = total["step_ms"] / 1000, total["num_sampled_tokens"]
        prefill, decode, hits = (total[f"num_{kind}_tokens"] for kind in ("prefill", "decode", "cached"))
        rows = {
            "steps": f"{num_steps:,} in {seconds:.2f} s: {shares}",
            "computed": f"{prefill:,} tokens of prefill, {decode:,} of decode",
            "batch": f"{(prefill + decode) / num_steps:,.1f} tokens a step",
            "sampled": f"{sampled:,} tokens, {sampled / seconds:,.1f} a second",
            "requests": f"at most {peak['num_running']:,} ran and {peak['num_waiting']:,} waited at one time",
            "KV blocks": f"at most {peak['kv_blocks_used']:,} of {self.num_gpu_blocks:,} in use "
            f"({peak['kv_blocks_used'] / self.num_gpu_blocks:.0%})",
            "cache hits": f"{hits:,} tokens" if hits else "",
            "preemptions": f"{total['num_preempted']:,}",
            "drafts": "",
        }
        if self.acceptance_rate is not None:
            verified, accepted = total["num_drafts_verified"], total["num_drafts_accepted"]
            rows["drafts"] = f"{verified:,} verified, {accepted:,} accepted ({self.acceptance_rate:.0%})"
        return "\n".join(f"{name:12} {text}" for name, text in rows.items() if text)


def _ms(span: tuple[float, float]) -> float:
    return 1000 * (span[1] - span[0])
