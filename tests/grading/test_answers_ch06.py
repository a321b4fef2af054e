"""Chapter 6's references agree with the package's own manager, and the numbers on its pages are right. Knows both."""

import inspect
import json
import random
import re
import textwrap
from ast import literal_eval
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from mini_vllm.config import SchedulerConfig
from mini_vllm.core.block_pool import BlockPool
from mini_vllm.core.kv_cache_manager import KVCacheManager
from mini_vllm.grading.bank import ch06 as bank
from mini_vllm.grading.bank import chapter_module
from mini_vllm.grading.overlay import find_answers, source_of
from mini_vllm.grading.reference import ch06 as reference
from mini_vllm.grading.reference import ch06_variants as variants
from mini_vllm.request import Request
from mini_vllm.sim.driver import SimRequest, simulate
from mini_vllm.sim.examples import five_requests
from mini_vllm.stages.ch05_two_budgets import Scheduler as Stage5
from mini_vllm.stages.ch06_blocks import Scheduler as Stage6

from .conftest import notebook, right, verdict_of

EXERCISES = {exercise.exercise_id: exercise for exercise in chapter_module("ch06").EXERCISES}
SOLUTION, BLANK = notebook("solutions", "ch06"), notebook("exercises", "ch06")
TEXT = "\n".join(source_of(cell) for cell in BLANK["cells"])
PAGE = "\n".join(source_of(cell) for cell in notebook("notebooks", "ch06")["cells"])


# --- e1 -------------------------------------------------------------------------------------------------------


def test_pool_by_hand_and_by_manager():
    assert variants.pool() == {"table_of_D": [2, 1, 7], "free_queue": [5, 4, 8], "slot_of_token_9_of_D": 29}
    rows = re.findall(r"^\| \d \| ([A-D]) (computes (\d+)|ends)", TEXT, re.MULTILINE)
    assert tuple((name, int(tokens or 0)) for name, _, tokens in rows) == bank.EVENTS


