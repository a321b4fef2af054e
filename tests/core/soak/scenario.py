"""One run: a configuration, requests that keep arriving, and every rule looked at after every step. Knows no pytest."""

import random
from collections import Counter, deque

from mini_vllm.core.async_scheduler import AsyncScheduler
from mini_vllm.core.output import ModelRunnerOutput, SchedulerOutput
from mini_vllm.core.scheduler import Scheduler
from mini_vllm.errors import DuplicateRequestError, KVPoolTooSmallError
from mini_vllm.request import Request
from tests.core.soak.broken import need
from tests.core.soak.generator import Crowd, num_steps_ahead, random_config
from tests.core.soak.lockstep import Partner
from tests.core.soak.rules import Rules
from tests.core.soak.solo import SoloRuns
from tests.core.soak.truth import Truth
from tests.core.soak.witness import Witness
from tests.core.soak.worker import Worker

MAX_IDLE = 3  # empty plans in a row, with nothing under way and somebody unfinished
MAX_STEPS_WITHOUT_NEWS = 600


class Scenario:
    def __init__(self, kind: str, seed: int, stats: Counter, every: bool = False):
        self.kind, self.seed, self.stats = kind, seed, stats
        self.rng = rng = random.Random(f"{kind} {seed}")
        self.config = cfg = random_config(kind, rng)
        self.depth = num_steps_ahead(kind, rng)
        self.crowd = Crowd(kind, cfg, rng)
        self.scheduler = (AsyncScheduler if self.depth else Scheduler)(cfg)
        self.partner = Partner(self.scheduler, kind, cfg) if kind in ("lockstep", "fast") else None
        self.solo_runs = SoloRuns(cfg, self.depth, stats)
        self.worker = Worker(cfg, self.crowd.alphabet, rng, stats)
        self.rules = Rules(cfg, self.scheduler, self.worker, self.depth, stats)
        self.witness = Witness(self.scheduler, stats)
        self.alive = self.rules.alive
        self.freeze_every = 1 if every else 8
        self.in_flight: deque = deque()
        self.truths: dict[str, Truth] = {}
        self.got: dict[str, list[int]] = {}
        self.idle = self.step_index = self.last_news = self.trace_hash = 0

    # --- what happens from outside ---

    def _arrive(self, req_id: str | None = None) -> None:
        request, cfg = self.crowd.request(req_id, self.alive, self.step_index), self.config
        req_id = request.request_id
        try:
            self.scheduler.add_request(request)
        except KVPoolTooSmallError:
            need(req_id not in self.scheduler.requests, req_id, "is refused and known")
            self.solo_runs.check_refused(request)
            return
        self.solo_runs.check_taken(request)
        if self.partner:
            self.partner.add_request(request)
        self.stats["requests"] += 1
        truth = Truth(request, cfg, self.crowd.alphabet, self.rules.names)
        self.alive[req_id], self.got[req_id] = request, []
        self.truths[req_id] = self.worker.truths[req_id] = truth
        self.crowd.heard(truth.tokens)
        if self.rng.random() < 0.02:
            try:
                self.scheduler.add_request(Request(req_id, [1]))
            except DuplicateRequestError:
                self.stats["duplicate id refused"] += 1
            else:
                need(False, req_id, "is taken twice")

    def _abort(self, when: str) -> str | None:
        req_id = self.crowd.whom_to_abort(self.alive)
        if req_id is None:
            self.scheduler.finish_requests(["nobody", "nobody"])
            self.stats["abort of an unknown id"] += 1
            return None
        request = self.alive[req_id]
        state = request.status.name.lower()
        if request.num_stale_plans:
            state += ", stale output under way"
        elif request.num_plans_in_flight:
            state += ", step under way"
        elif request.status.name == "RUNNING" and request.is_prefill_chunk:
            state += ", in its prompt"
        self.stats[f"abort {when}: {state}"] += 1
        self._finish([req_id])
        return req_id

    def _finish(self, request_ids: list[str]) -> None:
        self.scheduler.finish_requests(request_ids[0] if len(request_ids) == 1 else [*request_ids, request_ids[0]])
        if self.partner:
            self.partner.finish_requests(request_ids)
        for req_id in request_ids:
            self._end(req_id, "abort")

    def _end(self, req_id: str, reason: str) -> None:
        request, truth, got = self.alive.pop(req_id), self.truths.pop(req_id), self.got.pop(req_id)
        need(request.finish_reason == reason, req_id, "ended as", request.finish_reason, "and said", reason)
        need(request.output_token_ids == got, req_id, "holds", request.output_token_ids, "and sent", got)
        if reason == "abort":
            need(got == truth.output[: len(got)], req_id, "sent", got, "alone", truth.output)
        else:
            need(got == truth.output and reason == truth.reason, req_id, "sent", got, reason, "alone", truth.output)
        self.rules.to_report[req_id] += 1
        self.last_news = self.step_index
        self.stats[f"ended: {reason}"] += 1
        self.stats["evicted, and served to the end"] += request.num_preemptions > 0 and reason != "abort"

    # --- one step ---

    def step(self, arriving: bool) -> None:
        rng, crowd = self.rng, self.crowd
        while arriving and crowd.wants_in(len(self.alive)):
            self._arrive()
        if rng.random() < crowd.abort_rate:
            self._abort("between steps")
        self.rules.before_plan()
        self.witness.before_plan()
        plan = self.scheduler.schedule()
        frozen = repr(plan) if self.step_index % self.freeze_every == 0 else None
        if self.partner:
            self.partner.schedule(plan)
        output = self.worker.execute(plan)
        self.rules.check_plan(plan)
        self.rules.check_published()
        self.in_flight.append((plan, output, frozen))
        if rng.random() < crowd.abort_rate / 2:
            aborted = self._abort("while a step runs")
            if aborted and arriving and rng.random() < 0.3:
                self._arrive(aborted)  # the output under way is not for this one
                self.stats["an id comes again while a step runs"] += 1
        while self.in_flight and (len(self.in_flight) > self.depth or rng.random() < 0.02):
            self._update(*self.in_flight.popleft())
        self.rules.check_books()
        self._check_progress(plan)
        self.trace_hash = hash((self.trace_hash, *plan.num_scheduled_tokens.items(), *self.rules.last_hashes))
        self.step_index += 1

    def _update(self, plan: SchedulerOutput, output: ModelRunnerOutput, frozen: str | None) -> None:
        evicted = {r for r in self.alive if self.alive[r].status.name == "PREEMPTED"}
        news = self.scheduler.update_from_output(plan, output)
        if self.partner:
            self.partner.update_from_output(output, news)
        need(frozen is None or repr(plan) == frozen, "the plan was changed:", frozen, plan)
        for item in news:
            req_id, reason = item.request_id, item.finish_reason
            need(req_id in self.alive, req_id, "has news after its end")
            self.got[req_id] += item.new_token_ids
            self.last_news = self.step_index
            self.stats["stale outputs"] += req_id in evicted
            if reason is not None:
                self.stats["ended by stale output"] += req_id in evicted
                self._end(req_id, reason)

    def _check_progress(self, plan: SchedulerOutput) -> None:
        under_way = any(p.num_scheduled_tokens for p, _, _ in self.in_flight)
        self.idle = self.idle + 1 if self.alive and not plan.num_scheduled_tokens and not under_way else 0
        need(self.idle < MAX_IDLE, "stalled:", plan.blocked_reason, list(self.alive.values()))
        if self.alive and self.step_index - self.last_news > MAX_STEPS_WITHOUT_NEWS:
            ranks = Counter((r.priority, r.arrival_time) for r in self.alive.values())
            equals = self.config.policy == "priority" and max(ranks.values()) > 1
            is_known = equals and not self.config.reserve_full_isl
            need(is_known, "no news for", MAX_STEPS_WITHOUT_NEWS, "steps:", list(self.alive.values()))
            # vLLM's own: of equals the first in `running` is the victim, so two of them can evict each other for ever
            # if each may come back while the other runs. Ended by hand.
            self.stats["equals that evict each other for ever"] += 1
            self._finish(list(self.alive))

    def run(self, max_steps: int = 100_000) -> int:
        """To the end; returns a fingerprint of every step. Broken carries kind, seed and step."""
        try:
            with self.witness.at_work():
                self._run(max_steps)
        except Exception as error:
            error.add_note(f"kind {self.kind}, seed {self.seed}, step {self.step_index}\n{self.config}")
            raise
        finally:
            self.stats["steps"] += self.step_index
            self.stats["scenarios"] += 1
        return self.trace_hash

    def _run(self, max_steps: int) -> None:
        while self.step_index < max_steps:
            arriving = self.step_index < self.crowd.num_arriving_steps
            self.step(arriving)
            if not arriving and not self.alive:
                while self.in_flight:
                    self._update(*self.in_flight.popleft())
                self.rules.check_books()
                break
        need(not self.alive, "not done after", max_steps, "steps")
        free = self.scheduler.kv_cache_manager.num_free_blocks
        need(free == self.config.num_gpu_blocks, "blocks are left over")


def run_scenario(kind: str, seed: int, stats: Counter, every: bool = False) -> int:
    """One scenario; every sixteenth twice, to see that the same seed gives the same steps."""
    fingerprint = Scenario(kind, seed, stats, every).run()
    if seed % 16 == 0:
        again = Scenario(kind, seed, Counter(), every).run()
        need(again == fingerprint, f"kind {kind}, seed {seed}: another trace the second time")
    return fingerprint
