"""The exercises of chapter 7: cases, comparers, hints. Knows what is asked, not what is right. Chapter 7."""

import json
from typing import Any

from mini_vllm.grading.checkers import all_of, is_number, kind_of, sequence, shown
from mini_vllm.grading.exercise import Case, Exercise
from mini_vllm.grading.my_stage import stages_from
from mini_vllm.grading.prompts_alike import (
    draw_line_cases,
    draw_name_cases,
    draw_prompt_cases,
    line_workload,
    run_patient,
    run_through,
    show_line,
    show_prompts,
)
from mini_vllm.grading.step_traces import everybody_served, same_trace

# The scheduler of chapter 6 stays in sight: c07-e3 extends it.
HIDDEN = [*stages_from("ch07"), "mini_vllm.engine", "mini_vllm.os_sched"]


# --- e1: found ------------------------------------------------------------------------------------------------

# One after another; a capital is a full block of four tokens, a small letter a single one.
BOARD = {"A": "PQR", "B": "Sx", "C": "PQRy", "D": "TUv", "E": "PQRz", "F": "Sw", "G": "PQ"}
ASKED = ("C", "E", "F", "G")


def compare_found(case: Case, got: Any, expected: dict) -> str | None:
    """Says which entries are wrong, never which are right: there is one case only, and it is the answer."""
    if type(got) is not dict or got.keys() != {"hits", "blocks_of_D"}:
        return f"expected a dict with 'hits' and 'blocks_of_D', got {kind_of(got)}"
    hits, blocks = got["hits"], got["blocks_of_D"]
    if type(hits) is not dict or hits.keys() != set(ASKED) or not all(map(is_number, hits.values())):
        return f"hits: expected a dict with a number of tokens for C, E, F and G, got {kind_of(hits)}"
    if type(blocks) is not list or len(blocks) != 3 or not all(map(is_number, blocks)):
        return f"blocks_of_D: expected a list of three block numbers, in the order taken, got {kind_of(blocks)}"
    complaints = []
    wrong = [name for name in ASKED if hits[name] != expected["hits"][name]]
    for name in wrong:
        size = sum(4 if letter.isupper() else 1 for letter in BOARD[name])
        if hits[name] % 4:
            complaints.append(f"hits: only whole blocks of 4 are found; {name} cannot find {shown(hits[name])} tokens")
        elif hits[name] >= size:
            complaints.append(f"hits: {name} has {size} tokens and must compute at least one of them")
    if hits["E"] == 12 or hits["F"] == 4:
        told = "E finds an R, or F an S, that is gone" if hits["E"] == 12 else "F finds an S that is gone"
        complaints.append(f"hits: {told}: a block that is taken loses what it held; see what D takes")
    if wrong and not complaints:
        complaints.append(f"hits: {' and '.join(wrong)} {'is' if len(wrong) == 1 else 'are'} not right")
    if blocks != expected["blocks_of_D"]:
        same = sorted(blocks) == sorted(expected["blocks_of_D"])
        head = ": tail first, so the head of a chain is taken last of it" if 1 in blocks else ""
        complaints.append(f"blocks_of_D: {'the right ones in another order' if same else 'not right' + head}")
    return "\n".join(complaints) or None


FOUND = Exercise(
    exercise_id="c07-e1",
    title="Seven requests, five blocks",
    kind="analyse",
    function="found",
    stars=1,
    points=10,
    minutes=12,
    needs="the sections “Who may be evicted” and “How much of it may be a hit?”",
    hints=(
        "Keep two lines on paper: the free queue, and for each block what it holds (P, Q, …, or nothing). Change both "
        "twice for every request: when it enters, when it is done.",
        "Entering: go through its full blocks from the front and look for each; stop at the first that is not there, "
        "and leave at least one token over. What is found leaves the queue, wherever it stands. The rest is taken from "
        "the head, and a block that is taken loses what it held. Done: tail first; without a name to the head, with a "
        "name to the tail.",
        "C finds its blocks and takes one: the head.\n"
        "When C is done: a block with a single y in it has no name: it goes to the head.\n"
        "D finds nothing and takes three from the head. Two held something: cross it out.\n"
        "E looks for P, Q, R in this order.\n"
        "G has exactly two blocks: it may find one at most.",
    ),
    compare=compare_found,
)


