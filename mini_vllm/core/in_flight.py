"""Plans that were made and whose output has not come yet. Knows plans and whom they advance. Chapter 11."""

from collections import deque

from mini_vllm.core.output import SchedulerOutput
from mini_vllm.errors import SchedulerContractError
from mini_vllm.request import Request

SHOWN = 4  # request ids in an error


class PlansInFlight:
    """At most one with the plain scheduler, two with the asynchronous one; outputs come in the order of the plans."""

    def __init__(self) -> None:
        self._plans: deque[tuple[SchedulerOutput, list[Request]]] = deque()

    def add(self, plan: SchedulerOutput, planned: list[Request]) -> None:
        if planned:
            self._plans.append((plan, planned))

    def take(self, plan: SchedulerOutput) -> list[Request]:
        """Whom this plan advances: by object, since an id may be given to another while the step runs."""
        pieces = plan.num_scheduled_tokens
        if not pieces:
            return []
        if not self._plans or self._plans[0][0].num_scheduled_tokens is not pieces:
            names = ", ".join(list(pieces)[:SHOWN]) + (", …" if len(pieces) > SHOWN else "")
            raise SchedulerContractError(
                f"got the output of a plan that is not the oldest of the {len(self._plans)} under way ({names}); give "
                "each plan's output once, in the order of the plans"
            )
        return self._plans.popleft()[1]
