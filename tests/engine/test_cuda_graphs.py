"""CUDA graphs without a GPU: which size is chosen, what is padded, where the numbers lie, and that all is harmless.

A stand-in records: it keeps what was recorded and runs it again on the same tensors, as a graph does.
"""

import pytest
import torch

from mini_vllm.config import SchedulerConfig
from mini_vllm.core.output import CachedRequestData, NewRequestData, SchedulerOutput
from mini_vllm.engine.cuda_graphs import graph_sizes
from mini_vllm.engine.engine_core import EngineCore
from mini_vllm.engine.model_runner import ModelRunner
from mini_vllm.models.tiny import tiny_model
from mini_vllm.request import Request
from mini_vllm.sampling_params import SamplingParams

pytest.importorskip("triton")

from mini_vllm.engine.attention.triton import TritonPagedAttention
from mini_vllm.kernels.split_kv import num_splits

PARAMS = SamplingParams(max_tokens=40, ignore_eos=True)


class FakeRecorder:
    def __init__(self):
        self.runs = []

    def record(self, run):
        run()
        result = run()
        self.runs.append(run)

        def replay():
            result.copy_(run())

        return replay, result


class NoAttention:
    """For tests that look at sizes and buffers: in the interpreter real attention takes its time."""

    def forward(self, q, k, v, kv_cache, meta):
        return q


@pytest.fixture(scope="module")
def model():
    return tiny_model(0, dtype=torch.float32)


def make_backend(model, num_sms=1):
    config = model.config
    shape = config.num_attention_heads, config.num_key_value_heads, config.head_dim
    backend = TritonPagedAttention(*shape, model.dtype, "cpu", config.sliding_window)
    backend.num_sms = num_sms
    return backend


def make_runner(model, recorder=None, num_blocks=12, max_num_seqs=8, max_model_len=64, backend=None):
    backend = backend or make_backend(model)
    limits = {"max_num_seqs": max_num_seqs, "max_num_batched_tokens": 128, "max_model_len": max_model_len}
    return ModelRunner(model, num_blocks, 16, backend, recorder=recorder, **limits)


def prompts(**requests):
    """One step that takes in these requests: name=(prompt length, block ids)."""
    new = [NewRequestData(r, [ord(r) % 50] * n, PARAMS, blocks, 0) for r, (n, blocks) in requests.items()]
    return SchedulerOutput(new, num_scheduled_tokens={r: n for r, (n, _) in requests.items()})


def decodes(**computed):
    cached = CachedRequestData(list(computed), list(computed.values()))
    return SchedulerOutput([], cached, dict.fromkeys(computed, 1))


@pytest.mark.parametrize(
    ("max_num_seqs", "sizes"),
    [
        (1, [1]),
        (3, [1, 2, 3]),
        (8, [1, 2, 4, 8]),
        (33, [1, 2, 4, 8, 16, 24, 32, 33]),
        (290, [1, 2, 4, *range(8, 257, 8), 272, 288, 290]),
    ],
)
def test_sizes(max_num_seqs, sizes):
    assert graph_sizes(max_num_seqs) == sizes


def test_b10_padding_leaves_the_last_slot_of_the_last_block_alone(model):
    """Recorded for 8, 5 live rows; request E owns the last block, and its 16th token the last slot."""
    recorder, last = FakeRecorder(), 12
    start = prompts(A=(3, [1]), B=(20, [2, 3]), C=(1, [4]), D=(16, [5, 6]), E=(16, [last, 7]))
    step = decodes(A=3, B=20, C=1, D=16, E=16)
    runners = make_runner(model), make_runner(model, recorder)
    outputs, slots = [], []
    for runner in runners:
        runner.execute(start)
        slots.append([cache[:, last, 15].clone() for cache in runner.kv_caches])
        outputs.append(runner.execute(step))
        for before, cache in zip(slots[-1], runner.kv_caches, strict=True):
            assert before.abs().min() > 0 and torch.equal(cache[:, last, 15], before)
    eager, padded = runners
    assert padded.graphs.num_replays == {8: 1} and eager.graphs is None
    assert outputs[0].sampled_token_ids == outputs[1].sampled_token_ids
    for mine, theirs in zip(eager.kv_caches, padded.kv_caches, strict=True):
        torch.testing.assert_close(mine, theirs, atol=1e-5, rtol=1e-5)  # 8 rows may be summed in another order than 5
    assert all(not cache[:, 0].any() for cache in padded.kv_caches), "the null block is all zeros"


def test_recording_writes_no_kv(model):
    runner = make_runner(model, FakeRecorder(), max_num_seqs=2)
    assert all(not cache.any() for cache in runner.kv_caches)


def test_each_size_is_recorded_once_the_largest_first(model):
    recorder = FakeRecorder()
    runner = make_runner(model, recorder, max_num_seqs=5, backend=NoAttention())
    assert [len(run.args[0].input_ids) for run in recorder.runs] == [5, 4, 2, 1]
    assert runner.graphs.sizes == [1, 2, 4, 5]
    assert [runner.graphs.size_for([1] * n) for n in range(1, 7)] == [1, 2, 4, 4, 5, None]
    assert runner.graphs.size_for([1, 3]) is None


