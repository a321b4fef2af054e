"""Gates between waiting and running that have nothing to do with tokens or blocks. An ordered list. Chapter 5."""

from collections.abc import Callable, Sequence

from mini_vllm.config import SchedulerConfig
from mini_vllm.request import Request

# A gate answers None (pass), or the reason why not. One that "skips" lets those behind go first; others block the line.
Gate = Callable[[Request, Sequence[Request]], str | None]


def max_num_seqs_gate(config: SchedulerConfig) -> Gate:
    """At most `max_num_seqs` requests run. Blocks."""
    return lambda request, running: "max_num_seqs" if len(running) >= config.max_num_seqs else None


def max_loras_gate(config: SchedulerConfig) -> Gate:
    """At most `max_loras` different adapters run together; one that runs already may always enter. Skips."""

    def gate(request: Request, running: Sequence[Request]) -> str | None:
        if config.max_loras is None or request.adapter is None:
            return None
        loaded = {r.adapter for r in running} - {None}
        return "max_loras" if request.adapter not in loaded and len(loaded) >= config.max_loras else None

    return gate


def stale_output_gate(request: Request, running: Sequence[Request]) -> str | None:
    """One that was evicted while a step with it was under way comes back only when that step is done. Skips."""
    return "stale_output" if request.num_stale_plans else None


SKIPPING = frozenset({"max_loras", "stale_output"})
