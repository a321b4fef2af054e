"""The watch over a learner's scheduler: each mistake is a named error that shows the value and the limit.

Every class here is the right scheduler with one mistake of the kind people make. Blocks hold four tokens.
"""

import re
from copy import deepcopy
from dataclasses import replace

import pytest

from mini_vllm.batching import StaticBatcher
from mini_vllm.config import SchedulerConfig
from mini_vllm.core.output import CachedRequestData, RequestOutput, SchedulerOutput
from mini_vllm.core.scheduler import Scheduler
from mini_vllm.core.step_loop import StepLoop
from mini_vllm.core.watch import MAX_IDLE_STEPS
from mini_vllm.errors import (
    DuplicateRequestError,
    KVPoolTooSmallError,
    MiniVLLMError,
    SchedulerContractError,
    SchedulerStalledError,
)
from mini_vllm.request import Request
from mini_vllm.sampling_params import SamplingParams
from mini_vllm.sim.driver import SimRequest, simulate
from mini_vllm.sim.fake_runner import FakeModelRunner

LIMITS = SchedulerConfig(max_num_seqs=2, max_num_batched_tokens=8, num_gpu_blocks=3, block_size=4)
SHORT = SamplingParams(max_tokens=4)
A, B, C = (SimRequest(name, prompt_len=3, max_tokens=4) for name in "ABC")
# A and B fill a block each and both need a second one: with two blocks in the pool B is evicted.
TIGHT = replace(LIMITS, num_gpu_blocks=2)
FULL_A, FULL_B = SimRequest("A", 4, 3), SimRequest("B", 4, 3)


class Misreads(Scheduler):
    """Takes one limit for another: `misread` are the limits that it believes in."""

    misread: dict = {}

    def __init__(self, config):
        super().__init__(replace(config, **self.misread))


class Replans(Scheduler):
    """Makes the right plan and spoils it."""

    def schedule(self):
        self.right = super().schedule()
        return self.spoil(self.right)

    def update_from_output(self, plan, output):
        return super().update_from_output(self.right, output)

    def spoil(self, plan):
        raise NotImplementedError


# --- mistakes with the limits ---


class ForgetsTheBudget(Misreads):
    misread = {"max_num_batched_tokens": 1_000}


class ForgetsTheBudgetWhenDecoding(Replans):
    def spoil(self, plan):
        return replace(plan, num_scheduled_tokens={r: n + 7 for r, n in plan.num_scheduled_tokens.items()})


class ForgetsTheDrafter(Misreads):
    misread = {"max_num_new_slots_for_drafting": 0}


class ForgetsMaxNumSeqs(Misreads):
    misread = {"max_num_seqs": 8}


# --- mistakes with blocks ---


class GivesABlockTwice(Scheduler):
    def __init__(self, config):
        super().__init__(config)
        self.kv_cache_manager.block_pool.take = lambda n: [1] * n


class CountsBlocksFromZero(Scheduler):
    def __init__(self, config):
        super().__init__(config)
        self.kv_cache_manager.block_pool.take = lambda n: list(range(n))


class BelievesInALargerPool(Misreads):
    misread = {"num_gpu_blocks": 100}


class ForgetsTheSecondBlock(Misreads):
    misread = {"block_size": 100}


class KeepsTheBlocksOfTheDead(Replans):
    """Frees too early: gives a running request's block to the next one."""

    def spoil(self, plan):
        taken = [replace(new, block_ids=[1]) for new in plan.scheduled_new_reqs]
        return replace(plan, scheduled_new_reqs=taken)


# --- mistakes with who is in the plan ---


class SchedulesAGhost(Replans):
    def spoil(self, plan):
        ghosts = [replace(new, req_id="ghost") for new in plan.scheduled_new_reqs]
        tokens = {"ghost": plan.total_num_scheduled_tokens}
        return replace(plan, scheduled_new_reqs=ghosts, num_scheduled_tokens=tokens)


class RunsWhoWaits(Replans):
    """Goes on with the request that it has just evicted: the ghost tokens of many real schedulers."""

    def spoil(self, plan):
        cached, tokens = deepcopy(plan.scheduled_cached_reqs), dict(plan.num_scheduled_tokens)
        for victim in plan.preempted_req_ids:
            cached.add(victim, 0, [])
            tokens[victim] = 1
        return replace(plan, scheduled_cached_reqs=cached, num_scheduled_tokens=tokens)


class PreemptsWhoWaits(Replans):
    def spoil(self, plan):
        return replace(plan, preempted_req_ids=["A"]) if plan.scheduled_new_reqs else plan


