"""Who must leave when a running request finds no block, and what it leaves behind. Knows requests. Chapter 8."""

from collections.abc import Sequence

from mini_vllm.core.request_queue import rank
from mini_vllm.request import Request


def choose_victim(policy: str, running: Sequence[Request], aging: float | None = None) -> Request:
    """FCFS: the most recently admitted. Priority: the least urgent, of equals the first in `running`."""
    if policy == "fcfs":
        return running[-1]
    return max(running, key=lambda r: rank(r, aging)[:2])


def take_out_of_plan(
    victim: Request,
    planned: list[Request],
    scheduled: dict[str, int],
    new_blocks: dict[str, list[int]],
    drafts: dict[str, list[int]],
) -> int:
    """Undo what this step gave to a victim already; returns its tokens, which are handed out again."""
    if victim in planned:
        planned.remove(victim)
    new_blocks.pop(victim.request_id, None)
    drafts.pop(victim.request_id, None)
    return scheduled.pop(victim.request_id, 0)
