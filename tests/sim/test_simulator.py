"""The simulator on runs small enough to check by eye; and against the driver of the step clock."""

import math
import random

import pytest

from mini_vllm.batching.continuous import ContinuousBatcher
from mini_vllm.batching.static import StaticBatcher
from mini_vllm.config import SchedulerConfig
from mini_vllm.core.output import CachedRequestData, NewRequestData, SchedulerOutput
from mini_vllm.core.scheduler import Scheduler
from mini_vllm.errors import (
    ConfigError,
    InvalidRequestError,
    KVPoolTooSmallError,
    PromptTooLongError,
    SchedulerContractError,
    SchedulerStalledError,
)
from mini_vllm.sampling_params import SamplingParams
from mini_vllm.sim import driver
from mini_vllm.sim.arrivals import AtOnce, Poisson
from mini_vllm.sim.clock import FixedClock, ModelClock, StepLoad
from mini_vllm.sim.closed_workloads import ClosedLoop
from mini_vllm.sim.lengths import Fixed, Independent, Uniform
from mini_vllm.sim.request_log import Live
from mini_vllm.sim.simulator import Simulator
from mini_vllm.sim.worker import MOST_FRUITLESS_PREEMPTIONS, SimWorker
from mini_vllm.sim.workloads import Arrival, Source, Workload
from mini_vllm.trace.reader import read_trace
from mini_vllm.trace.writer import TraceWriter

ROOMY = SchedulerConfig(max_num_seqs=8, max_num_batched_tokens=64, max_model_len=256, num_gpu_blocks=64, block_size=4)
SECOND = FixedClock(1.0)


def run(workload, config=ROOMY, clock=SECOND, *, fast_forward=True, scheduler_cls=Scheduler, **options):
    return Simulator(config, clock, scheduler_cls=scheduler_cls, fast_forward=fast_forward).run(workload, **options)


class Counted:
    """A step-time model whose milliseconds can be added up by hand: 10 and one more for each token."""

    def __init__(self):
        self.works = []

    def step_ms(self, work):
        self.works.append({name: getattr(work, name) for name in work.__slots__})
        return 10 + work.n_prefill + work.n_decode


# --- one request by hand ---


def test_the_five_timestamps_of_a_lone_request():
    # On a clock of 1 s a step: comes at 0.2, waits for step 1, whose end at 2 s brings the first of three tokens.
    result = run([Arrival(0.2, 5, 3)], token_times=True)
    row = result.log[0]
    assert (row.arrived_s, row.scheduled_s, row.first_token_s, row.last_token_s) == (0.2, 1.0, 2.0, 4.0)
    assert result.token_times == {0: [2.0, 3.0, 4.0]}
    assert (row.finished, row.output_tokens, row.prompt_tokens, row.longest_gap_s) == (True, 3, 5, 1.0)
    assert result.end_s == 4.0
    assert dict(result.gaps_us) == {1_000_000: 2}


def test_times_follow_the_step_time_model_and_the_arrival_starts_the_first_step():
    # 10 + 5 prompt tokens, then 10 + 1 twice; the request comes at 0.25 s to a server at rest.
    result = run([Arrival(0.25, 5, 3)], clock=ModelClock(Counted()), token_times=True)
    assert result.log[0].scheduled_s == 0.25
    assert result.token_times[0] == pytest.approx([0.265, 0.276, 0.287])


def test_what_a_step_is_charged_for():
    model = Counted()
    # Budget 8: A's prompt of 10 takes two steps; B (3 tokens) joins in the second. A: 10 + 2, B: 3 + 2 tokens in all.
    config = SchedulerConfig(max_num_seqs=2, max_num_batched_tokens=8, num_gpu_blocks=64, block_size=4)
    run([Arrival(0.0, 10, 3), Arrival(0.0, 3, 2)], config, ModelClock(model), fast_forward=False)
    assert model.works == [
        # 8 prompt tokens of A, which look at 1 + 2 + … + 8 = 36 pairs.
        {"n_prefill": 8, "n_decode": 0, "kv_tokens": 8, "attention_pairs": 36, "n_seqs": 1, "n_sampled": 0},
        # Two more of A after 8 (9 + 10 pairs), and B's three (1 + 2 + 3); both get a token.
        {"n_prefill": 5, "n_decode": 0, "kv_tokens": 13, "attention_pairs": 25, "n_seqs": 2, "n_sampled": 2},
        # One decode each, at 11 and 4 tokens.
        {"n_prefill": 0, "n_decode": 2, "kv_tokens": 15, "attention_pairs": 15, "n_seqs": 2, "n_sampled": 2},
        {"n_prefill": 0, "n_decode": 1, "kv_tokens": 12, "attention_pairs": 12, "n_seqs": 1, "n_sampled": 1},
    ]