class SendsNoData(Replans):
    def spoil(self, plan):
        return replace(plan, scheduled_cached_reqs=CachedRequestData())


class SendsAList(Replans):
    def spoil(self, plan):
        return replace(plan, scheduled_cached_reqs=[])


class SendsTooFewCounts(Replans):
    def spoil(self, plan):
        return replace(plan, scheduled_cached_reqs=replace(plan.scheduled_cached_reqs, num_computed_tokens=[]))


class SendsBlocksForNobody(Replans):
    def spoil(self, plan):
        return replace(plan, scheduled_cached_reqs=CachedRequestData(new_block_ids={"ghost": [3]}))


class ResumesNobody(Replans):
    def spoil(self, plan):
        return replace(plan, scheduled_cached_reqs=CachedRequestData(resumed_req_ids=["ghost"]))


class SendsAnotherCount(Replans):
    def spoil(self, plan):
        cached = deepcopy(plan.scheduled_cached_reqs)
        cached.num_computed_tokens = [n + 1 for n in cached.num_computed_tokens]
        return replace(plan, scheduled_cached_reqs=cached)


class SendsOnlyChangesOfANewRequest(Replans):
    def spoil(self, plan):
        cached = CachedRequestData()
        for new in plan.scheduled_new_reqs:
            cached.add(new.req_id, 0, new.block_ids)
        return replace(plan, scheduled_new_reqs=[], scheduled_cached_reqs=cached)


class SendsAResumedRequestAsNew(Scheduler):
    def _preempt(self, request):
        super()._preempt(request)
        self.known_to_worker.discard(request.request_id)


class ResumesWhoRuns(Replans):
    def spoil(self, plan):
        cached = plan.scheduled_cached_reqs
        return replace(plan, scheduled_cached_reqs=replace(cached, resumed_req_ids=cached.req_ids))


# --- mistakes with how many tokens ---


class TwoTokensPerDecode(Replans):
    def spoil(self, plan):
        decodes = set(plan.scheduled_cached_reqs.req_ids)
        return replace(plan, num_scheduled_tokens={r: n + (r in decodes) for r, n in plan.num_scheduled_tokens.items()})


class SchedulesNothingOfSomebody(Replans):
    def spoil(self, plan):
        return replace(plan, num_scheduled_tokens=dict.fromkeys(plan.num_scheduled_tokens, 0))


# --- mistakes with the end ---


class NeverEnds(Scheduler):
    def update_from_output(self, plan, output):
        for req_id, token_ids in output.sampled_token_ids.items():
            self.requests[req_id].token_ids += token_ids
        return [RequestOutput(req_id, token_ids) for req_id, token_ids in output.sampled_token_ids.items()]


class SendsSomebodyTwice(Replans):
    def spoil(self, plan):
        cached = deepcopy(plan.scheduled_cached_reqs)
        for req_id, count in zip(list(cached.req_ids), list(cached.num_computed_tokens), strict=True):
            cached.add(req_id, count, [])
        return replace(plan, scheduled_cached_reqs=cached)


class ReportsNothing(Scheduler):
    def update_from_output(self, plan, output):
        super().update_from_output(plan, output)
        return []


class SchedulesNobody(Scheduler):
    def schedule(self):
        return SchedulerOutput()


class SchedulesNobodyAndSaysWhy(Scheduler):
    def schedule(self):
        return SchedulerOutput(blocked_reason="kv_full_sequence")


