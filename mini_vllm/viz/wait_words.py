"""Why the head of the queue stays out, with the arithmetic. Knows the admission rules by name. Chapter 5."""

from __future__ import annotations

from mini_vllm.viz.phrases import count, listed
from mini_vllm.viz.records import mapping
from mini_vllm.viz.timeline import Lane, Timeline

# A head that one of these keeps out is passed over; after any other the rest of the queue is not looked at.
SKIPPING = frozenset({"max_loras", "stale_output"})
SUMMANDS_MAX = 6


def wait_words(line: Timeline, i: int) -> str:
    """Why the queue head stays out after step i; "" for no reason or an empty queue."""
    reason = blocked_reason(line, i)
    if not reason:
        return ""
    head = line.lane(line.waiting[i][0])
    say = _REASONS.get(reason) or _OF_STAGES.get(reason)
    said = say(line, i, head) if say else ""
    return f"{head.label} waits: {said or reason.replace('_', ' ')}."


def blocked_reason(line: Timeline, i: int) -> str | None:
    """The recorded reason of step i; where the trace records none (runs of the real vLLM), it is inferred."""
    if not line.waiting[i]:
        return None
    record = line.records[i]
    reason = record["blocked_reason"] if "blocked_reason" in record else infer_blocked_reason(line, i)
    return str(reason) if reason else None


def infer_blocked_reason(line: Timeline, i: int) -> str | None:
    """The first rule, in the scheduler's order, that kept the queue head out.

    With a prefix cache the blocks of a hit are not known, so the KV rules are read as if there were none.
    """
    record, head, seats = line.records[i], line.lane(line.waiting[i][0]), line.limit("max_num_seqs")
    budget, free = line.token_budget, line.free[i]
    if seats is not None and len(line.running[i]) >= seats:
        return "max_num_seqs"
    if record["preempted"]:
        in_flight = line.config.get("async_scheduling") and i and head.id in dict(line.records[i - 1]["scheduled"])
        return "stale_output" if in_flight and head.id in record["preempted"] else "preempted_this_step"
    if budget is not None and line.budget_used[i] >= budget:
        return "token_budget"
    known, piece = head.known_tokens(i), _piece(line, i, head)
    if line.config.get("enable_chunked_prefill") is False and budget and known > budget - line.budget_used[i]:
        return "token_budget"
    needed, in_all = line.blocks_for(piece), line.blocks_for(known)
    if needed is None or in_all is None or free is None:
        return None
    if line.config.get("reserve_full_isl", True):
        if in_all > free:
            return "kv_full_sequence"
        needed = max(needed, in_all)
    return "kv_chunk" if needed > free else "kv_watermark" if needed + _watermark(line, i) > free else None


# ---- one sentence for each reason; "" where a number is missing, and then the bare name is shown


def _max_num_seqs(line: Timeline, i: int, head: Lane) -> str:
    seats, taken = line.limit("max_num_seqs"), len(line.running[i])
    if seats == 1:
        return "the only seat is taken (max_num_seqs 1)"
    return f"{taken} of {seats or taken} seats are taken (max_num_seqs)"


def _max_loras(line: Timeline, i: int, head: Lane) -> str:
    limit, requests = line.limit("max_loras"), mapping(line.header.get("requests"))
    adapters = {rid: mapping(requests.get(rid)).get("adapter") for rid in [head.id, *line.running[i]]}
    mine = adapters.pop(head.id)
    loaded = sorted({str(adapter) for adapter in adapters.values() if adapter is not None})
    wants = f"it wants adapter {mine}" if mine is not None else "its adapter is not among those that run"
    taken = f"{len(loaded)} of {limit} run ({listed(loaded)})" if loaded else f"{limit} of {limit} run"
    return f"{wants}, and {taken} (max_loras). Those behind it may go first"


def _stale_output(line: Timeline, i: int, head: Lane) -> str:
    evicted = [n for n in range(i + 1) if head.id in line.records[n]["preempted"]]
    when = f"in step {line.numbers[evicted[-1]]} " if evicted else ""
    return (
        f"it was evicted {when}while a step with it was still under way; it may come back when that output is in. "
        "Those behind it may go first"
    )


def _preempted_this_step(line: Timeline, i: int, head: Lane) -> str:
    victims = line.records[i]["preempted"]
    who = f" ({listed(line.labels(victims))})" if victims else ""
    return f"nobody is admitted in a step that evicted somebody{who}"


