"""The worked example, compared with the table that the course teaches and with the real vLLM. Knows five requests."""

import pytest

from mini_vllm.errors import ConfigError
from mini_vllm.sim.driver import simulate
from mini_vllm.sim.examples import five_requests
from mini_vllm.trace.convert import from_vllm_recording
from mini_vllm.trace.diff import compare
from tests.viz.player_traces import RECORDINGS

# One line a tick (step + 1): plan | admitted | preempted | KV blocks used after schedule() | running after the update,
# name computed/blocks/generated | waiting | what happened
CHUNK = """
1 | R1:8 | R1 | - | 1 | R1 8/1b/0 | R2 R3 R4 R5 |
2 | R1:8 | - | - | 1 | R1 16/1b/1 | R2 R3 R4 R5 | R1 first token
3 | R1:1 R2:7 | R2 | - | 3 | R1 17/2b/2, R2 7/1b/0 | R3 R4 R5 |
4 | R1:1 R2:1 R3:6 | R3 | - | 4 | R1 18/2b/3, R2 8/1b/1, R3 6/1b/0 | R4 R5 | R2 first token
5 | R1:1 R2:1 R3:6 | - | - | 4 | R1 19/2b/4, R2 9/1b/2, R3 12/1b/0 | R4 R5 |
6 | R1:1 R2:1 R3:6 | - | - | 5 | R1 20/2b/5, R2 10/1b/3, R3 18/2b/0 | R4 R5 |
7 | R1:1 R2:1 R3:6 | - | - | 5 | R1 21/2b/6, R2 11/1b/4, R3 24/2b/0 | R4 R5 |
8 | R1:1 R2:1 R3:6 | - | - | 5 | R1 22/2b/7, R2 12/1b/5, R3 30/2b/0 | R4 R5 |
9 | R1:1 R2:1 R3:2 R4:4 | R4 | - | 6 | R1 23/2b/8, R2 13/1b/6, R3 32/2b/1, R4 4/1b/0 | R5 | R3 first token
10 | R1:1 R2:1 R3:1 | - | R4 | 6 | R1 24/2b/9, R2 14/1b/7, R3 33/3b/2 | R4 R5 |
11 | R1:1 R2:1 R3:1 | - | - | 6 | R1 25/2b/10, R3 34/3b/3 | R4 R5 | R2 FINISHED
12 | R1:1 R3:1 R4:6 | R4 | - | 6 | R1 26/2b/11, R3 35/3b/4, R4 6/1b/0 | R5 |
13 | R1:1 R3:1 R4:2 | - | - | 6 | R1 27/2b/12, R3 36/3b/5, R4 8/1b/1 | R5 | R4 first token
14 | R1:1 R3:1 R4:1 | - | - | 6 | R1 28/2b/13, R3 37/3b/6, R4 9/1b/2 | R5 |
15 | R1:1 R3:1 R4:1 | - | - | 6 | R1 29/2b/14, R3 38/3b/7, R4 10/1b/3 | R5 |
16 | R1:1 R3:1 R4:1 | - | - | 6 | R1 30/2b/15, R3 39/3b/8, R4 11/1b/4 | R5 |
17 | R1:1 R3:1 R4:1 | - | - | 6 | R1 31/2b/16, R3 40/3b/9, R4 12/1b/5 | R5 |
18 | R1:1 R3:1 R4:1 | - | - | 6 | R1 32/2b/17, R3 41/3b/10, R4 13/1b/6 | R5 |
19 | R1:1 R3:1 | - | R4 | 6 | R1 33/3b/18, R3 42/3b/11 | R4 R5 |
20 | R1:1 R3:1 | - | - | 6 | R1 34/3b/19, R3 43/3b/12 | R4 R5 |
21 | R1:1 R3:1 | - | - | 6 | R1 35/3b/20, R3 44/3b/13 | R4 R5 |
22 | R1:1 R3:1 | - | - | 6 | R1 36/3b/21, R3 45/3b/14 | R4 R5 |
23 | R1:1 R3:1 | - | - | 6 | R1 37/3b/22, R3 46/3b/15 | R4 R5 |
24 | R1:1 R3:1 | - | - | 6 | R1 38/3b/23 | R4 R5 | R3 FINISHED
25 | R1:1 R4:7 | R4 | - | 4 | R1 39/3b/24, R4 7/1b/6 | R5 |
26 | R1:1 R4:7 | - | - | 4 | R1 40/3b/25, R4 14/1b/7 | R5 |
27 | R1:1 R4:1 R5:6 | R5 | - | 5 | R1 41/3b/26, R4 15/1b/8, R5 6/1b/0 | - |
28 | R1:1 R4:1 R5:6 | - | - | 5 | R1 42/3b/27, R4 16/1b/9, R5 12/1b/0 | - |
29 | R1:1 R4:1 R5:4 | - | - | 6 | R1 43/3b/28, R4 17/2b/10, R5 16/1b/1 | - | R5 first token
30 | R1:1 R4:1 | - | R5 | 5 | R1 44/3b/29, R4 18/2b/11 | R5 |
31 | R1:1 R4:1 R5:6 | R5 | - | 6 | R1 45/3b/30, R4 19/2b/12, R5 6/1b/1 | - |
32 | R1:1 R4:1 R5:6 | - | - | 6 | R1 46/3b/31, R4 20/2b/13, R5 12/1b/1 | - |
33 | R1:1 R4:1 | - | R5 | 5 | R4 21/2b/14 | R5 | R1 FINISHED
34 | R4:1 R5:7 | R5 | - | 3 | R4 22/2b/15, R5 7/1b/1 | - |
35 | R4:1 R5:7 | - | - | 3 | R4 23/2b/16, R5 14/1b/1 | - |
36 | R4:1 R5:3 | - | - | 4 | R4 24/2b/17, R5 17/2b/2 | - |
"""
# Where all known tokens must fit: the same until tick 29.
FULL_FROM_30 = """
30 | R1:1 R4:1 | - | R5 | 5 | R1 44/3b/29, R4 18/2b/11 | R5 |
31 | R1:1 R4:1 | - | - | 5 | R1 45/3b/30, R4 19/2b/12 | R5 |
32 | R1:1 R4:1 | - | - | 5 | R1 46/3b/31, R4 20/2b/13 | R5 |
33 | R1:1 R4:1 | - | - | 5 | R4 21/2b/14 | R5 | R1 FINISHED
34 | R4:1 R5:7 | R5 | - | 3 | R4 22/2b/15, R5 7/1b/1 | - |
35 | R4:1 R5:7 | - | - | 3 | R4 23/2b/16, R5 14/1b/1 | - |
36 | R4:1 R5:3 | - | - | 4 | R4 24/2b/17, R5 17/2b/2 | - |
"""
FIRST_TOKENS = {"R1": 2, "R2": 4, "R3": 9, "R4": 13, "R5": 29}
FINISHES = {"R1": 33, "R2": 11, "R3": 24, "R4": 83, "R5": 42}
RECORDED = {"chunk": "97_worked_example_first_chunk.json", "full": "98_worked_example_full.json"}


