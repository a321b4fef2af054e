"""Public bug reports about aborts and request ids, in every state: ours does the right thing. Knows no model.

A client disconnects at any time, and ids come from outside. One test per case of `facts/public_bugs.json`, named by its
id, driven from outside through `World`; what does not apply stands at the head of test_public_bugs.py.
"""

from functools import partial

import pytest

from mini_vllm.core.async_scheduler import AsyncScheduler
from mini_vllm.core.scheduler import Scheduler
from mini_vllm.errors import DuplicateRequestError, MiniVLLMError
from mini_vllm.request import Request, RequestStatus
from mini_vllm.sampling_params import SamplingParams
from mini_vllm.stages.ch10_priority_aging import Scheduler as ClearForm
from tests.core.public_bugs_world import World, solo


@pytest.fixture(params=[Scheduler, ClearForm, AsyncScheduler], ids=["core", "clear", "async"])
def world(request):
    """Builds a world; all three schedulers must pass."""
    return partial(World, request.param)


# --- abort in every state ---


def ended_once(w: World, req_id: str) -> bool:
    """Aborted, told once, and nothing of it is left."""
    known = req_id in w.scheduler.requests or req_id in w.waiting() + w.running()
    return w.ends[req_id] == ["abort"] and not known and not w.blocks(req_id)


def test_a26_abort_while_waiting(world):
    """Abort in every state (vllm#52969, #18485, #25067): never scheduled."""
    w = world(max_num_seqs=1)
    w.add("other", 5, 6)
    w.step()
    w.add("x", 5, 6)
    w.abort("x")
    assert ended_once(w, "x")
    w.drain()
    assert w.outputs["x"] == []
    assert w.outputs_are_right()


def test_a26_abort_in_mid_prefill(world):
    """Abort in every state (vllm#52969, #18485, #25067): 4 of 12 prompt tokens computed."""
    w = world(max_num_seqs=1, max_num_batched_tokens=4)
    w.add("x", 12, 6)
    w.step()
    assert w.blocks("x")
    w.abort("x")
    assert ended_once(w, "x")
    w.add("other", 3, 2)
    w.drain()
    assert w.outputs_are_right()


def test_a26_abort_while_decoding(world):
    """Abort in every state (vllm#52969, #18485, #25067): the blocks are there for the next step."""
    w = world(num_gpu_blocks=3)
    w.add("x", 8, 5)
    w.step()
    w.step()
    w.add("other", 12, 1)
    w.step()
    assert w.waiting() == ["other"]
    w.abort("x")
    assert ended_once(w, "x")
    assert w.free == 3
    assert w.step() == {"other": 12}
    w.drain()
    assert w.outputs_are_right()


def test_a26_abort_while_preempted(world):
    """Abort in every state (vllm#52969, #18485, #25067): evicted and waiting; it holds nothing to give back."""
    w = world(num_gpu_blocks=3)
    w.add("hog", 4, 9)
    w.add("x", 8, 5)
    w.step()
    w.step()
    assert w.requests["x"].status is RequestStatus.PREEMPTED
    w.abort("x")
    assert ended_once(w, "x")
    w.drain()
    assert w.outputs_are_right()


def test_a26_abort_while_the_step_is_under_way(world):
    """Abort in every state (vllm#52969, #18485, #25067): the token that comes after it is dropped."""
    w = world()
    w.add("x", 4, 6)
    w.add("other", 4, 6)
    w.step()
    w.plan()
    before = list(w.outputs["x"])
    w.abort("x")
    w.finish_step()
    assert ended_once(w, "x")
    w.drain()
    assert w.outputs["x"] == before
    assert w.outputs_are_right()


def test_a26_abort_of_what_is_not_there(world):
    """Abort in every state (vllm#52969, #18485, #25067): finished in this step, unknown, twice: passed over."""
    w = world()
    w.add("done", 4, 1)
    w.add("x", 4, 6)
    while w.ends["done"] != ["length"]:
        w.step()
    w.abort("done")
    w.abort("nobody")
    w.abort("x")
    w.abort("x")
    assert ended_once(w, "x")
    w.drain()
    assert w.ends == {"done": ["length"], "x": ["abort"]}


def test_a26_abort_of_twenty_ids_with_duplicates(world):
    """Abort in every state (vllm#52969, #18485, #25067): one call, one end for each; those not named go on."""
    w = world(max_num_seqs=4)
    for i in range(12):
        w.add(f"r{i}", 3, 5)
    w.step()
    w.abort(*[f"r{i % 10}" for i in range(18)], "nobody", "nobody")
    w.drain()
    assert [w.ends[f"r{i}"] for i in range(12)] == [["abort"]] * 10 + [["length"]] * 2
    assert w.outputs_are_right()