def test_a_server_at_rest_waits_for_the_next_request():
    result = run([Arrival(0.0, 2, 1), Arrival(100.5, 2, 1)])
    assert [row.scheduled_s for row in result.log] == [0.0, 101.0]
    assert result.totals.steps == 2  # no steps in between
    assert result.totals.busy_s == 2.0


def test_who_comes_during_a_step_waits_for_the_next():
    result = run([Arrival(0.0, 2, 4), Arrival(0.5, 2, 1), Arrival(1.0, 2, 1)])
    assert [row.scheduled_s for row in result.log] == [0.0, 1.0, 1.0]


def test_a_preempted_request_is_counted_and_its_work_with_it():
    # 5 blocks of 4. A and B of 8 + 5: each holds 2 blocks, needs a third for its 9th token. A gets the last one.
    config = SchedulerConfig(num_gpu_blocks=5, block_size=4)
    result = run([Arrival(0.0, 8, 5), Arrival(0.0, 8, 5)], config, token_times=True)
    a, b = result.log
    assert (a.preemptions, b.preemptions) == (0, 1)
    assert b.discarded_tokens == 8 and b.recomputed_tokens == 8  # its 9th token was known, but not computed yet
    # B is put back in step 1, cannot come in (9 tokens are 3 blocks, 2 are free) until A ends with step 4.
    assert result.token_times == {0: [1, 2, 3, 4, 5], 1: [1, 6, 7, 8, 9]}
    assert b.longest_gap_s == 5.0
    assert (result.totals.preemptions, result.totals.recomputed_tokens) == (1, 8)
    assert result.totals.computed_tokens == 12 + 12 + 8


def test_blocks_in_use_are_added_up_over_time():
    # 2 blocks in steps 0 and 1 (5, 6 of 8 slots), then … 9 tokens need a third: steps 0-3 hold 2, step 4 holds 3.
    result = run([Arrival(0.0, 5, 6)])
    assert result.totals.block_s == 4 * 2 + 2 * 3
    assert result.totals.peak_blocks == 3
    assert result.totals.seq_s == 6


def test_hits_are_those_of_the_first_admission():
    config = SchedulerConfig(num_gpu_blocks=64, block_size=4, enable_prefix_caching=True)
    segments = ((7, 8), (8, 3))
    result = run([Arrival(0.0, 11, 1, segments=segments), Arrival(5.0, 11, 1, segments=segments)], config)
    assert [row.hit_tokens for row in result.log] == [0, 8]


def test_the_answer_of_one_turn_is_a_hit_in_the_next():
    config = SchedulerConfig(num_gpu_blocks=64, block_size=4, enable_prefix_caching=True)
    # The KV of the last token is never computed, so of 6 + 7 tokens 12 can be found again.
    talk = ((7, 6), (0, 7), (8, 5))
    result = run([Arrival(0.0, 6, 7, segments=((7, 6),)), Arrival(20.0, 18, 1, segments=talk)], config)
    assert result.log[1].hit_tokens == 12


# --- the whole run ---


def test_it_agrees_with_the_driver_on_the_step_clock():
    """Same requests, same steps: `sim.driver` and the simulator are two loops around one scheduler."""
    for seed in range(20):
        rng = random.Random(seed)
        config = SchedulerConfig(
            max_num_seqs=4, max_num_batched_tokens=12, num_gpu_blocks=14, block_size=4, watermark=rng.choice([0, 0.1])
        )
        rows = sorted((rng.randrange(20), rng.randint(1, 20), rng.randint(1, 20), rng.randrange(3)) for _ in range(12))
        trace = driver.simulate([driver.SimRequest(str(i), p, o, t) for i, (t, p, o, _) in enumerate(rows)], config)
        result = run([Arrival(float(t), p, o) for t, p, o, _ in rows], config)
        assert {str(i): row.last_token_s - 1 for i, row in enumerate(result.log)} == trace.finish_step()
        assert {str(i): row.first_token_s - 1 for i, row in enumerate(result.log)} == trace.first_token_step()
        assert result.totals.preemptions == sum(len(step["preempted"]) for step in trace.steps)


