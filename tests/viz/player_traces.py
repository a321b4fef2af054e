"""Runs for the player's tests: one written by hand, one long and busy. Knows records; draws nothing."""

import json
from pathlib import Path

SMALL = Path(__file__).with_name("player_small_run.jsonl")
RECORDINGS = Path(__file__).parent.parent / "data" / "vllm_traces"


def small_trace() -> dict:
    """Three requests, six steps, four blocks: a chunk, two victims in one step, two resumes."""
    header, *steps = (json.loads(line) for line in SMALL.read_text(encoding="utf-8").splitlines())
    return {"header": header, "steps": steps}


def record(step: int, scheduled: list, **fields) -> dict:
    """A record with nothing but what is given."""
    return {"step": step, "scheduled": scheduled, **fields}


def busy_trace(steps=200, seats=8, blocks=64, size=16, budget=48) -> dict:
    """First come, first served, over a pool that is soon too small: chunks, evictions, recomputation."""
    known = {f"R{k + 1}": 37 + 13 * k for k in range(seats)}
    prompt, computed = dict(known), dict.fromkeys(known, 0)
    table: dict[str, list[int]] = {rid: [] for rid in known}
    waiting, running, pool, records = list(known), [], list(range(1, blocks + 1)), []

    def grow(rid: str, tokens: int, victims: list[str]) -> bool:
        while -(-(computed[rid] + tokens) // size) - len(table[rid]) > len(pool):
            if rid not in running or running[-1] in victims:
                return False
            victim = running.pop()
            pool.extend(reversed(table[victim]))
            table[victim], computed[victim] = [], 0
            victims.append(victim)
            waiting.insert(0, victim)
            if victim == rid:
                return False
        while len(table[rid]) * size < computed[rid] + tokens:
            table[rid].append(pool.pop(0))
        computed[rid] += tokens
        return True

    for step in range(steps):
        before, free_before, left = dict(computed), len(pool), budget
        victims, entered, scheduled, running_before = [], [], [], list(running)
        for rid in running_before:
            tokens = min(known[rid] - computed[rid], left)
            if rid in running and tokens and grow(rid, tokens, victims):
                scheduled.append([rid, tokens])
                left -= tokens
        while waiting and left and not victims:
            rid = waiting[0]
            tokens = min(known[rid] - computed[rid], left)
            if not grow(rid, tokens, victims):
                break
            running.append(waiting.pop(0))
            entered.append(rid)
            scheduled.append([rid, tokens])
            left -= tokens
        sampled = {rid: [step] for rid, _ in scheduled if computed[rid] == known[rid]}
        earlier = {rid for past in records for rid in past["new"]}
        records.append(
            record(
                step,
                scheduled,
                running_before=running_before,
                free_before=free_before,
                new=[rid for rid in entered if rid not in earlier],
                resumed=[rid for rid in entered if rid in earlier],
                preempted=victims,
                waiting=list(waiting),
                running=list(running),
                computed={rid: [before[rid], computed[rid]] for rid in [*victims, *(r for r, _ in scheduled)]},
                blocks={rid: list(table[rid]) for rid in running},
                free=len(pool),
                budget_used=budget - left,
                sampled=sampled,
                pieces={rid: f" word{step}" for rid in sampled},
            )
        )
        for rid in sampled:
            known[rid] += 1
    config = {"max_num_seqs": seats, "max_num_batched_tokens": budget, "block_size": size}
    requests = {rid: {"arrival_step": 0, "prompt_len": n, "max_tokens": steps} for rid, n in prompt.items()}
    header = {"format": "mini_vllm.trace", "version": 1, "kind": "sim", "requests": requests}
    return {"header": {**header, "config": {**config, "num_gpu_blocks": blocks}}, "steps": records}


def crowd_trace():
    """60 requests in 300 steps, a few at a time, over 2,000 blocks."""
    steps = []
    for i in range(300):
        inside = [f"r{k}" for k in range(60) if 4 * k <= i < 4 * k + 60]
        outside = [f"r{k}" for k in range(60) if 4 * k - 8 <= i < 4 * k]
        tables = {rid: [1 + 30 * int(rid[1:]) + n for n in range(1 + i % 5)] for rid in inside}
        plan = [[rid, 1] for rid in inside]
        steps.append(record(i, plan, running=inside, waiting=outside, blocks=tables, free=2000 - 5 * len(inside)))
    return {"header": {"config": {"num_gpu_blocks": 2000, "block_size": 4, "max_num_seqs": 16}}, "steps": steps}
