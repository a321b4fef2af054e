"""A block that was promised and never written must not be found in the prefix cache (vllm-project/vllm#43569).

Blocks of one token, 8 in all; 3 tokens a step, 2 of one request while another is there. A is the less urgent one.

              A (7 prompt tokens)         B (1 prompt token)
    step 0    tokens 0 1 2
    step 1    tokens 3 4                  token 0
    step 2    tokens 5 6 planned          needs a block; none is free: A must leave, and gives 5 and 6 back
    step 3    comes back                  (has ended)

A's blocks got their names when they were planned. So in step 3 the cache offers A not 5 blocks but 6: the sixth is
still free and named, and nobody has ever written it.
"""

import pytest

from mini_vllm.core.scheduler import Scheduler
from mini_vllm.stages.ch10_priority_aging import Scheduler as ClearScheduler
from tests.core.public_bugs_world import World

both = pytest.mark.parametrize("cls", [Scheduler, ClearScheduler], ids=["core", "clear form"])


def until_a_must_leave(cls, unpublish_given_back):
    w = World(
        cls, block_size=1, num_gpu_blocks=8, max_num_seqs=2, max_num_batched_tokens=3, long_prefill_token_threshold=2,
        policy="priority", enable_prefix_caching=True, unpublish_given_back=unpublish_given_back,
    )  # fmt: skip
    w.add("A", 7, 2, priority=1)
    assert w.step() == {"A": 3}
    w.add("B", 1, 2, priority=0)
    assert w.step() == {"A": 2, "B": 1}
    assert w.step() == {"B": 1}
    assert w.plans[-1].preempted_req_ids == ["A"]
    assert [position for req_id, position in w.writes if req_id == "A"] == [0, 1, 2, 3, 4]
    return w


def tokens_found_in_cache(plan):
    cached = plan.scheduled_cached_reqs
    assert cached.req_ids == cached.resumed_req_ids == ["A"]
    return cached.num_computed_tokens[0]


@both
def test_what_was_given_back_is_not_found(cls):
    w = until_a_must_leave(cls, unpublish_given_back=True)
    w.step()
    assert tokens_found_in_cache(w.plans[-1]) == 5
    w.drain()
    assert w.outputs_are_right()


@both
def test_as_in_vllm_it_is_found_and_was_never_written(cls):
    w = until_a_must_leave(cls, unpublish_given_back=False)
    with pytest.raises(AssertionError, match=r"A reads positions \[5\], which nobody has computed"):
        w.step()
    assert tokens_found_in_cache(w.plans[-1]) == 6