def table(text: str) -> dict[int, list[str]]:
    rows = [[cell.strip() for cell in line.split("|")] for line in text.strip().splitlines()]
    return {int(row[0]): row[1:] for row in rows}


def as_row(step: dict, generated: dict[str, int], known_first: set[str]) -> list[str]:
    """A record as a line of the table; `generated` counts the tokens of each request so far, this step's included."""

    def listed(ids) -> str:
        return " ".join(ids) or "-"

    running = []
    for rid in step["running_end"]:
        computed = step["computed"][rid][1] if rid in step["computed"] else None
        running.append(f"{rid} {computed}/{len(step['blocks'][rid])}b/{generated.get(rid, 0)}")
    events = [f"{rid} first token" for rid in step["sampled"] if rid not in known_first]
    events += [f"{rid} FINISHED" for rid in step["finished"]]
    return [
        " ".join(f"{rid}:{n}" for rid, n in step["scheduled"]),
        listed([*step["new"], *step["resumed"]]),
        listed(step["preempted"]),
        str(6 - step["free"]),
        ", ".join(running),
        listed(step["waiting"]),
        ", ".join(events),
    ]


@pytest.mark.parametrize("admission", ["chunk", "full"])
def test_every_tick_is_the_tables(admission):
    expected = table(CHUNK)
    if admission == "full":
        expected = {tick: row for tick, row in expected.items() if tick < 30} | table(FULL_FROM_30)
    generated: dict[str, int] = {}
    for step in simulate(*five_requests(admission)).steps[:36]:
        known_first = {rid for rid, n in generated.items() if n}
        for rid, ids in step["sampled"].items():
            generated[rid] = generated.get(rid, 0) + len(ids)
        assert as_row(step, generated, known_first) == expected[step["step"] + 1], f"tick {step['step'] + 1}"


@pytest.mark.parametrize(("admission", "evictions", "computed"), [("chunk", 4, 248), ("full", 3, 236)])
def test_sums_of_the_table(admission, evictions, computed):
    trace = simulate(*five_requests(admission))
    assert len(trace.steps) == 83
    assert {rid: step + 1 for rid, step in trace.first_token_step().items()} == FIRST_TOKENS
    assert {rid: step + 1 for rid, step in trace.finish_step().items()} == FINISHES
    victims = [(rid, step["step"] + 1) for step in trace.steps for rid in step["preempted"]]
    assert victims == [("R4", 10), ("R4", 19), ("R5", 30), ("R5", 33)][:evictions]
    assert sum(step["budget_used"] for step in trace.steps) == computed
    # Peak KV tokens of a request are prompt + output - 1: the last token's KV is never written.
    assert sum(r.prompt_len + r.max_tokens - 1 for r in five_requests(admission)[0]) == 203


@pytest.mark.parametrize("admission", ["chunk", "full"])
def test_the_real_vllm_does_the_same(admission):
    theirs, ours = from_vllm_recording(RECORDINGS / RECORDED[admission]), simulate(*five_requests(admission))
    result = compare(theirs, ours)
    assert result.difference is None and result.num_steps == 83 and not result.notes
    names = "scheduled new resumed preempted hits waiting running computed blocks free sampled finished free_end"
    assert set(names.split()) <= set(result.compared)


def test_an_unknown_admission_is_refused():
    with pytest.raises(ConfigError, match="choose one of full, chunk"):
        five_requests("none")