CASES = [
    (ForgetsTheBudget, [SimRequest("A", 9, 1)], LIMITS, "plans 9 tokens (A:9); max_num_batched_tokens is 8"),
    (
        ForgetsTheBudgetWhenDecoding,
        [A],
        LIMITS,
        "plans 10 tokens (A:10); max_num_batched_tokens is 8",
    ),
    (
        ForgetsTheDrafter,
        [A, SimRequest("B", 5, 1)],
        replace(LIMITS, max_num_new_slots_for_drafting=1),
        "plans 8 tokens (A:3 + B:5, and 2 slots for drafting); max_num_batched_tokens is 8",
    ),
    (ForgetsMaxNumSeqs, [A, B, SimRequest("C", 1, 1)], LIMITS, "runs 3 requests (['A', 'B', 'C']); max_num_seqs is 2"),
    (GivesABlockTwice, [A, B], LIMITS, "gives block 1 to 'B', but 'A' owns it"),
    (GivesABlockTwice, [SimRequest("A", 5, 1)], LIMITS, "gives block 1 to 'A', but 'A' owns it"),
    (KeepsTheBlocksOfTheDead, [A, replace(B, arrival_step=1)], LIMITS, "gives block 1 to 'B', but 'A' owns it"),
    (CountsBlocksFromZero, [A], LIMITS, "gives 'A' block 0; the pool has 1..3"),
    (BelievesInALargerPool, [FULL_A, FULL_B], TIGHT, "gives 'A' block 3; the pool has 1..2"),
    (ForgetsTheSecondBlock, [FULL_A], LIMITS, "computes 5 tokens of 'A', whose 1 blocks hold 4"),
    (SchedulesAGhost, [A], LIMITS, "admits 'ghost', which does not wait"),
    (RunsWhoWaits, [FULL_A, FULL_B], TIGHT, "schedules 'B', which is not running"),
    (PreemptsWhoWaits, [A], LIMITS, "preempts 'A', which is not running"),
    (SendsNoData, [A], LIMITS, "schedules ['A'] but sends the worker data for []"),
    (SendsSomebodyTwice, [A], LIMITS, "schedules ['A'] but sends the worker data for ['A', 'A']"),
    (ReportsNothing, [A], LIMITS, "reports [] for 'A', but the model sampled [1000]"),
    (SendsAList, [A], LIMITS, "sends a list as scheduled_cached_reqs, not a CachedRequestData"),
    (SendsTooFewCounts, [A], LIMITS, "sends 0 counts of computed tokens for the 1 requests ['A']"),
    (SendsBlocksForNobody, [A], LIMITS, "sends blocks or a resumption for ['ghost'], not in req_ids"),
    (ResumesNobody, [A], LIMITS, "sends blocks or a resumption for ['ghost'], not in req_ids"),
    (SendsAnotherCount, [A], LIMITS, "tells the worker that 'A' has 4 computed tokens, but it has 3"),
    (SendsOnlyChangesOfANewRequest, [A], LIMITS, "sends no data for 'A', which is new"),
    (SendsAResumedRequestAsNew, [FULL_A, FULL_B], TIGHT, "sends 'B' as new, but the worker knows it"),
    (ResumesWhoRuns, [A], LIMITS, "resumes 'A', which does not wait"),
    (TwoTokensPerDecode, [A], LIMITS, "schedules 2 tokens of 'A', which has 1 to compute (4 known - 3 computed)"),
    (SchedulesNothingOfSomebody, [A], LIMITS, "schedules 0 tokens of 'A', which has 3 to compute"),
    (NeverEnds, [SimRequest("A", 3, 2)], LIMITS, "does not end 'A', which has 2 output tokens (max_tokens 2)"),
]


@pytest.mark.parametrize(("wrong", "requests", "config", "message"), CASES, ids=lambda v: getattr(v, "__name__", ""))
def test_a_mistake_is_named_with_value_and_limit(wrong, requests, config, message):
    with pytest.raises(SchedulerContractError, match=f"^{wrong.__name__} " + re.escape(message)):
        simulate(requests, config, scheduler_cls=wrong)


@pytest.mark.parametrize("config", [LIMITS, TIGHT])
def test_the_right_scheduler_passes_on_the_same_inputs(config):
    simulate([FULL_A, FULL_B], config)


@pytest.mark.parametrize("gone", ["add_request", "schedule", "update_from_output", "has_unfinished_requests"])
def test_a_missing_method_is_named_before_anything_runs(gone):
    wrong = type("Unfinished", (Scheduler,), {gone: None})
    message = (
        f"Unfinished lacks {gone}; a scheduler needs add_request, schedule, update_from_output, has_unfinished_requests"
    )
    with pytest.raises(SchedulerContractError, match=f"^{message}$"):
        simulate([A], LIMITS, scheduler_cls=wrong)


def test_the_four_methods_are_enough():
    class Four:
        def __init__(self, config):
            self.inner = Scheduler(config)

        def add_request(self, request):
            self.inner.add_request(request)

        def schedule(self):
            return self.inner.schedule()

        def update_from_output(self, plan, output):
            return self.inner.update_from_output(plan, output)

        def has_unfinished_requests(self):
            return self.inner.has_unfinished_requests()

    assert simulate([A, B], LIMITS, scheduler_cls=Four).outputs() == simulate([A, B], LIMITS).outputs()


def test_a_stall_shows_who_waits_and_for_what():
    with pytest.raises(SchedulerStalledError) as error:
        simulate([SimRequest("A", 5, 2), B], LIMITS, scheduler_cls=SchedulesNobody)
    assert str(error.value) == (
        f"SchedulesNobody stalled: nothing was scheduled in {MAX_IDLE_STEPS} steps and nothing is to come (0 running, "
        "2 waiting, 3 blocks free; queue head A has 5 tokens (budget 8 a step) and needs 2 blocks)"
    )


