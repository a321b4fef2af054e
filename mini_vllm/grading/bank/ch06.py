"""The exercises of chapter 6: cases, comparers, hints. Knows what is asked, not what is right. Chapter 6."""

import random
from collections.abc import Callable
from typing import Any

from mini_vllm.grading.checkers import exact, kind_of, shown
from mini_vllm.grading.exercise import NUM_CASES, Case, Exercise
from mini_vllm.grading.my_stage import stages_from
from mini_vllm.grading.step_traces import as_simulate, run_scheduler, same_trace, workload

# Stage 6 itself is what c06-e3 extends. The package that runs a learner's scheduler cannot be hidden: it runs it.
HIDDEN = [*stages_from("ch07"), "mini_vllm.sim.contiguous"]


# --- e1: pool -------------------------------------------------------------------------------------------------

POOL_BLOCKS, BLOCK_SIZE = 8, 4
EVENTS = (("A", 6), ("B", 3), ("C", 5), ("A", 3), ("B", 1), ("A", 0), ("B", 1), ("D", 10), ("C", 0))  # 0: ends
ASKED = ("table_of_D", "free_queue", "slot_of_token_9_of_D")


def compare_pool(case: Case, got: Any, expected: dict[str, Any]) -> str | None:
    """Says which of the three are wrong, never what is right: there is one case only, and it is the answer."""
    if type(got) is not dict or got.keys() != set(ASKED):
        return f"expected a dict with {', '.join(ASKED)}, got {kind_of(got)}"
    blocks = range(1, POOL_BLOCKS + 1)
    for name in ASKED[:2]:
        if type(got[name]) is not list or not all(type(block) is int and block in blocks for block in got[name]):
            return f"{name}: expected a list of blocks, 1 to {POOL_BLOCKS}, got {kind_of(got[name])}"
    if both := [block for block in got["free_queue"] if block in got["table_of_D"]]:
        return f"block {both[0]} cannot belong to D and be free"
    if len(got["table_of_D"]) != 3:
        return "table_of_D: ten tokens in blocks of 4 need a certain number of blocks, and it is not that"
    wrong = [name for name in ASKED if exact(case, got[name], expected[name])]
    return f"{' and '.join(wrong)} {'is' if len(wrong) == 1 else 'are'} not right" if wrong else None


POOL = Exercise(
    exercise_id="c06-e1",
    title="Which blocks next?",
    kind="analyse",
    function="pool",
    stars=1,
    points=10,
    minutes=10,
    needs="the section “The pool”",
    hints=(
        "Write the free queue in one line and the block tables below it, and change both at every event. At the start "
        "the queue is 1 2 3 4 5 6 7 8.",
        "Before you take a block, ask whether the last one of the table still has room: A's second piece takes a block "
        "because 9 tokens do not fit into 2. A block that is given back goes to the head of the queue, the last one of "
        "the table foremost.",
        "After A's second piece: A 1 2 6, B 3, C 4 5, queue 7 8.\n"
        "A ends with the table 1 2 6: the queue is 6 2 1 7 8.\n"
        "A token's slot: entry = token // 4, then block × 4 + token % 4.",
    ),
    compare=compare_pool,
)


# --- e2: allocate(free_queue, num_owned, num_computed, num_new, block_size, num_known, watermark) ---------------


