"""Why somebody waits, for the two reasons that only the first stages have."""

from dataclasses import replace

from mini_vllm.sim.driver import SimRequest, simulate
from mini_vllm.sim.examples import five_requests
from mini_vllm.sim.systems import ReservingScheduler
from mini_vllm.stages import load_stage
from mini_vllm.viz.records import read_trace
from mini_vllm.viz.timeline import build_timeline
from mini_vllm.viz.wait_words import wait_words

RULE = "what is reserved for it must be free beside what is reserved for those who run"


class StaticAdmission(load_stage(4)):
    def schedule_waiting(self):
        return "batch_runs" if self.running else super().schedule_waiting()


def words(cls, requests, config, step):
    trace = simulate(requests, config, scheduler_cls=cls)
    return wait_words(build_timeline(*read_trace(trace)), step)


def test_a_reservation_with_its_arithmetic():
    """R1 may need 16 + 32 - 1 = 47 tokens, 3 blocks; R2 15, 1 block; R3 47, 3 blocks; the pool has 6."""
    requests, config = five_requests()
    for cls in (load_stage(5), ReservingScheduler):
        said = words(cls, requests, replace(config, max_num_batched_tokens=60), 0)
        assert said == f"R3 waits: {RULE}; all that they may ever need is 3 + 4 = 7 blocks, of 6."


class ReserveTwice(load_stage(5)):
    def tokens_to_reserve(self, request):
        return 2 * request.longest


def test_no_arithmetic_where_the_worst_case_would_fit():
    requests = [SimRequest("A", 8, 2), SimRequest("B", 8, 2)]
    config = replace(five_requests()[1], num_gpu_blocks=8, block_size=4, max_num_batched_tokens=60)
    assert words(ReserveTwice, requests, config, 0) == f"B waits: {RULE}."


def test_static_admission():
    requests, config = five_requests()
    said = words(StaticAdmission, requests, replace(config, max_num_seqs=2, max_num_batched_tokens=99), 3)
    assert said == "R3 waits: the door opens when nobody runs any more (static admission), and 2 requests run."