def test_a_run_that_is_cut_keeps_its_unfinished_requests():
    result = run([Arrival(0.0, 5, 100), Arrival(0.0, 5, 3), Arrival(9.5, 5, 3), Arrival(50.0, 5, 3)], until_s=10)
    assert [row.finished for row in result.log] == [False, True, False]
    assert result.log[0].output_tokens == 10  # steps 0 to 9
    assert math.isnan(result.log[2].scheduled_s)  # it came, and the run was over
    assert result.end_s == 10.0


def test_a_server_at_rest_waits_for_the_horizon_too():
    result = run([Arrival(0.0, 5, 2), Arrival(20.0, 5, 2)], until_s=10)
    assert (len(result.log), result.end_s) == (1, 10)  # rates are per second of these ten


class Tied(Source):
    """The answer to the first brings another request at the very moment at which the next one comes by itself."""

    def start(self):
        return self

    def after(self, done, now_s):
        return Arrival(3.0, 30, 1) if done.arrived_s == 0 else None


def test_who_comes_by_itself_goes_before_who_was_brought_at_the_same_moment():
    result = run(Tied([Arrival(0.0, 5, 1), Arrival(3.0, 20, 1)]))
    assert [row.prompt_tokens for row in result.log] == [5, 20, 30]


def test_all_that_was_ever_computed_counts_as_computed_again():
    """Evicted with 10 tokens, then with 4: of the next 12, 10 were there before."""
    worker = SimWorker(SECOND, used_blocks=lambda: 0)
    worker.live["A"] = Live("A", 0, 12, True)
    back = CachedRequestData(["A"], [0], {}, ["A"])
    worker.execute(
        SchedulerOutput([NewRequestData("A", [1] * 12, SamplingParams(), [], 0)], num_scheduled_tokens={"A": 10})
    )
    worker.execute(SchedulerOutput(preempted_req_ids=["A"]))
    worker.execute(SchedulerOutput([], back, num_scheduled_tokens={"A": 4}))
    worker.execute(SchedulerOutput(preempted_req_ids=["A"]))
    worker.execute(SchedulerOutput([], back, num_scheduled_tokens={"A": 12}))
    assert worker.live["A"].recomputed_tokens == worker.totals.recomputed_tokens == 4 + 10


def test_evictions_between_tokens_are_no_livelock_however_many():
    worker = SimWorker(SECOND, used_blocks=lambda: 0)
    live = worker.live["A"] = Live("A", 0, 1, True)
    for _ in range(MOST_FRUITLESS_PREEMPTIONS + 10):
        worker.execute(SchedulerOutput(preempted_req_ids=["A"]))
        back = CachedRequestData(["A"], [0], {}, ["A"])
        worker.execute(SchedulerOutput([], back, num_scheduled_tokens={"A": live.known}))
    assert live.preemptions == MOST_FRUITLESS_PREEMPTIONS + 10 == live.known - 1


def test_the_last_who_comes_before_the_horizon_is_in_the_run():
    assert len(run([Arrival(10.0, 5, 3)], until_s=10).log) == 1
    assert len(run([Arrival(10.1, 5, 3)], until_s=10).log) == 0


def test_who_comes_after_the_horizon_during_the_last_step_is_not_in_the_run():
    # Step 9 starts before the horizon of 9.5 and ends after it.
    assert len(run([Arrival(0.0, 5, 100), Arrival(9.4, 5, 3), Arrival(9.7, 5, 3)], until_s=9.5).log) == 2


def test_a_single_prompt_token_is_a_prefill():
    model = Counted()
    config = SchedulerConfig(max_num_seqs=2, max_num_batched_tokens=8, num_gpu_blocks=64, block_size=4)
    run([Arrival(0.0, 9, 2), Arrival(1.0, 1, 2)], config, ModelClock(model), fast_forward=False)
    assert [(work["n_prefill"], work["n_decode"]) for work in model.works] == [(8, 0), (1, 0), (0, 1), (1, 0), (0, 1)]


