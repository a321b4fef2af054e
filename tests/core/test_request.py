"""A request, its sampling parameters and the scheduler's configuration: counting, stopping, refusing."""

import pytest

from mini_vllm.config import SchedulerConfig
from mini_vllm.errors import ConfigError, EmptyPromptError, InvalidSamplingParamsError, MiniVLLMError
from mini_vllm.request import Request, RequestStatus
from mini_vllm.sampling_params import SamplingParams

NO_LIMIT = 1_000


def running(*args, **kwargs):
    """A request that may take outputs: only one that runs (or was just evicted) can end by them."""
    request = Request(*args, **kwargs)
    request.transition_to(RequestStatus.RUNNING)
    return request


def test_a_request_counts_its_tokens():
    request = running("A", [10, 20, 21])
    request.append_output(30, NO_LIMIT)
    request.num_computed_tokens = 3
    assert (request.num_prompt_tokens, request.num_tokens, request.num_new_tokens) == (3, 4, 1)
    assert request.token_ids == [10, 20, 21, 30]


def test_the_prompt_is_copied():
    prompt = [10, 20]
    request = Request("A", prompt)
    prompt.append(21)
    assert request.prompt_token_ids == [10, 20]


def test_an_empty_prompt_is_refused():
    with pytest.raises(EmptyPromptError, match=r"'A' has an empty prompt \(0 tokens, at least 1 needed\)"):
        Request("A", [])


def test_max_tokens_ends_a_request():
    request = running("A", [10], SamplingParams(max_tokens=2))
    assert not request.append_output(20, NO_LIMIT)
    assert request.finish_reason is None
    assert request.append_output(21, NO_LIMIT)
    assert request.finish_reason == "length"


def test_max_model_len_counts_prompt_and_output():
    request = running("A", [10, 20], SamplingParams(max_tokens=50))
    assert not request.append_output(30, max_model_len=4)
    assert request.append_output(31, max_model_len=4)
    assert request.finish_reason == "length"


def test_a_stop_token_ends_a_request_and_stays_in_its_output():
    request = running("A", [10], SamplingParams(stop_token_ids=[20, 21]))
    assert not request.append_output(30, NO_LIMIT)
    assert request.append_output(21, NO_LIMIT)
    assert request.finish_reason == "stop"
    assert request.output_token_ids == [30, 21]


def test_a_stop_token_in_the_prompt_stops_nothing():
    assert not running("A", [20], SamplingParams(stop_token_ids=[20])).append_output(30, NO_LIMIT)


def test_stopping_is_reported_before_length():
    request = running("A", [10], SamplingParams(max_tokens=1, stop_token_ids=(20,)))
    request.append_output(20, max_model_len=2)
    assert request.finish_reason == "stop"


def test_the_end_of_sequence_token_ends_a_request():
    request = running("A", [10], eos_token_id=2)
    assert request.append_output(2, NO_LIMIT)
    assert request.finish_reason == "stop"


def test_ignore_eos_goes_on_after_it():
    request = running("A", [10], SamplingParams(ignore_eos=True), eos_token_id=2)
    assert not request.append_output(2, NO_LIMIT)


def test_ignore_eos_does_not_ignore_stop_token_ids():
    request = running("A", [10], SamplingParams(ignore_eos=True, stop_token_ids=(2,)), eos_token_id=2)
    assert request.append_output(2, NO_LIMIT)


def test_everything_above_preempted_is_finished():
    assert [s.name for s in RequestStatus if s.is_finished] == [
        "FINISHED_STOPPED", "FINISHED_LENGTH_CAPPED", "FINISHED_ABORTED",
    ]  # fmt: skip


@pytest.mark.parametrize("value", [0, -3])
def test_max_tokens_below_one_is_refused(value):
    with pytest.raises(InvalidSamplingParamsError, match=f"max_tokens={value} is below the least possible, 1"):
        SamplingParams(max_tokens=value)


@pytest.mark.parametrize("value", [True, 2.0, "2", None])
def test_max_tokens_must_be_a_whole_number(value):
    with pytest.raises(InvalidSamplingParamsError, match="is not a whole number"):
        SamplingParams(max_tokens=value)


@pytest.mark.parametrize(
    "field", ["max_num_seqs", "max_num_batched_tokens", "max_model_len", "num_gpu_blocks", "block_size"]
)
@pytest.mark.parametrize("value", [0, -1, True, 1.5])
def test_every_limit_is_a_whole_number_of_at_least_one(field, value):
    with pytest.raises(ConfigError, match=f"{field}={value!r} must be a whole number of at least 1"):
        SchedulerConfig(**{field: value})


def test_the_budget_must_hold_one_token_for_each_running_request():
    with pytest.raises(ConfigError, match="max_num_batched_tokens=3 is below max_num_seqs=4"):
        SchedulerConfig(max_num_seqs=4, max_num_batched_tokens=3)
    SchedulerConfig(max_num_seqs=4, max_num_batched_tokens=4)


@pytest.mark.parametrize(("tokens", "blocks"), [(0, 0), (1, 1), (4, 1), (5, 2), (8, 2)])
def test_a_started_block_counts_in_full(tokens, blocks):
    assert SchedulerConfig(block_size=4).blocks_for(tokens) == blocks


def test_one_base_class_catches_every_refusal():
    assert issubclass(ConfigError, MiniVLLMError) and issubclass(EmptyPromptError, MiniVLLMError)