def test_a26_abort_leaves_shared_blocks_to_the_others(world):
    """Abort in every state (vllm#52969, #18485, #25067): a prefix block goes when its last owner does."""
    w = world(enable_prefix_caching=True, num_gpu_blocks=8)
    w.add("first", range(9), 8)
    w.step()
    w.add("x", [*range(8), 50], 8)
    w.step()
    assert w.blocks("x")[:2] == w.blocks("first")[:2]
    w.abort("x")
    pool = w.scheduler.kv_cache_manager.block_pool
    assert [pool.ref_count[b] for b in w.blocks("first")[:2]] == [1, 1]
    w.drain()
    assert w.outputs_are_right()


# --- ids ---


@pytest.mark.parametrize("scheduler_cls", [Scheduler, AsyncScheduler])
def test_a28_a_live_id_is_refused_and_its_owner_goes_on(scheduler_cls):
    """Duplicate ids (vllm#10583, #15041, #23697): refused while waiting, running and preempted."""
    w = World(scheduler_cls, num_gpu_blocks=3)  # the clear form leaves this check to the step loop
    w.add("hog", 4, 5)
    w.add("x", 8, 4)
    seen = set()
    while "x" in w.scheduler.requests:
        seen.add(w.requests["x"].status.name)
        with pytest.raises(DuplicateRequestError, match="'x' is in use"):
            w.scheduler.add_request(Request("x", [1, 2, 3]))
        w.check()
        w.step()
    w.drain()
    assert seen == {"WAITING", "RUNNING", "PREEMPTED"}
    assert w.outputs_are_right()


def test_a28_an_id_may_be_used_again(world):
    """Recycled ids (vllm#10583, #15041, #23697): after its request finished; the old one's tokens are gone."""
    w = world(num_gpu_blocks=8)
    for prompt in ([1, 2, 3, 4, 5], [9, 9], [7, 8, 9]):
        w.add("x", prompt, 3)
        w.drain()
        assert w.outputs["x"] == solo(prompt, 3)


def test_a28_abort_and_add_in_one_tick(world):
    """Recycled ids (vllm#10583, #15041, #23697): abort, then add: the new one lives, with its own tokens only."""
    w = world()
    w.add("x", [1, 2, 3], 6)
    w.step()
    w.step()
    w.abort("x")
    w.add("x", [4, 5, 6, 7, 8], 4)
    w.drain()
    assert w.ends["x"] == ["length"]
    assert w.outputs["x"] == solo([4, 5, 6, 7, 8], 4)


@pytest.mark.parametrize("scheduler_cls", [Scheduler, AsyncScheduler])
def test_a28_add_and_abort_in_one_tick(scheduler_cls):
    """Duplicate ids (vllm#10583, #15041, #23697): add (refused), then abort: the first is the one that ends."""
    w = World(scheduler_cls)
    w.add("x", [1, 2, 3], 6)
    w.step()
    with pytest.raises(DuplicateRequestError):
        w.scheduler.add_request(Request("x", [4, 5]))
    w.abort("x")
    assert ended_once(w, "x")
    w.drain()


@pytest.mark.parametrize("max_tokens", [1, 4])
def test_a28_abort_and_add_while_the_step_is_under_way(world, max_tokens):
    """Recycled ids (vllm#10583, #15041, #23697): the old one's token, still to come, is not the new one's."""
    w = world()
    w.add("x", [1, 2, 3], 6)
    plan = w.scheduler.schedule()
    output = w._execute(plan)
    w.scheduler.finish_requests(["x"])
    new = Request("x", [4, 5, 6, 7, 8], SamplingParams(max_tokens=max_tokens))
    w.scheduler.add_request(new)
    assert w.scheduler.update_from_output(plan, output) == []
    assert (new.output_token_ids, new.status) == ([], RequestStatus.WAITING)


@pytest.mark.parametrize("scheduler_cls", [Scheduler, AsyncScheduler])
def test_a_request_that_has_ended_is_not_let_in_again(scheduler_cls):
    """The same object twice: an error where it is added, not in the middle of a later step with its blocks taken."""
    w = World(scheduler_cls)
    request = w.add("x", 3, 1)
    w.drain()
    with pytest.raises(MiniVLLMError, match="'x'"):
        w.scheduler.add_request(request)
    assert w.free == w.config.num_gpu_blocks
    w.add("y", 3, 2)
    w.drain()
    assert w.outputs_are_right()
