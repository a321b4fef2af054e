"""What a trace still says of steps that it does not hold. Knows records and the header. Chapters 4 and 15."""

from typing import Any

from mini_vllm.trace.compact import Record


def leave_out(record: Record, requests: dict[str, dict[str, Any]]) -> None:
    """Take a step that is not kept into the header's entries of its requests, so that the rest can be told rightly.

    sampled_before: tokens that it had by then. lost_before: most computed tokens that a preemption threw away.
    """
    step = record["step"]

    def entry(req_id: str) -> dict[str, Any] | None:
        facts = requests.get(req_id)  # an id that is used again has an entry that arrived later
        return None if facts is None or facts.get("arrival_step", 0) > step else facts

    for req_id, token_ids in record.get("sampled", {}).items():
        if token_ids and (facts := entry(req_id)) is not None:
            facts["sampled_before"] = facts.get("sampled_before", 0) + len(token_ids)
    for req_id in record.get("preempted", ()):
        if (facts := entry(req_id)) is not None:
            lost = record.get("computed", {}).get(req_id, [0])[0]
            facts["lost_before"] = max(facts.get("lost_before", 0), lost)