def test_a_stall_repeats_the_reason_in_the_plan():
    with pytest.raises(SchedulerStalledError, match="the plan says 'kv_full_sequence'; queue head A has 3 tokens"):
        simulate([A], LIMITS, scheduler_cls=SchedulesNobodyAndSaysWhy)


def test_a_stall_of_those_who_run_is_seen_too():
    class StopsAfterThePrompt(Replans):
        def spoil(self, plan):
            return SchedulerOutput() if plan.scheduled_cached_reqs.req_ids else plan

    with pytest.raises(SchedulerStalledError, match=r"\(1 running, 0 waiting, 2 blocks free\)"):
        simulate([A], LIMITS, scheduler_cls=StopsAfterThePrompt)


def test_a_prompt_that_never_fits_ends_as_a_stall_with_the_arithmetic():
    with pytest.raises(SchedulerStalledError, match=r"3 blocks free; .* A has 13 tokens .* and needs 4 blocks"):
        simulate([SimRequest("A", 13, 1)], replace(LIMITS, refuse_unfittable=False))


def test_a_prompt_that_never_fits_is_refused_at_the_door_unless_that_is_off():
    with pytest.raises(KVPoolTooSmallError, match=r"'A' needs up to 4 KV blocks for 13 tokens .* pool has 3"):
        simulate([SimRequest("A", 13, 1)], LIMITS)


def test_a_scheduler_may_idle_on_purpose():
    class Patient(StaticBatcher):
        max_wait_steps = MAX_IDLE_STEPS - 1

    assert len(simulate([A], LIMITS, scheduler_cls=Patient).steps) == MAX_IDLE_STEPS - 1 + A.max_tokens


def test_but_not_for_ever():
    class TooPatient(StaticBatcher):
        max_wait_steps = MAX_IDLE_STEPS

    with pytest.raises(SchedulerStalledError):
        simulate([A], LIMITS, scheduler_cls=TooPatient)


def test_only_idle_steps_in_a_row_count():
    class EveryOtherStep(Scheduler):
        rests = False

        def schedule(self):
            self.rests = not self.rests
            return SchedulerOutput() if self.rests else super().schedule()

    long = SimRequest("A", 1, MAX_IDLE_STEPS + 1)
    roomy = replace(LIMITS, num_gpu_blocks=64)
    assert len(simulate([long], roomy, scheduler_cls=EveryOtherStep).steps) == 2 * (MAX_IDLE_STEPS + 1)


def test_idle_steps_before_an_arrival_are_no_stall():
    late = replace(B, arrival_step=3 * MAX_IDLE_STEPS)

    class WaitsForTheLast(Scheduler):
        def schedule(self):
            return super().schedule() if "B" in self.requests else SchedulerOutput()

        def has_unfinished_requests(self):
            return True if "B" in self.requests else super().has_unfinished_requests()

    trace = simulate([A, late], LIMITS, scheduler_cls=WaitsForTheLast)
    assert trace.first_token_step() == {"A": 192, "B": 192}


def test_a_stalled_scheduler_is_a_broken_contract_and_both_are_ours():
    assert issubclass(SchedulerStalledError, SchedulerContractError)
    assert issubclass(SchedulerContractError, MiniVLLMError)


def test_the_account_forgets_who_was_aborted():
    scheduler = Scheduler(LIMITS)
    loop = StepLoop(scheduler, LIMITS, FakeModelRunner().execute, kind="sim")
    loop.add_request(Request("A", [10, 20, 21], SHORT))
    loop.step()
    loop.abort(["A", "nobody"])
    watch = loop.watch
    assert (watch.running, watch.block_tables, watch.num_free_blocks) == ([], {}, 3)
    loop.add_request(Request("A", [10, 20], SHORT))
    loop.step()
    assert loop.trace.steps[-1]["aborted"] == ["A"]
    assert watch.computed == {"A": 2}


# --- ends, and the order of admission ---


def test_the_account_keeps_running_in_the_order_of_admission():
    # Step 1 evicts B; in step 2 B comes back and then D enters for the first time.
    config = SchedulerConfig(max_num_seqs=3, max_num_batched_tokens=16, num_gpu_blocks=4, block_size=4)
    requests = [SimRequest("A", 8, 2), SimRequest("B", 8, 8), SimRequest("D", 1, 4, arrival_step=1)]

    class Checked(Scheduler):
        seen: list = []

        def schedule(self):
            plan = super().schedule()
            self.seen.append([r.request_id for r in self.running])
            return plan

    trace = simulate(requests, config, scheduler_cls=Checked)
    assert any(step["resumed"] and step["new"] for step in trace.steps)
    assert [step["running"] for step in trace.steps] == Checked.seen