def test_the_small_pool_worked_on_the_page():
    manager = KVCacheManager(SchedulerConfig(num_gpu_blocks=4, block_size=4))
    x, y = Request("X", [1]), Request("Y", [1])
    assert manager.allocate_slots(x, 5) == [1, 2] and manager.allocate_slots(y, 2) == [3]
    manager.free(x)
    assert manager.block_pool.free_queue() == [2, 1, 4] and manager.get_block_ids("Y")[1 // 4] * 4 + 1 == 13
    assert '`{"table_of_Y": [3], "free_queue": [2, 1, 4], "slot_of_token_1_of_Y": 13}`' in TEXT


def test_a_wrong_pool_is_told_which_and_never_how_much():
    solved = find_answers(SOLUTION).sources["c06-e1"]
    for old, new, what in (
        ("[2, 1, 7]", "[1, 2, 7]", "table_of_D"),
        ("[5, 4, 8]", "[8, 5, 4]", "free_queue"),
        ("7 * 4 + 1", "7 * 4 + 2", "slot_of_token_9_of_D"),
    ):
        told = verdict_of("c06-e1", solved.replace(old, new)).message.splitlines()[2]
        assert told.strip() == f"{what} is not right"


# --- e2 -------------------------------------------------------------------------------------------------------


def allocate_on_a_manager(free_queue, num_owned, num_computed, num_new, block_size, num_known, watermark):
    """The same question to the real allocate_slots. The pool's queue is put into the order of the case."""
    most = max([num_owned, *free_queue, 1]) + num_owned + 40
    config = SchedulerConfig(num_gpu_blocks=most, block_size=block_size, max_model_len=10_000)
    manager = KVCacheManager(config)
    pool = manager.block_pool
    pool.take(most)
    for block in reversed(free_queue):
        pool.ref_count[block] = 0
        pool._link(0, block)
    request = Request("r", [1] * (num_known or num_computed + num_new))
    request.num_computed_tokens = num_computed
    if num_owned:
        owned = [block for block in range(1, most) if block not in free_queue][:num_owned]
        manager.req_to_blocks["r"] = owned
    blocks = manager.allocate_slots(request, num_new, full_sequence=num_known is not None, watermark_blocks=watermark)
    return [None if blocks is None else list(blocks), pool.free_queue()]


def test_allocate_agrees_with_the_real_manager():
    for seed in range(20):
        for case in EXERCISES["c06-e2"].cases(seed):
            assert variants.allocate_with(*case) == allocate_on_a_manager(*case), case


def test_the_worked_calls():
    shown = re.findall(r"^allocate\((.*)\) +->  (.*)$", TEXT, re.MULTILINE)
    assert len(shown) == 5
    for arguments, returned in shown:
        assert tuple(right("c06-e2")(*literal_eval(f"({arguments})"))) == literal_eval(f"({returned})")


def test_the_story_of_two_prompts_that_never_end():
    """Each first piece of 8 takes 2 of 5 blocks; one is left, and a second piece needs two."""
    queue = [1, 2, 3, 4, 5]
    for _ in range(2):
        blocks, queue = variants.allocate_with(queue, 0, 0, 8, 4, 18, 0, full=False)
        assert len(blocks) == 2
    assert variants.allocate_with(queue, 2, 8, 8, 4, None, 0)[0] is None
    first, queue = variants.allocate_with([1, 2, 3, 4, 5], 0, 0, 8, 4, 18, 0)
    assert len(first) == 2 and variants.allocate_with(queue, 0, 0, 8, 4, 18, 0)[0] is None


# --- e3 -------------------------------------------------------------------------------------------------------


def steps_of(scheduler_cls: Callable, **changes) -> int:
    requests, config = five_requests()
    return len(
        simulate(requests, replace(config, max_num_batched_tokens=40, **changes), scheduler_cls=scheduler_cls).steps
    )


def test_the_numbers_of_the_story():
    assert (steps_of(Stage5), steps_of(Stage6, watermark=0.15), steps_of(variants.Peak)) == (104, 81, 72)
    for shown in (
        "**104 steps**",
        "gets through in 81",
        "**72 steps**",
        "104 steps if the worst cases are added, 72 if",
    ):
        assert shown in TEXT


def test_the_peak_is_kept_and_never_slower_than_the_worst_case():
    for seed in range(200):
        rng = random.Random(seed)
        config = SchedulerConfig(
            max_num_seqs=rng.randint(1, 8), max_num_batched_tokens=rng.randint(20, 60), max_model_len=64,
            num_gpu_blocks=rng.randint(8, 20), block_size=4,
        )  # fmt: skip
        requests = [
            SimRequest(str(i), rng.randint(1, 20), rng.randint(1, 12), arrival_step=rng.randint(0, 5))
            for i in range(rng.randint(1, 8))
        ]
        ours, stage5 = (len(simulate(requests, config, scheduler_cls=cls).steps) for cls in (variants.Peak, Stage5))
        assert ours <= stage5


def test_solution_and_reference_give_the_same_traces():
    exercise, mine = EXERCISES["c06-e3"], right("c06-e3")
    for seed in range(5):
        for case in exercise.cases(seed):
            expected = reference.ANSWERS["c06-e3"](*exercise.arguments(case))
            assert exercise.call(mine, *exercise.arguments(case)) == expected


def test_the_worked_peak():
    request_a, request_b = (SimRequest("A", 8, 1), SimRequest("B", 4, 5))
    config = SchedulerConfig(num_gpu_blocks=3, block_size=4, max_model_len=64)
    trace = simulate([request_a, request_b], config, scheduler_cls=variants.Peak)
    assert trace.steps[0]["scheduled"] == [["A", 8], ["B", 4]] and trace.steps[0]["free"] == 0
    assert [step["new"] for step in simulate([request_a, request_b], config, scheduler_cls=Stage5).steps][:2] == [
        ["A"],
        ["B"],
    ]


# --- b1 -------------------------------------------------------------------------------------------------------

GIVEN = dict(reference.MISTAKES["c06-b1"])["That is the function as given."]
STORY = [["start", "a"], *[["grow", "a"]] * 3, ["fork", "a", "b"], ["grow", "b"], ["end", "b"], ["start", "c"],
         ["grow", "c"], ["end", "a"], ["end", "c"]]  # fmt: skip


def line_of(books: dict) -> tuple[str, str, str]:
    tables = "  ".join(f"{name} {table}" for name, table in books["tables"].items())
    return tables, ", ".join(f"{b}: {n}" for b, n in books["refs"].items()), " ".join(map(str, books["free"]))


def test_the_log_is_what_the_given_class_does():
    shown = re.findall(r"^(?:grow|fork|end|start)\(.*$", TEXT, re.MULTILINE)
    books = GIVEN(8, 2, STORY)[3:]
    assert len(shown) == len(books) == 8
    for text, state in zip(shown, books, strict=True):
        for part in line_of(state):
            assert part in text, (part, text)


def test_the_dashboard_and_what_a_mended_class_would_show():
    for tables, free in ((GIVEN, [8, 7, 6, 5, 4]), (reference.tables, [8] * 5)):
        operations = []
        for i in range(4):
            a, b = f"a{i}", f"b{i}"
            operations += [["start", a], *[["grow", a]] * 3, ["fork", a, b], ["grow", b], ["end", b], ["end", a]]
        books = tables(8, 2, operations)
        assert [8, *(len(books[i]["free"]) for i in range(7, 32, 8))] == free
    assert "| free blocks, with nothing running | 8 | 7 | 6 | 5 | 4 |" in TEXT


def test_right_tables_share_what_is_in_a_window_and_nothing_else():
    exercise = EXERCISES["c06-b1"]
    for seed in range(20):
        for num_blocks, window, operations in exercise.cases(seed):
            for books in reference.tables(num_blocks, window, operations):
                counted: dict[str, int] = {}
                for table in books["tables"].values():
                    for block in set(table[-window:]):
                        counted[str(block)] = counted.get(str(block), 0) + 1
                assert books["refs"] == dict(sorted(counted.items(), key=lambda item: int(item[0])))
                assert books["free"] == [b for b in range(1, num_blocks + 1) if str(b) not in counted]


# --- the page -------------------------------------------------------------------------------------------------


def test_the_excerpts_on_the_page_are_the_code():
    shown = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert len(shown) == 3
    for text, method in zip(shown, (BlockPool.take, BlockPool.free), strict=False):
        assert text.strip() == textwrap.dedent(inspect.getsource(method)).strip()
    assert textwrap.indent(shown[2], "        ") in inspect.getsource(KVCacheManager.allocate_slots)


def test_the_numbers_that_the_text_repeats():
    """In the cells' outputs they are computed; here, those that stand in a sentence."""
    recordings = list((Path(__file__).parents[1] / "data" / "vllm_traces").glob("*.json"))
    assert f"{len(recordings)} recorded runs" in PAGE
    large = [steps_of(Stage6, watermark=(blocks + 0.1) / 7) for blocks in (4, 5)]
    assert f"{large[0]} and {large[1]} steps against {steps_of(Stage5)}" in PAGE
    exact = re.search(r"one piece, exact  .*? (\d+)% +(\d+)\.\d% +(\d+)%", json.dumps(notebook("notebooks", "ch06")))
    told = "Of the {} % without a token, {} are kept for tokens to come. The other {} are holes"
    assert told.format(100 - int(exact[1]), exact[2], exact[3]) in PAGE
    served = [re.findall(r"4 requests in (\d+) steps", json.dumps(notebook("notebooks", c))) for c in ("ch05", "ch06")]
    told = "Chapter 5's reservation took {} steps for these words, the watermark takes {}"
    assert told.format(served[0][-1], served[1][-1]) in PAGE


def test_what_quiz_2_says_of_two_prompts_that_both_fit():
    free = [1, 2, 3, 4, 5]
    for _ in range(2):
        blocks, free = variants.allocate_with(free, 0, 0, 8, 16, 40, 1)
        assert len(blocks) == 1
    assert len(free) == 3 and 2 * (3 - 1) == 4


def test_solutions_use_no_module_of_the_answers():
    sources = find_answers(SOLUTION).sources
    assert [i for i, source in sources.items() if "mini_vllm" in source] == ["c06-e3"], "it extends stage 6"
