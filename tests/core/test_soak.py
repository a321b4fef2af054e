"""A short soak: random scenarios of every kind with fixed seeds, each step checked (`soak/rules.py` says what for).

The long one is for the command line: `python -m tests.core.soak --steps 1_000_000 --seed 1_000`.
"""

from collections import Counter
from functools import cache

import pytest

from tests.core.soak.generator import KINDS, SYNCHRONOUS_WITHOUT_DRAFTS
from tests.core.soak.scenario import run_scenario

NUM_SEEDS = 60


@cache
def soaked(kind: str) -> Counter:
    """What happened in these scenarios; raises at the first broken rule, with kind, seed and step."""
    stats: Counter = Counter()
    for seed in range(NUM_SEEDS):
        run_scenario(kind, seed, stats)
    return stats


@pytest.mark.parametrize("kind", KINDS)
def test_every_rule_holds_after_every_step(kind):
    assert soaked(kind)["scenarios"] == NUM_SEEDS


# --- guards the generator: if it went soft, every rule would hold for nothing ---

IN_EVERY_KIND = {
    "steps": 2_500,
    "preempted": 100,
    "two preempted in a step": 3,
    "given back": 5,
    "self-preemptions, and the scan goes on": 4,
    "evicted, and served to the end": 60,
    "prefix hits": 50,
    "prefix hits after preemption": 15,
    "evictions": 500,
    "steps with shared blocks": 25,
    "steps with twins": 300,
    "ended: stop": 25,
    "ended: length": 300,
    "reason kv_chunk": 20,
    "reason kv_full_sequence": 50,
    "reason kv_watermark": 20,
    "reason max_num_seqs": 100,
    "reason preempted_this_step": 20,
    "reason token_budget": 50,
}
WITH_FAST_PATH = {
    "fast path: steps": 600,
    "fast path: steps with a new block": 300,
    "fast path: steps that publish": 250,
    "fast path: steps that evict": 200,
    "fast path: three or more at once": 60,
    "fast path: blocks might not suffice": 40,
}
WITH_DRAFTS = {"drafts accepted": 300, "drafts rejected": 200, "padded admissions": 30}
WITH_OUTPUTS_UNDER_WAY = {"stale outputs": 50, "ended by stale output": 5}
WITH_SLOTS_FOR_DRAFTING = {"no room beside the slots for drafting": 15}
WITH_WINDOW = {"prefix hits beyond the window": 8, "taken, on a pool that does not hold everybody": 200}
IN_ONE_KIND = {
    "plain": WITH_SLOTS_FOR_DRAFTING,
    "lockstep": {},
    "fast": {"passed over": 20},
    "drafts": WITH_DRAFTS | WITH_SLOTS_FOR_DRAFTING,
    "window": WITH_WINDOW | WITH_SLOTS_FOR_DRAFTING,
    "window_drafts": WITH_DRAFTS | WITH_SLOTS_FOR_DRAFTING | WITH_WINDOW,
    "async": WITH_OUTPUTS_UNDER_WAY | WITH_SLOTS_FOR_DRAFTING,
    "async2": WITH_OUTPUTS_UNDER_WAY | WITH_SLOTS_FOR_DRAFTING,
    "window_async": WITH_OUTPUTS_UNDER_WAY | WITH_SLOTS_FOR_DRAFTING | WITH_WINDOW,
    "lora": {"passed over": 30, "stale outputs": 15},
}
IN_ALL_TOGETHER = {
    "duplicate id refused": 50,
    "an id comes again while a step runs": 30,
    "refused": 2_000,
    "abort of an unknown id": 200,
    "abort between steps: waiting": 100,
    "abort between steps: running": 50,
    "abort between steps: running, in its prompt": 15,
    "abort between steps: running, step under way": 50,
    "abort between steps: preempted": 20,
    "abort between steps: preempted, stale output under way": 2,
    "abort while a step runs: waiting": 50,
    "abort while a step runs: running": 30,
    "abort while a step runs: running, in its prompt": 5,
    "abort while a step runs: running, step under way": 30,
    "abort while a step runs: preempted": 10,
    "abort while a step runs: preempted, stale output under way": 4,
}


def too_few(seen: Counter, at_least: dict[str, int]) -> dict[str, tuple[int, int]]:
    return {what: (seen[what], least) for what, least in at_least.items() if seen[what] < least}


@pytest.mark.parametrize("kind", KINDS)
def test_the_scenarios_of_each_kind_reach_its_corners(kind):
    short = too_few(soaked(kind), IN_EVERY_KIND | IN_ONE_KIND[kind])
    assert not short, f"(seen, at least): {short}"


@pytest.mark.parametrize("kind", KINDS)
def test_the_fast_path_is_taken_often_where_it_may_be_and_nowhere_else(kind):
    seen = soaked(kind)
    if kind in SYNCHRONOUS_WITHOUT_DRAFTS:
        assert not (short := too_few(seen, WITH_FAST_PATH)), f"(seen, at least): {short}"
    else:
        assert {what: seen[what] for what in WITH_FAST_PATH} == dict.fromkeys(WITH_FAST_PATH, 0)


def test_the_scenarios_together_abort_in_every_state():
    short = too_few(sum((soaked(kind) for kind in KINDS), Counter()), IN_ALL_TOGETHER)
    assert not short, f"(seen, at least): {short}"