def test_a_scheduler_that_forgets_who_waits_is_named():
    class LooksOnlyAtRunning(Scheduler):
        def has_unfinished_requests(self):
            return bool(self.running)

    with pytest.raises(SchedulerContractError):
        simulate([SimRequest("A", 1, 1), SimRequest("B", 1, 1)], replace(LIMITS, max_num_seqs=1),
                 scheduler_cls=LooksOnlyAtRunning)  # fmt: skip


def test_a_scheduler_that_ends_a_request_too_early_is_named():
    class EndsAtTheFirstToken(Scheduler):
        def update_from_output(self, plan, output):
            news = super().update_from_output(plan, output)
            self.finish_requests([n.request_id for n in news])
            return [replace(n, finish_reason="length") for n in news]

    with pytest.raises(SchedulerContractError):
        simulate([A], LIMITS, scheduler_cls=EndsAtTheFirstToken)


class IgnoresStopTokens(Scheduler):
    def update_from_output(self, plan, output):
        (request,) = self.running
        stops, request.stop_token_ids = request.stop_token_ids, frozenset()
        news = super().update_from_output(plan, output)
        request.stop_token_ids = stops
        return news


@pytest.mark.parametrize(("stops", "eos"), [((1001,), None), ((), 1001)])
def test_a_scheduler_that_ignores_stop_tokens_is_named(stops, eos):
    def run(scheduler_cls):
        loop = StepLoop(scheduler_cls(LIMITS), LIMITS, FakeModelRunner().execute, kind="sim", clock=None)
        loop.add_request(Request("A", [1, 2, 3], SamplingParams(9, stop_token_ids=stops), eos_token_id=eos))
        while loop.has_unfinished_requests():
            loop.step()
        return loop.trace.outputs()

    assert run(Scheduler) == {"A": [1000, 1001]}
    with pytest.raises(SchedulerContractError, match="does not end 'A', which has 2 output tokens"):
        run(IgnoresStopTokens)


def test_a_scheduler_that_ignores_max_model_len_is_named():
    class ForgetsMaxModelLen(Misreads):
        misread = {"max_model_len": 1_000}

    with pytest.raises(SchedulerContractError):
        simulate([SimRequest("A", 3, 8)], replace(LIMITS, max_model_len=6), scheduler_cls=ForgetsMaxModelLen)


@pytest.mark.parametrize("method", ["schedule", "update_from_output"])
def test_a_forgotten_return_is_named(method):
    def forgets(self, *args):
        getattr(Scheduler, method)(self, *args)

    wrong = type("Forgets", (Scheduler,), {method: forgets})
    with pytest.raises(SchedulerContractError, match=f"Forgets returns NoneType from {method}"):
        simulate([A], LIMITS, scheduler_cls=wrong)


def test_a_scheduler_that_never_says_done_is_named_at_once():
    wrong = type("NeverDone", (Scheduler,), {"has_unfinished_requests": lambda self: True})
    with pytest.raises(SchedulerContractError, match="NeverDone says that requests are unfinished, but all have ended"):
        simulate([A], LIMITS, scheduler_cls=wrong)


def test_an_abort_without_finish_requests_is_named():
    methods = ("add_request", "schedule", "update_from_output", "has_unfinished_requests")
    inner = Scheduler(LIMITS)
    four = type("Four", (), {name: staticmethod(getattr(inner, name)) for name in methods})
    loop = StepLoop(four(), LIMITS, FakeModelRunner().execute, kind="sim", clock=None)
    loop.add_request(Request("A", [1], SHORT))
    with pytest.raises(SchedulerContractError, match=r"Four has no finish_requests.*\['A'\]"):
        loop.abort(["A"])


def test_one_id_may_be_aborted_as_it_is():
    loop = StepLoop(Scheduler(LIMITS), LIMITS, FakeModelRunner().execute, kind="sim", clock=None)
    for name in ("R1", "R", "1"):
        loop.add_request(Request(name, [1], SHORT))
    loop.abort("R1")
    assert list(loop.watch.requests) == list(loop.scheduler.requests) == ["R", "1"]


def test_an_id_in_use_is_refused_for_every_scheduler():
    loop = StepLoop(Scheduler(LIMITS), LIMITS, FakeModelRunner().execute, kind="sim", clock=None)
    loop.add_request(Request("A", [1], SHORT))
    with pytest.raises(DuplicateRequestError, match="'A' is in use"):
        loop.add_request(Request("A", [2], SHORT))
