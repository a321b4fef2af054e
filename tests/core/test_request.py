"""A request and its sampling parameters: counting, states, stopping, refusing."""

import pytest

from mini_vllm.core.prefix_cache import extend_hashes
from mini_vllm.errors import (
    ConfigError,
    EmptyPromptError,
    IllegalTransitionError,
    InvalidRequestError,
    InvalidSamplingParamsError,
    MiniVLLMError,
)
from mini_vllm.request import Request, RequestStatus
from mini_vllm.sampling_params import SamplingParams

NO_LIMIT = 1_000


def running(*args, **kwargs):
    """A request that may take outputs: only one that runs (or was just evicted) can end by them."""
    request = Request(*args, **kwargs)
    request.transition_to(RequestStatus.RUNNING)
    return request


@pytest.mark.parametrize("name", ["cache_salt", "adapter"])
def test_what_goes_into_a_hash_must_be_a_text(name):
    with pytest.raises(InvalidRequestError, match=f"request 'A' has {name}=7; give a text, or None"):
        Request("A", [1], **{name: 7})
    assert getattr(Request("A", [1], **{name: "x"}), name) == "x"


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


@pytest.mark.parametrize("bad", [-1, 2**64, 1.0, "7", None])
def test_what_is_no_token_id_is_refused_with_its_place(bad):
    with pytest.raises(InvalidRequestError) as caught:
        Request("A", [10, 2**64 - 1, bad, -9])
    assert f"token 2 of the prompt of request 'A' is {bad!r}" in str(caught.value)
    assert "from 0 to 18446744073709551615" in str(caught.value)


def test_the_largest_token_id_can_be_cached():
    request = Request("A", [2**64 - 1, 0])
    assert len(extend_hashes(request, 1, 2)) == 2


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


# --- states ---

LEGAL = {
    "WAITING": ["RUNNING", "FINISHED_ABORTED"],
    "RUNNING": ["PREEMPTED", "FINISHED_STOPPED", "FINISHED_LENGTH_CAPPED", "FINISHED_ABORTED"],
    "PREEMPTED": ["RUNNING", "FINISHED_STOPPED", "FINISHED_LENGTH_CAPPED", "FINISHED_ABORTED"],
    "FINISHED_STOPPED": [],
    "FINISHED_LENGTH_CAPPED": [],
    "FINISHED_ABORTED": [],
}
EDGES = [(old, new) for old in RequestStatus for new in RequestStatus]


def in_state(status):
    request = Request("A", [10])
    request.status = status
    return request


@pytest.mark.parametrize(("old", "new"), [(a, b) for a, b in EDGES if b.name in LEGAL[a.name]])
def test_a_legal_edge_is_taken(old, new):
    request = in_state(old)
    request.transition_to(new)
    assert request.status is new


@pytest.mark.parametrize(("old", "new"), [(a, b) for a, b in EDGES if b.name not in LEGAL[a.name]])
def test_an_illegal_edge_is_refused_with_both_states_and_changes_nothing(old, new):
    request = in_state(old)
    with pytest.raises(IllegalTransitionError, match=f"request 'A' cannot go from {old.name} to {new.name};"):
        request.transition_to(new)
    assert request.status is old


def test_the_refusal_says_where_it_may_go():
    with pytest.raises(IllegalTransitionError, match=r"it may go to RUNNING, FINISHED_ABORTED$"):
        Request("A", [10]).transition_to(RequestStatus.PREEMPTED)
    with pytest.raises(IllegalTransitionError, match=r"nowhere: it has ended$"):
        in_state(RequestStatus.FINISHED_STOPPED).transition_to(RequestStatus.RUNNING)


def test_a_request_begins_waiting_without_anything_computed():
    request = Request("A", [10, 20])
    assert (request.status, request.num_computed_tokens, request.num_preemptions) == (RequestStatus.WAITING, 0, 0)
    assert (request.output_token_ids, request.finish_reason) == ([], None)


@pytest.mark.parametrize(
    ("status", "reason"),
    [("FINISHED_STOPPED", "stop"), ("FINISHED_LENGTH_CAPPED", "length"), ("FINISHED_ABORTED", "abort")],
)
def test_each_end_has_its_reason(status, reason):
    assert in_state(RequestStatus[status]).finish_reason == reason


def test_one_that_waits_cannot_end_by_a_token():
    with pytest.raises(IllegalTransitionError):
        Request("A", [10], SamplingParams(max_tokens=1)).append_output(20, NO_LIMIT)


def test_one_that_was_evicted_can_end_by_the_token_that_was_under_way():
    request = running("A", [10], SamplingParams(max_tokens=1))
    request.transition_to(RequestStatus.PREEMPTED)
    assert request.append_output(20, NO_LIMIT)
    assert request.finish_reason == "length"


def test_a_request_has_no_other_attributes():
    """A slip like `request.num_computed = 3` must not pass silently."""
    with pytest.raises(AttributeError):
        Request("A", [10]).num_computed = 3


def test_requests_are_told_apart_by_identity():
    assert Request("A", [10]) != Request("A", [10])
    assert len({Request("A", [10]), Request("A", [10])}) == 2


def test_one_base_class_catches_every_refusal():
    assert issubclass(ConfigError, MiniVLLMError) and issubclass(EmptyPromptError, MiniVLLMError)