def test_the_warm_up_is_left_out_of_the_sums():
    result = run([Arrival(0.0, 5, 4), Arrival(2.0, 5, 4)], warmup_s=2.0)
    # A decodes in steps 0-3, B in 2-5: of A two tokens, of B all are in steps that start at 2 or later.
    assert result.totals.steps == 4
    assert result.totals.output_tokens == 2 + 4
    assert result.totals.computed_tokens == 2 + 8
    assert result.gaps_us.total() == 3  # of B only


def test_a_closed_loop_sends_when_an_answer_is_there():
    result = run(ClosedLoop(users=2, lengths=Independent(Fixed(4), Fixed(3)), num_requests=5))
    assert [(row.arrived_s, row.last_token_s) for row in result.log] == [(0, 3), (0, 3), (3, 6), (3, 6), (6, 9)]


def test_the_same_input_gives_the_same_result():
    workload = Workload(Poisson(3), Independent(Uniform(1, 30), Uniform(1, 30)), 50, seed=4)
    assert run(workload) == run(workload)


def test_no_request_is_no_step():
    result = run([])
    assert (len(result.log), result.totals.steps, result.end_s) == (0, 0, 0.0)


# --- traces ---


def test_a_trace_shows_the_same_run_and_is_of_the_simulator():
    workload = Workload(Poisson(3), Independent(Uniform(1, 30), Uniform(1, 30)), 12, seed=4)
    plain, traced = run(workload, token_times=True), run(workload, token_times=True, trace=True)
    assert plain.token_times == traced.token_times and plain.log == traced.log
    assert plain.trace is None
    trace = traced.trace
    assert (trace.header["kind"], trace.header["clock"]) == ("sim", "seconds")
    ends = [step["t_end"] for step in trace.steps if "0" in step["sampled"]]
    assert ends == traced.token_times[0]
    assert all(step["t_start"] < step["t_end"] for step in trace.steps)


def test_a_trace_can_go_straight_into_a_file(tmp_path):
    path = tmp_path / "run.jsonl"
    workload = [Arrival(0.0, 5, 4), Arrival(1.0, 5, 2)]
    result = run(workload, trace=TraceWriter(path))
    header, steps = read_trace(path)
    assert result.trace is None
    assert steps == run(workload, trace=True).trace.steps
    assert header["kind"] == "sim" and set(header["requests"]) == {"0", "1"}


# --- other schedulers ---


@pytest.mark.parametrize("scheduler_cls", [ContinuousBatcher, StaticBatcher])
def test_the_batchers_of_chapter_1_can_be_simulated(scheduler_cls):
    workload = Workload(AtOnce(), Independent(Fixed(4), Uniform(1, 9)), 20, seed=1)
    result = run(workload, scheduler_cls=scheduler_cls)
    assert all(row.finished for row in result.log)


def test_a_scheduler_of_somebody_else_is_watched():
    class Mine(Scheduler):
        def schedule(self):
            plan = super().schedule()
            for req_id in plan.num_scheduled_tokens:
                plan.num_scheduled_tokens[req_id] += 1
            return plan

    with pytest.raises(SchedulerContractError, match=r"Mine schedules 6 tokens of '0', which has 5 to compute"):
        run([Arrival(0.0, 5, 3)], scheduler_cls=Mine)


def test_a_scheduler_that_stalls_is_named():
    class Lazy(Scheduler):
        def schedule(self):
            return SchedulerOutput()

    with pytest.raises(SchedulerStalledError, match="Lazy stalled: nothing was scheduled in 64 steps"):
        run([Arrival(0.0, 5, 3)], scheduler_cls=Lazy)
    with pytest.raises(SchedulerStalledError, match="Lazy stalled"):
        Simulator(ROOMY, SECOND, scheduler_cls=Lazy, watch=False).run([Arrival(0.0, 5, 3)])


def test_a_scheduler_that_hides_its_pool_is_watched_even_if_nobody_asked():
    class Hidden:
        def __init__(self, config):
            self._inner = Scheduler(config)

        def __getattr__(self, name):
            if name == "kv_cache_manager":
                raise AttributeError(name)
            return getattr(self._inner, name)

    rows = [Arrival(0.0, 5, 6)]
    result = Simulator(ROOMY, SECOND, scheduler_cls=Hidden, watch=False).run(rows)
    assert result.totals == run(rows).totals