# --- e2: block_names(requests, block_size) --------------------------------------------------------------------


def compare_names(case: Case, got: Any, expected: list[list[int]]) -> str | None:
    """Names are free; what counts is which of them are equal. Names the first pair that is wrong."""
    requests, block_size = case
    if type(got) is not list or len(got) != len(requests):
        return f"expected one list of names for each of {len(requests)} requests, got {kind_of(got)}"
    for r, (mine, right) in enumerate(zip(got, expected, strict=True)):
        if type(mine) is not list or len(mine) != len(right):
            return f"request {r}: {len(right)} full blocks of {block_size}, so as many names, got {kind_of(mine)}"
    places = [(r, i) for r, right in enumerate(expected) for i in range(len(right))]
    for n, (r, i) in enumerate(places):
        for s, j in places[:n]:
            same, should = json.dumps(got[r][i]) == json.dumps(got[s][j]), expected[r][i] == expected[s][j]
            if same != should:
                where = f"block {j} of request {s} and block {i} of request {r}"
                if should:
                    return f"{where} hold the same KV and have two names: {shown(got[s][j])}, {shown(got[r][i])}"
                return f"{where} have one name, {shown(got[r][i])}, but not the same KV: {_differs(case, s, j, r, i)}"
    return None


def _differs(case: Case, s: int, j: int, r: int, i: int) -> str:
    """The first thing in which two blocks differ, as one would tell a colleague."""
    (tokens, salt, adapter, _), (others, other_salt, other_adapter, _) = case[0][s], case[0][r]
    if salt != other_salt:
        return f"the salts are {salt!r} and {other_salt!r}"
    if adapter != other_adapter:
        return f"the adapters are {adapter!r} and {other_adapter!r}"
    size = case[1]
    if tokens[j * size : (j + 1) * size] != others[i * size : (i + 1) * size]:
        return "their tokens differ"
    if tokens[: j * size] != others[: i * size]:
        return "what stands before them differs"
    return "an image in or before them differs"


def blocks_alike(case: Case, value: Any) -> list[list[int]]:
    """Names replaced by the place where each came first, so that two ways to name can be compared."""
    first: dict[str, int] = {}
    return [[first.setdefault(json.dumps(name), len(first)) for name in names] for names in value]


NAMES = Exercise(
    exercise_id="c07-e2",
    title="A name for every block, with pictures in the prompt",
    kind="code",
    function="block_names",
    stars=2,
    points=15,
    minutes=20,
    needs="the section “The idea: a name for what a block holds”",
    hints=(
        "What does the KV of a token depend on? List everything; the name of a block must contain all of it, and "
        "nothing else. A pair of which the first part says where the second comes from cannot be mistaken.",
        "Start a chain from (salt, adapter), as a pair. For each full block make a new name out of the one before and "
        "of what stands in the block. Where the token is 0, what stands there is not a 0 but an image: take its name "
        "from the list, and mark that it is one.",
        "for each request:\n"
        "    seen = the tokens, but the k-th 0 replaced by ('image', images[k])\n"
        "    parent = (salt, adapter)\n"
        "    for each full block of seen:\n"
        "        parent = (parent, the block as a tuple)\n"
        "        its name is repr(parent)",
    ),
    draw_cases=draw_name_cases,
    compare=compare_names,
    essence=blocks_alike,
    prepare=lambda case: ([tuple(request) for request in case[0]], case[1]),
)


# --- e3: Scheduler, the warm ones first -----------------------------------------------------------------------


def served(case: Case, got: Any, expected: Any) -> str | None:
    return everybody_served([[request[:4] for request in case[0]]], got, expected)