def _token_budget(line: Timeline, i: int, head: Lane) -> str:
    budget, used, pieces = line.token_budget, line.budget_used[i], line.records[i]["scheduled"]
    if budget is None:
        return ""
    parts = [f"{line.lane(rid).label} {n}" for rid, n in pieces]
    if len(parts) > SUMMANDS_MAX + 1:
        rest = sum(n for _, n in pieces[SUMMANDS_MAX:])
        parts[SUMMANDS_MAX:] = [f"{len(pieces) - SUMMANDS_MAX} more {rest}"]
    total = " + ".join(parts) + " = " if len(parts) > 1 else f"{parts[0].split()[0]} takes " if parts else ""
    if used >= budget:
        return f"the token budget is spent: {total}{used} of {budget}"
    return f"{total}{used} of {budget} tokens, {budget - used} left; its next piece is longer and may not be cut"


def _kv_full_sequence(line: Timeline, i: int, head: Lane) -> str:
    known, free = head.known_tokens(i), line.free[i]
    if line.blocks_for(known) is None or free is None:
        return ""
    return f"all its {count(known, 'known token')} must fit: {_division(line, known)}, {free} free"


def _kv_watermark(line: Timeline, i: int, head: Lane) -> str:
    full, free, kept = line.config.get("reserve_full_isl", True), line.free[i], _watermark(line, i)
    tokens = head.known_tokens(i) if full else _piece(line, i, head)
    needed = line.blocks_for(tokens)
    if needed is None or free is None:
        return ""
    rule = f"{kept} must stay free (watermark): {needed} + {kept} = {needed + kept}" if kept else "more must stay free"
    return f"it needs {_division(line, tokens)} and {rule}, {free} free"


def _kv_chunk(line: Timeline, i: int, head: Lane) -> str:
    tokens, free = _piece(line, i, head), line.free[i]
    if line.blocks_for(tokens) is None or free is None:
        return ""
    return f"its next {count(tokens, 'token')} need {_division(line, tokens)}, {free} free"


def _kv_reservation(line: Timeline, i: int, head: Lane) -> str:
    """Chapter 5. What a scheduler reserves is its own; most reserve prompt and whole output, less one token."""
    said = "what is reserved for it must be free beside what is reserved for those who run"
    limits = {rid: mapping(mapping(line.header.get("requests")).get(rid)) for rid in [head.id, *line.running[i]]}
    most = [r["prompt_len"] + r["max_tokens"] - 1 for r in limits.values() if {"prompt_len", "max_tokens"} <= r.keys()]
    longest, pool = line.limit("max_model_len"), line.limit("num_gpu_blocks")
    blocks = [line.blocks_for(min(n, (longest or n + 1) - 1)) or 0 for n in most]
    if pool is None or len(blocks) < len(limits) or sum(blocks) <= pool:
        return said
    in_all = count(sum(blocks), "block")
    return f"{said}; all that they may ever need is {blocks[0]} + {sum(blocks[1:])} = {in_all}, of {pool}"


def _batch_runs(line: Timeline, i: int, head: Lane) -> str:
    return (
        f"the door opens when nobody runs any more (static admission), and {count(len(line.running[i]), 'request')} run"
    )


_OF_STAGES = {"batch_runs": _batch_runs, "kv_reservation": _kv_reservation}  # chapters 4 and 5; not vLLM's
_REASONS = {
    "max_num_seqs": _max_num_seqs,
    "max_loras": _max_loras,
    "stale_output": _stale_output,
    "preempted_this_step": _preempted_this_step,
    "token_budget": _token_budget,
    "kv_full_sequence": _kv_full_sequence,
    "kv_watermark": _kv_watermark,
    "kv_chunk": _kv_chunk,
}


# ---- arithmetic


def _division(line: Timeline, tokens: int) -> str:
    """ "⌈17 / 16⌉ = 2 blocks"; with a prefix cache a hit may save some of them."""
    up_to = "at most " if line.config.get("enable_prefix_caching") else ""
    return f"{up_to}⌈{tokens} / {line.limit('block_size')}⌉ = {count(line.blocks_for(tokens) or 0, 'block')}"


def _piece(line: Timeline, i: int, head: Lane) -> int:
    """Tokens that the head would compute in this step: what is known of it, the rest of the budget, the threshold."""
    known, budget = head.known_tokens(i), line.token_budget
    threshold, residents = line.limit("long_prefill_token_threshold") or 0, len(line.running[i]) + len(line.waiting[i])
    if line.config.get("long_prefill_token_threshold_adaptive") and budget:
        threshold = max(threshold, budget // max(residents, 1))
    limits = [known, threshold if residents > 1 and threshold else known]
    return min(limits if budget is None else [*limits, budget - line.budget_used[i]])


def _watermark(line: Timeline, i: int) -> int:
    """Blocks that an admission must leave free while others run; the null block counts, as in vLLM."""
    share, blocks = line.config.get("watermark"), line.limit("num_gpu_blocks")
    return int(share * (blocks + 1)) if share and blocks and line.running[i] else 0