def test_requests_that_evict_each_other_for_ever_are_noticed():
    # As in vLLM 0.33.0: equal priority and arrival, 7 of 8 blocks each, and nobody asks whether all of it fits.
    config = SchedulerConfig(
        num_gpu_blocks=8,
        block_size=2,
        policy="priority",
        reserve_full_isl=False,
        long_prefill_token_threshold=3,
    )
    with pytest.raises(
        SchedulerStalledError, match=r"1000 preemptions since the last token, the latest of 1: .*in turn"
    ):
        run([Arrival(0.0, 13, 2), Arrival(0.0, 13, 2)], config)
    assert all(row.finished for row in run([Arrival(0.0, 13, 2), Arrival(0.1, 13, 2)], config).log)


def test_an_idle_scheduler_does_not_stop_the_clock():
    # Static batching waits 4 steps for a full batch, each of the model's fixed 10 ms.
    result = run([Arrival(0.0, 5, 1)], clock=ModelClock(Counted()), scheduler_cls=StaticBatcher)
    assert result.log[0].scheduled_s == pytest.approx(4 * 0.010)


# --- what is refused ---


def test_a_request_that_can_never_fit_is_refused_with_its_row():
    small = SchedulerConfig(num_gpu_blocks=4, block_size=4, max_model_len=100)
    rows = [Arrival(0.0, 5, 3), Arrival(1.0, 30, 3)]
    with pytest.raises(KVPoolTooSmallError, match=r"request 1 of the workload, at 1 s: .* needs up to 8 KV blocks"):
        run(rows, small)
    with pytest.raises(PromptTooLongError, match=r"request 1 of the workload.*256 prompt tokens"):
        run([Arrival(0.0, 5, 3), Arrival(1.0, 256, 3)])


def test_or_dropped_and_listed():
    small = SchedulerConfig(num_gpu_blocks=4, block_size=4, max_model_len=100)
    rows = [Arrival(0.0, 5, 3), Arrival(1.0, 30, 3), Arrival(2.0, 5, 3)]
    result = run(rows, small, drop_unfittable=True)
    assert len(result.log) == 2
    ((row, reason),) = result.refused
    assert row == 1 and "needs up to 8 KV blocks" in reason
    # Also where the scheduler would not refuse it by itself.
    result = run(rows, small, scheduler_cls=ContinuousBatcher, drop_unfittable=True)
    assert len(result.refused) == 1


def test_a_user_whose_request_is_refused_sends_the_next():
    small = SchedulerConfig(num_gpu_blocks=4, block_size=4, max_model_len=100)
    lengths = Independent(Uniform(1, 40), Fixed(2))
    result = run(ClosedLoop(1, lengths, 20), small, drop_unfittable=True)
    assert len(result.log) + len(result.refused) == 20 and result.refused


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (Arrival(-1.0, 5, 3), r"request 0 of the workload: arrived_s=-1.0 must be a number of seconds from 0"),
        (Arrival(math.nan, 5, 3), "arrived_s=nan"),
        (Arrival(math.inf, 5, 3), "arrived_s=inf"),
        (Arrival(1e17, 5, 3), r"arrived_s=1e\+17 must be a number of seconds from 0 to 1e\+09"),
        (Arrival(0.0, 0, 3), "prompt_tokens=0 must be a whole number from 1 to 10,000,000"),
        (Arrival(0.0, 10**12, 3), "prompt_tokens=1000000000000"),  # before a list of that length is made
        (Arrival(0.0, 5, -3), "output_tokens=-3"),
        (Arrival(0.0, 5.5, 3), "prompt_tokens=5.5"),
        (Arrival(0.0, 5, 3, segments=((1, 4),)), "its segments hold 4 of 5 prompt tokens"),
        (Arrival(0.0, 5, 3, segments=((1, -5), (2, 10))), r"segment \(1, -5\) must have .* at least 1 token"),
        (Arrival(0.0, 5, 3, segments=((1, 0), (2, 5))), r"segment \(1, 0\) must have .* at least 1 token"),
        (Arrival(0.0, 5, 3, segments=((-1, 5),)), r"segment \(-1, 5\) must have content from 0 to 9223372036854775807"),
        (Arrival(0.0, 5, 3, segments=((2**63, 5),)), "must have content from 0 to 9223372036854775807"),
        (Arrival(0.0, 5, 3, segments=(("a", 5),)), r"segment \('a', 5\) must be a pair of whole numbers"),
        (Arrival(0.0, 5, 3, segments=(5, 5)), "segment 5 must be a pair of whole numbers"),
        (Arrival(0.0, 5, 3, segments=3), r"segments=3 must be pairs \(content, tokens\)"),
        (Arrival, "the class Arrival is no Arrival"),
        ((0.0, 5, 3), r"\(0.0, 5, 3\) is no Arrival"),
    ],
)
def test_unsound_requests_are_refused_with_row_and_reason(bad, reason):
    with pytest.raises(InvalidRequestError, match=reason):
        run([bad])