def draw_allocate_cases(rng: random.Random) -> list[Case]:
    """Running requests and newcomers; often exactly as many blocks are free as it takes, or one fewer."""
    cases: list[Case] = [
        [[9, 5], 1, 2, 1, 4, None, 0],
        [[7, 3], 2, 8, 1, 4, None, 0],
        [[], 2, 6, 1, 4, None, 0],
        [[], 2, 8, 1, 4, None, 0],
        [[1, 2, 3, 4, 5, 6], 0, 0, 8, 4, 18, 1],
        [[1, 2, 3, 4, 5], 0, 0, 8, 4, 18, 1],
        [[6, 2, 1], 0, 0, 9, 4, 9, 0],
        [[1, 2, 3, 4, 5, 6], 0, 0, 8, 4, 30, 1],
        [[1, 2, 3, 4, 5, 6], 0, 0, 8, 4, 18, 3],
        [[1, 2, 3, 4], 0, 0, 8, 4, 8, 3],
    ]
    while len(cases) < NUM_CASES:
        size = rng.choice([4, 8, 16])
        if rng.random() < 0.4:
            computed = rng.randint(1, 5 * size)
            new = rng.choice([1, 1, 1, rng.randint(2, 2 * size)])
            known, watermark = None, 0
        else:
            computed, watermark = 0, rng.choice([0, 1, 2, 5])
            known = rng.randint(1, 6 * size)
            new = rng.randint(1, known)
        owned = -(-computed // size)
        must = -(-(known or computed + new) // size) - owned + watermark
        free = max(0, must + rng.choice([-1, 0, 0, 1, 4]))
        cases.append([rng.sample(range(1, 40), free), owned, computed, new, size, known, watermark])
    return cases


def compare_allocate(case: Case, got: Any, expected: list) -> str | None:
    if type(got) is not list or len(got) != 2 or type(got[1]) is not list:
        return f"expected two things, blocks (or None) and the queue, got {kind_of(got)}"
    blocks, left = got
    if blocks is None and expected[0] is not None:
        return f"it fits: expected {shown(expected[0])}, got None"
    if expected[0] is None and blocks is not None:
        return f"it does not fit: expected None, got {shown(blocks)}"
    if complaint := exact(case, blocks, expected[0]):
        return f"blocks: {complaint}"
    if blocks is None and left != case[0]:
        return f"a failure changes nothing: the queue was {shown(case[0])}, now it is {shown(left)}"
    complaint = exact(case, left, expected[1])
    return f"the queue afterwards: {complaint}" if complaint else None


ALLOCATE = Exercise(
    exercise_id="c06-e2",
    title="The heart of allocate_slots",
    kind="code",
    function="allocate",
    stars=2,
    points=15,
    minutes=20,
    needs="the section “One call of allocate_slots”",
    hints=(
        "Two questions, each with its own count of blocks. How many must be free? And how many are taken?",
        "Taken: the blocks of num_computed + num_new tokens, rounded up, less num_owned. That must be free too, and so "
        "must, for a newcomer, the blocks of all num_known tokens; the watermark comes on top.",
        "take = ceil((num_computed + num_new) / block_size) - num_owned\n"
        "must = take, or for a newcomer the same with num_known if that is more\n"
        "must and watermark together above what the queue has: None, and the queue as it was\n"
        "return the first `take` of the queue, and the rest",
    ),
    draw_cases=draw_allocate_cases,
    compare=compare_allocate,
)


# --- e3: Scheduler --------------------------------------------------------------------------------------------

DOES_NOT_FIT = (
    "Your admit let somebody in who does not fit at the peak. Look at every k, not at 0 alone; round each request's "
    "tokens up to blocks before you add; begin with r.num_tokens, which is prompt and output; count the newcomer too."
)
FIVE = [["R1", 16, 32, 0], ["R2", 8, 8, 0], ["R3", 32, 16, 0], ["R4", 8, 64, 0], ["R5", 16, 8, 0]]


def draw_peak_cases(rng: random.Random) -> list[Case]:
    """Tiny ones first; then pools in which who enters depends on who will be gone."""
    small: dict[str, Any] = {"max_num_seqs": 8, "max_num_batched_tokens": 32, "max_model_len": 64, "block_size": 4}
    cases: list[Case] = [
        [[["A", 4, 5, 0]], {**small, "num_gpu_blocks": 3}],
        [[["A", 8, 1, 0], ["B", 3, 2, 0]], {**small, "num_gpu_blocks": 3}],
        [[["A", 8, 1, 0], ["B", 4, 5, 0]], {**small, "num_gpu_blocks": 3}],
        [[["A", 6, 2, 0], ["B", 3, 10, 0]], {**small, "num_gpu_blocks": 4}],
        [[["A", 5, 4, 0], ["B", 5, 4, 1]], {**small, "num_gpu_blocks": 3}],
        [FIVE, {**small, "max_num_batched_tokens": 40, "max_model_len": 128, "num_gpu_blocks": 6, "block_size": 16}],
    ]
    while len(cases) < NUM_CASES:
        arrival, requests = 0, list[list[Any]]()
        for number in range(rng.randint(3, 7)):
            requests.append([f"r{number}", rng.randint(1, 16), rng.choice([1, 2, 4, 8, 12, 20]), arrival])
            arrival += rng.choice([0, 0, 0, 1, 3])
        # The longest request fits alone; two or three beside each other, if they are not at their longest together.
        blocks = max(-(-(prompt + output) // 4) for _, prompt, output, _ in requests)
        max_len = rng.choice([64, 64, 24])  # with 24, some outputs are cut short
        config = {**small, "num_gpu_blocks": blocks + rng.randint(0, 6), "max_model_len": max_len}
        cases.append([requests, {**config, "max_num_seqs": rng.choice([2, 8, 8])}])
    return cases


PEAK = Exercise(
    exercise_id="c06-e3",
    title="Your scheduler: look ahead to the peak",
    kind="code",
    function="Scheduler",
    stars=3,
    points=25,
    minutes=30,
    needs="the section “Build”",
    hints=(
        "Each step, everybody inside gets one token longer, until it has reached its end and is gone. So the future is "
        "known as far as max_tokens is kept to: for the step k steps from now you can say who is there and how long.",
        "Of a request with t known tokens, t + k lie in KV in the step k steps from now, as long as t + k is below its "
        "longest, which is request.longest or max_model_len, whichever is smaller. Add up the blocks of everybody "
        "inside and of the newcomer for k = 0, 1, 2, …, and take the largest sum.",
        "admit: seats and token budget as in stage 6\n"
        "everybody = self.running and the request\n"
        "for k from 0 until nobody is left:\n"
        "    still there: those r of everybody with r.num_tokens + k < its longest\n"
        "    need = the sum of blocks_for(r.num_tokens + k) over them\n"
        '    need above num_gpu_blocks: return "kv_reservation"\n'
        "self.start(request), then self.advance(request, n)",
    ),
    draw_cases=draw_peak_cases,
    prepare=workload,
    call=run_scheduler,
    show=as_simulate,
    compare=same_trace("scheduled", "waiting", "blocked_reason"),
    raised=(("KVPoolExhaustedError", DOES_NOT_FIT),),
    stage="ch06",
)


# --- b1: Tables -----------------------------------------------------------------------------------------------

OPERATIONS = ("start", "grow", "fork", "end")


def draw_table_cases(rng: random.Random) -> list[Case]:
    """[num_blocks, window, operations]: answers start, grow, split and end, in a pool that is large enough."""
    cases: list[Case] = [
        [4, 2, [["start", "a"], ["grow", "a"], ["end", "a"]]],
        [4, 2, [["start", "a"], ["grow", "a"], ["fork", "a", "b"], ["end", "a"], ["end", "b"]]],
        [4, 2, [["start", "a"], *[["grow", "a"]] * 3, ["fork", "a", "b"], ["end", "a"], ["end", "b"]]],
        [4, 2, [["start", "a"], *[["grow", "a"]] * 2, ["fork", "a", "b"], ["grow", "b"], ["end", "b"], ["end", "a"]]],
        [6, 2, [["start", "a"], *[["grow", "a"]] * 2, ["fork", "a", "b"], ["grow", "b"], ["fork", "b", "c"],
                ["end", "a"], ["end", "b"], ["end", "c"]]],
    ]  # fmt: skip
    while len(cases) < NUM_CASES:
        window, inside, operations = rng.choice([1, 2, 3]), list[str](), list[list[str]]()
        names = iter("abcdefgh")
        for _ in range(rng.randint(6, 22)):
            kind = rng.choices(OPERATIONS, [2, 8, 3, 2])[0] if inside else "start"
            name = next(names, None) if kind in ("start", "fork") else rng.choice(inside)
            if name is None:
                continue
            operations.append([kind, rng.choice(inside), name] if kind == "fork" else [kind, name])
            if kind == "end":
                inside.remove(name)
            elif kind != "grow":
                inside.append(name)
        operations += [["end", name] for name in inside]
        cases.append([30, window, operations])  # so many that not even a leak uses them up
    return cases


def use_tables(tables_cls: Callable[..., Any], num_blocks: int, window: int, operations: list) -> list[dict]:
    """The books after each operation. refs: by block, of those that somebody has."""
    tables, books = tables_cls(num_blocks, window), []
    for kind, *names in operations:
        getattr(tables, kind)(*names)
        refs = {str(block): number for block, number in enumerate(tables.refs) if number}
        shown_tables = {name: list(table) for name, table in tables.tables.items()}
        books.append({"tables": shown_tables, "refs": refs, "free": sorted(tables.free)})
    return books


def as_calls(name: str, arguments: tuple) -> str:
    num_blocks, window, operations = arguments
    return f"{name}({num_blocks}, {window}), then {', '.join(called(*operation) for operation in operations)}"


def called(kind: str, *names: str) -> str:
    return f"{kind}({', '.join(map(repr, names))})"


def compare_tables(case: Case, got: Any, expected: list[dict]) -> str | None:
    _, window, operations = case
    if type(got) is not list or len(got) != len(expected):
        return f"expected the books after each of {len(expected)} operations, got {kind_of(got)}"
    for operation, mine, right in zip(operations, got, expected, strict=True):
        if exact(case, mine, right) is None:
            continue
        after = f"after {called(*operation)}"
        if type(mine) is not dict or mine.keys() != right.keys():
            return f"{after}: {kind_of(mine)} is no state of the tables"
        if exact(case, mine["tables"], right["tables"]):
            return f"{after}, the tables: {exact(case, mine['tables'], right['tables'])}"
        for name, table in right["tables"].items():
            if lost := [block for block in table[-window:] if block in mine["free"]]:
                return f"{after}: block {lost[0]} is in the window of {name!r}, and free"
        if held := [block for block in right["free"] if block not in mine["free"]]:
            return f"{after}: nobody looks at block {held[0]}, and it is not free"
        return f"{after}, how many look at each block: {exact(case, mine['refs'], right['refs'])}"
    return None


TABLES = Exercise(
    exercise_id="c06-b1",
    title="Bug hunt: two answers to one prompt",
    kind="bug hunt",
    function="Tables",
    stars=2,
    points=15,
    minutes=20,
    needs="the section “A window that slides”",
    hints=(
        "Take the log and write, after each line, which blocks each answer has in its window. Then compare with how "
        "often each block is counted.",
        "Two methods count by other rules. A table of three entries in a window of two names one block twice; and an "
        "answer that has copied a block still has the old one in its table, further in front. Which blocks does an "
        "answer hold: those of its table, or those of its window?",
        "held = the different blocks among the last `window` entries of a table\n"
        "fork: one look more at each block that is held\n"
        "end: drop each block that is held, once",
    ),
    draw_cases=draw_table_cases,
    call=use_tables,
    show=as_calls,
    compare=compare_tables,
)

EXERCISES = (POOL, ALLOCATE, PEAK, TABLES)