def test_a_replay_reads_the_step_that_was_filled_in(model):
    """The recorded tensors are the buffers of every step, in the same memory."""
    recorder = FakeRecorder()
    runner = make_runner(model, recorder, backend=NoAttention())
    inputs, recorded = runner.inputs, recorder.runs[1].args[0]  # for 4
    meta = recorded.meta
    runner.execute(prompts(A=(3, [1]), B=(17, [2, 3]), C=(5, [4])))
    runner.execute(decodes(A=3, B=17, C=5))
    places = {
        "input_ids": recorded.input_ids,
        "positions": recorded.positions,
        "slot_mapping": meta.slot_mapping,
        "seq_lens": meta.seq_lens,
        "query_start_loc": meta.query_start_loc,
        "block_table": meta.block_table,
    }
    assert all(t.data_ptr() == getattr(inputs, name).device.data_ptr() for name, t in places.items())
    assert recorded.positions.tolist() == [3, 17, 5, 0] and meta.slot_mapping.tolist() == [19, 49, 69, -1]
    assert meta.seq_lens.tolist() == [4, 18, 6, 0] and meta.query_start_loc.tolist() == [0, 1, 2, 3, 4]
    assert meta.block_table[:3, :2].tolist() == [[1, 0], [2, 3], [4, 0]]
    assert meta.block_table.shape == (4, 4) and meta.block_table.is_contiguous()  # 4 blocks of 16: max_model_len


def test_splits_are_those_of_the_longest_context(model):
    """Recorded once, a launch must serve a request of max_model_len tokens as well."""
    recorder = FakeRecorder()
    limits = {"num_blocks": 2, "max_num_seqs": 2, "max_model_len": 1024}
    runner = make_runner(model, recorder, **limits, backend=make_backend(model, num_sms=100))
    for run, size in zip(recorder.runs, [2, 1], strict=True):
        [mine] = run.args[0].meta.scratch["decodes"]
        assert mine.splits == num_splits(100, size, 2, 1024) > 1 and len(mine.requests) == size
        assert mine.workspace.acc.shape[0] == size
    runner.execute(prompts(A=(3, [1])))
    eager = make_runner(model, **limits)
    eager.execute(prompts(A=(3, [1])))
    assert runner.execute(decodes(A=3)) == eager.execute(decodes(A=3))
    assert runner.graphs.num_replays == {1: 1}


def test_a_prompt_in_the_step_runs_it_eagerly(model):
    runner = make_runner(model, FakeRecorder(), max_num_seqs=2, backend=NoAttention())
    runner.execute(prompts(A=(3, [1])))
    mixed = prompts(B=(4, [2]))
    mixed.scheduled_cached_reqs, mixed.num_scheduled_tokens = decodes(A=3).scheduled_cached_reqs, {"A": 1, "B": 4}
    runner.execute(mixed)
    assert not runner.graphs.num_replays
    runner.execute(decodes(A=4))
    runner.execute(decodes(A=5, B=4))
    assert runner.graphs.num_replays == {1: 1, 2: 1}


def test_buffers_that_had_to_move_are_not_replayed(model):
    """A step beyond every limit moves the buffers; the graphs would go on reading the old ones."""
    runner, eager = make_runner(model, FakeRecorder(), max_num_seqs=2), make_runner(model)
    runner.inputs.fill([1] * 200, [runner.inputs.add_row([1] * 13)], [0], [200])
    assert not runner.graphs.are_valid
    for each in (runner, eager):
        each.execute(prompts(A=(3, [1])))
    assert runner.execute(decodes(A=3)) == eager.execute(decodes(A=3)) and not runner.graphs.num_replays


@pytest.mark.parametrize("async_scheduling", [False, True])
def test_a_run_with_graphs_gives_the_tokens_of_one_without(model, async_scheduling):
    config = SchedulerConfig(3, 16, 40, 6, 4)  # few blocks: requests are evicted and come back
    outputs = []
    for recorder in (None, FakeRecorder()):
        engine = EngineCore(model, config, attn_backend=make_backend(model), async_scheduling=async_scheduling)
        limits = {"max_num_seqs": 3, "max_num_batched_tokens": 16, "max_model_len": 40}
        runner = engine.runner = ModelRunner(model, 6, 4, engine.runner.attn_backend, recorder=recorder, **limits)
        runner.execute = runner.launch if async_scheduling else runner.execute
        tokens = {str(i): [] for i in range(4)}
        for i in tokens:
            params = SamplingParams(max_tokens=12 + int(i), ignore_eos=True)
            engine.add_request(Request(i, [int(i) + 1] * (2 + int(i)), params))
        while engine.has_unfinished_requests():
            for news in engine.step():
                tokens[news.request_id] += news.new_token_ids
        outputs.append(tokens)
    assert outputs[0] == outputs[1]
    assert sum(runner.graphs.num_replays.values()) > 8 and len(runner.graphs.num_replays) > 2
    assert engine.stats.total["num_preempted"] > 0