def test_unsorted_arrivals_are_refused():
    with pytest.raises(InvalidRequestError, match=r"request 2 of the workload: arrived_s=1.0 lies before 5.0"):
        run([Arrival(0.0, 5, 3), Arrival(5.0, 5, 3), Arrival(1.0, 5, 3)])


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: Simulator(SchedulerConfig, SECOND), "config is the class SchedulerConfig"),
        (lambda: Simulator(ROOMY, FixedClock), "the clock is <class"),
        (lambda: Simulator(ROOMY, SECOND, scheduler_cls=Scheduler(ROOMY)), "scheduler_cls is <.*; give a class"),
        (lambda: Simulator(ROOMY, ModelClock(Counted)), "the step-time model is <class"),
        (lambda: Simulator(SchedulerConfig(num_speculative_tokens=2), SECOND), "no model that could draft"),
        (lambda: run(Workload), "the workload is the class Workload"),
        (lambda: run(7), "the workload is 7"),
        (lambda: run([], warmup_s=-1), "warmup_s=-1"),
        (lambda: run([], until_s=math.nan), "until_s=nan"),
        (lambda: FixedClock(0), "step_s=0"),
        (lambda: FixedClock(math.nan), "step_s=nan"),
        (lambda: FixedClock(1e-300), "step_s=1e-300 must be a number from 1e-06"),
        (lambda: FixedClock(True), "step_s=True"),
        (lambda: FixedClock(math.inf), "step_s=inf"),
        (lambda: run([], trace="run.jsonl"), r"trace='run.jsonl'; give True, False, or TraceWriter\('run.jsonl'\)"),
    ],
)
def test_unsound_settings_are_refused(make, reason):
    with pytest.raises(ConfigError, match=reason):
        make()


class Lasts:
    def __init__(self, ms):
        self.ms = ms

    def step_ms(self, work):
        return self.ms


@pytest.mark.parametrize("ms", [0, -5, math.nan, math.inf])
def test_a_step_takes_some_time_and_ends(ms):
    with pytest.raises(ConfigError, match=rf"Lasts.step_ms\(\) says {ms} ms for the step at 2 s"):
        Simulator(ROOMY, ModelClock(Lasts(ms))).run([Arrival(2.0, 5, 30)])


def test_a_step_without_work_waits_a_millisecond_before_the_next_look():
    clock = ModelClock(Lasts(0))
    assert clock.after(1.0, StepLoad()) == 1.001
    assert ModelClock(Lasts(5)).after(1.0, StepLoad()) == 1.005


# --- the grid of the fixed clock ---


def test_the_grid_holds_after_a_million_steps():
    clock, now = FixedClock(0.03), 0.0
    for _ in range(1_000_000):
        now = clock.after(now, None)
    assert now == 1_000_000 * 0.03


def test_waking_is_the_first_grid_point_not_before_the_arrival():
    clock = FixedClock(0.03)
    rng = random.Random(0)
    for _ in range(10_000):
        step = rng.randrange(10**6)
        arrival = step * 0.03 + rng.choice([0.0, 1e-9, -1e-9, rng.uniform(0, 0.03)])
        arrival = math.nextafter(arrival, rng.choice([-math.inf, arrival, math.inf]))
        wake = clock.wake(max(0.0, arrival))
        k = round(wake / 0.03)
        assert wake == k * 0.03 >= arrival and (k == 0 or (k - 1) * 0.03 < arrival)
