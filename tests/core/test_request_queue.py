"""The two waiting lines: who is first, and where somebody goes who is put back."""

import pytest

from mini_vllm.core.request_queue import FCFSQueue, PriorityQueue, make_queue
from mini_vllm.request import Request


def req(request_id, priority=0, arrival_time=0.0):
    return Request(request_id, [10], arrival_time=arrival_time, priority=priority)


def filled(queue, *requests):
    for request in requests:
        queue.add(request)
    return queue


def ids(queue):
    return "".join(request.request_id for request in queue)


def served(queue):
    return "".join(queue.pop().request_id for _ in range(len(queue)))


def test_make_queue_knows_both_policies():
    assert isinstance(make_queue("fcfs"), FCFSQueue)
    assert isinstance(make_queue("priority"), PriorityQueue)


@pytest.mark.parametrize("policy", ["fcfs", "priority"])
def test_peek_is_what_pop_returns_and_takes_nothing(policy):
    queue = filled(make_queue(policy), req("A"), req("B"))
    assert (queue.peek().request_id, len(queue)) == ("A", 2)
    assert (queue.pop().request_id, len(queue)) == ("A", 1)


@pytest.mark.parametrize("policy", ["fcfs", "priority"])
def test_iterating_shows_the_order_of_service(policy):
    requests = [req("A", 3, 2), req("B", 1, 5), req("C", 1, 4), req("D", 2, 0)]
    queue = filled(make_queue(policy), *requests)
    assert ids(queue) == served(queue)


@pytest.mark.parametrize("policy", ["fcfs", "priority"])
@pytest.mark.parametrize("gone", "ABC")
def test_anybody_can_be_taken_out_of_the_line(policy, gone):
    requests = {name: req(name) for name in "ABC"}
    queue = filled(make_queue(policy), *requests.values())
    queue.remove(requests[gone])
    assert served(queue) == "ABC".replace(gone, "")


def test_with_aging_a_level_is_worth_so_much_time():
    """Of 3 each: B is one level more urgent than A and may come 2 later, but not 3 (equal: who was there first)."""
    for late, order in ((2, "BA"), (3, "AB"), (4, "AB")):
        assert served(filled(PriorityQueue(aging=3), req("A", 1, 10), req("B", 0, 10 + late))) == order
    assert served(filled(PriorityQueue(), req("A", 1, 10), req("B", 0, 99))) == "BA"


def test_fcfs_serves_in_the_order_of_arrival_whatever_the_priority():
    assert served(filled(FCFSQueue(), req("B", 9), req("A", 1), req("C", 5))) == "BAC"


def test_fcfs_puts_back_to_the_front():
    queue = filled(FCFSQueue(), req("C"))
    queue.put_back(req("B"))
    queue.put_back(req("A"))
    assert served(queue) == "ABC"


def test_priority_serves_the_smallest_number_first():
    assert served(filled(PriorityQueue(), req("A", 2), req("B", 0), req("C", 1))) == "BCA"


def test_priority_breaks_ties_by_arrival_then_by_id():
    assert served(filled(PriorityQueue(), req("C", 1, 2), req("B", 1, 2), req("A", 1, 9), req("D", 1, 1))) == "DBCA"


def test_priority_has_no_front_to_be_put_back_to():
    queue = filled(PriorityQueue(), req("A", 1))
    queue.put_back(req("B", 2))
    assert served(queue) == "AB"
