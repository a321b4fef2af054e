"""The line of those who wait, in order of service. Knows requests; knows no budget. Chapters 4 and 10."""

import heapq
from collections import deque
from collections.abc import Iterator
from typing import Protocol

from mini_vllm.request import Request


class RequestQueue(Protocol):
    """What a scheduler asks of its line: the next to be served, without knowing how the line is ordered."""

    def add(self, request: Request) -> None:
        """A newcomer."""

    def put_back(self, request: Request) -> None:
        """One that was evicted, or was looked at and passed over."""

    def peek(self) -> Request:
        """The next, left where it is: it may not fit now."""
        ...

    def pop(self) -> Request:
        """The next, taken out."""
        ...

    def remove(self, request: Request) -> None:
        """Take one out of the middle (abort). Costs a walk through the line."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[Request]: ...


class FCFSQueue:
    """First come, first served; who is put back stands in front of everybody."""

    def __init__(self) -> None:
        self._line: deque[Request] = deque()
        self.add = self._line.append
        self.put_back = self._line.appendleft
        self.pop = self._line.popleft
        self.remove = self._line.remove

    def peek(self) -> Request:
        return self._line[0]

    def __len__(self) -> int:
        return len(self._line)

    def __iter__(self) -> Iterator[Request]:
        return iter(self._line)


def rank(request: Request, aging: float | None) -> tuple[float, float, str]:
    """(urgency, arrival_time, request_id), smaller first. Urgency is the priority; with aging, a time to be served by:
    arrival, and `aging` more for each level.

    Everybody grows older alike, so who stands before whom never changes, and nobody need look at the clock:
    priority - (now - arrival) / aging, a priority that improves with age, sorts in the same order.
    """
    urgency = request.priority if aging is None else request.arrival_time + request.priority * aging
    return urgency, request.arrival_time, request.request_id


class PriorityQueue:
    """The smallest `rank` first. There is no front to be put back to."""

    def __init__(self, aging: float | None = None) -> None:
        self._aging = aging
        self._heap: list[tuple[float, float, str, Request]] = []

    def add(self, request: Request) -> None:
        # Ids are unique, so the comparison never reaches the request itself.
        heapq.heappush(self._heap, (*rank(request, self._aging), request))

    put_back = add

    def peek(self) -> Request:
        return self._heap[0][3]

    def pop(self) -> Request:
        return heapq.heappop(self._heap)[3]

    def remove(self, request: Request) -> None:
        self._heap = [entry for entry in self._heap if entry[3] is not request]
        heapq.heapify(self._heap)

    def __len__(self) -> int:
        return len(self._heap)

    def __iter__(self) -> Iterator[Request]:
        return (entry[3] for entry in sorted(self._heap))


def make_queue(policy: str, aging: float | None = None) -> RequestQueue:
    """The waiting line of a scheduling policy: "fcfs" or "priority", the latter with aging or without."""
    return PriorityQueue(aging) if policy == "priority" else FCFSQueue()