WARM_FIRST = Exercise(
    exercise_id="c07-e3",
    title="Your scheduler: who finds most goes first",
    kind="extend",
    function="Scheduler",
    stars=3,
    points=20,
    minutes=30,
    needs="the section “Build: look before you compute”",
    hints=(
        "Four methods. admit is the page's, with the lookup. schedule_waiting always tried the head of the line: now "
        "it chooses, tries, and chooses again. start took out the head: now it takes out the request that it is given. "
        "And __init__ makes room for what you count.",
        "Choose anew before every admission: whoever entered just now has left its blocks in the cache, and they can "
        "be found in the same step. max() over the line, by the number of found blocks, takes the first of equals. "
        "Count at the beginning of schedule_waiting how many steps each has waited.",
        "schedule_waiting:\n"
        "    for everybody in the line: one step of waiting more (0 the first time)\n"
        "    while there is a line:\n"
        "        request = its head, if that has waited self.patience steps or more;\n"
        "                  else max(the line, key=how many blocks get_computed_blocks finds)\n"
        "        reason = self.admit(request); if there is one, return it\n"
        "    return None\n"
        "start: self.waiting.remove(request), then as before\n"
        "admit: as on the page, hits first",
    ),
    draw_cases=draw_line_cases,
    compare=all_of(served, same_trace("scheduled", "waiting")),
    raised=(
        ("IllegalTransitionError", "Did `start` take out the head? It must take out the request that it is given."),
        (
            "SchedulerContractError: Scheduler gives block",
            "Only found blocks are shared, and num_computed_tokens says how far they reach: set it before `give`, and "
            "pass hits=hits to allocate_slots.",
        ),
        (
            "SchedulerContractError: Scheduler computes",
            "The plan holds all blocks of a newcomer, the found ones first: give it [*hits, *blocks].",
        ),
        (
            "SchedulerContractError: Scheduler schedules",
            "Count what is left to compute behind the hit: the known tokens less those that were found.",
        ),
        (
            "SchedulerStalledError",
            "Nobody runs, and nobody enters. The watermark is asked for only while others run: `if self.running`.",
        ),
    ),
    essence=lambda case, steps: [(record["scheduled"], record["waiting"]) for record in steps],
    prepare=line_workload,
    call=run_patient,
    show=show_line,
    stage="ch07",
)


# --- b1: enter(token_ids, cache, block_size) ------------------------------------------------------------------


def compare_entry(case: Case, got: Any, expected: list) -> str | None:
    """(start, num_new) of one prompt, and a word on what is impossible about it."""
    if type(got) is not list or len(got) != 2 or not all(map(is_number, got)):
        return f"expected two numbers, start and num_new, got {kind_of(got)}"
    (start, num_new), (right_start, right_new) = got, expected
    if [start, num_new] == [right_start, right_new]:
        return None
    told, known = f"expected ({right_start}, {right_new}), got ({start}, {num_new})", right_start + right_new
    if [num_new, start] == [right_start, right_new]:
        return f"{told}: the two are swapped; start comes first"
    if num_new < 1:
        return f"{told}: nothing is left to compute, so there is nothing to sample from"
    if start + num_new != known:
        return f"{told}: that ends at token {start + num_new}, and the prompt has {known}"
    if start % case[1]:
        return f"{told}: {start} is in the middle of a block, and a block is shared whole or not at all"
    return told


ENTER = Exercise(
    exercise_id="c07-b1",
    title="Bug hunt: the second time, the server dies",
    kind="bug hunt",
    function="enter",
    stars=2,
    points=15,
    minutes=15,
    needs="the section “How much of it may be a hit?”",
    hints=(
        "Work through the log with block size 4 in place of 256 and the prompts [1, 2, 3, 4, 5, 6, 7, 8], the same "
        "again, and the same with a 9 behind. What does the function return the second time?",
        "At least one token must be left to compute, and start must be a multiple of the block size. So how many "
        "blocks may be found at most, of 8 tokens? Of 9? And what is cached is another question: all full blocks.",
        "at most (len(token_ids) - 1) // block_size blocks may be found\ncache.update(names) stays as it is",
    ),
    draw_cases=draw_prompt_cases,
    compare=sequence("prompt", of=compare_entry),
    prepare=lambda case: (case[0], case[1]),
    call=run_through,
    show=show_prompts,
)

EXERCISES = (FOUND, NAMES, WARM_FIRST, ENTER)
