"""Chapter 7's references are the real cache, and the numbers on its page are right. Knows both."""

import inspect
import re
import runpy

import pytest

from mini_vllm.config import SchedulerConfig
from mini_vllm.core import prefix_cache
from mini_vllm.core.kv_cache_manager import KVCacheManager
from mini_vllm.grading.bank import chapter_module
from mini_vllm.grading.overlay import find_answers, source_of
from mini_vllm.grading.reference import ch07 as reference
from mini_vllm.grading.reference import ch07_variants as variants
from mini_vllm.grading.step_traces import run_scheduler
from mini_vllm.request import Request
from mini_vllm.sim.driver import SimRequest, simulate
from mini_vllm.stages.ch07_prefix_cache import Scheduler as Stage7

from .conftest import ROOT, define, notebook, right, unwrapped, verdict_of

BANK = chapter_module("ch07")
EXERCISES = {exercise.exercise_id: exercise for exercise in BANK.EXERCISES}
SOLUTION, BLANK = notebook("solutions", "ch07"), notebook("exercises", "ch07")
TEXT = "\n".join(source_of(cell) for cell in BLANK["cells"])
GIVEN = dict(reference.MISTAKES["c07-b1"])["That is the function as given."]


# ---- e1


def through_the_pool() -> list[tuple[str, int, list[int], list[int]]]:
    """(name, tokens found, block table, free queue after) of the seven, by the real manager and nothing else."""
    manager = KVCacheManager(SchedulerConfig(block_size=4, num_gpu_blocks=5, enable_prefix_caching=True))
    rows = []
    for name, text in BANK.BOARD.items():
        request = Request(name, variants.tokens_of(text))
        hits = manager.get_computed_blocks(request)
        assert manager.allocate_slots(request, request.num_tokens - 4 * len(hits), hits=hits) is not None
        table = list(manager.get_block_ids(name))
        manager.free(request)
        rows.append((name, 4 * len(hits), table, manager.block_pool.free_queue()))
    return rows


def test_found_by_hand_and_by_the_real_pool():
    found = reference.found()
    rows = {name: (hits, table) for name, hits, table, _ in through_the_pool()}
    assert found == {"hits": {name: rows[name][0] for name in "CEFG"}, "blocks_of_D": rows["D"][1]}
    assert found == {"hits": {"C": 12, "E": 8, "F": 0, "G": 4}, "blocks_of_D": [5, 4, 3]}
    shown = re.findall(r"^\| ([A-G]) \| ([A-Za-z ]+) \| (\d+) \|$", TEXT, re.MULTILINE)
    assert {name: prompt.replace(" ", "") for name, prompt, _ in shown} == BANK.BOARD
    assert all(int(size) == len(variants.tokens_of(BANK.BOARD[name])) for name, _, size in shown)


def test_the_two_rows_that_are_done_for_the_learner():
    for name, hits, table, queue in through_the_pool()[:2]:
        taken, shown = ", ".join(map(str, table)), " ".join(map(str, table))
        assert hits == 0 and f"| {name} | nothing | {taken} | {shown} | {' '.join(map(str, queue))}: " in TEXT


def test_a_wrong_number_is_told_which_and_never_how_much():
    solved = find_answers(SOLUTION).sources["c07-e1"]
    for old, new in (('"E": 8', '"E": 4'), ('"F": 0', '"F": 4'), ("[5, 4, 3]", "[5, 4, 1]")):
        message = verdict_of("c07-e1", solved.replace(old, new)).message
        told = message.splitlines()[2]
        assert old[1] in told or "blocks_of_D: not right" in told
        assert not re.search(r"\d", told.replace("blocks_of_D", "")), told


# ---- e2


def test_names_by_the_real_cache_agree_with_a_plain_loop():
    exercise = EXERCISES["c07-e2"]
    for seed in range(20):
        for case in exercise.cases(seed):
            assert reference.block_names(*exercise.arguments(case)) == variants.names_with(*exercise.arguments(case))


def test_names_worked_example():
    table = re.findall(r"^\| `(\(\[.*\))` \| (\w)[^|]*\| ?(\w?)", TEXT, re.MULTILINE)
    requests = [eval(text) for text, _, _ in table]
    letters = [[letter for letter in names if letter] for _, *names in table]
    assert len(requests) == 7 and str(letters).replace("'", '"') in TEXT
    exercise = EXERCISES["c07-e2"]
    expected = reference.block_names(requests, 2)
    assert exercise.essence([], letters) == exercise.essence([], expected)
    assert exercise.compare([[list(r) for r in requests], 2], letters, expected) is None


def test_long_names_are_compared_whole():
    """Two names that differ only far behind the part that a message shows."""
    compare = EXERCISES["c07-e2"].compare
    case = [[[[1, 2], None, None, []], [[1, 3], None, None, []]], 2]
    long = "x" * 500
    assert compare(case, [[long + "a"], [long + "b"]], [[0], [1]]) is None
    assert "have one name" in compare(case, [[long + "a"], [long + "a"]], [[0], [1]])


def test_what_differs_is_said():
    exercise = EXERCISES["c07-e2"]
    plain = [[5, 6, 7, 8], None, None, []]
    for other, told in (
        ([[5, 6, 7, 8], "x", None, []], "the salts are None and 'x'"),
        ([[5, 6, 7, 8], None, "x", []], "the adapters are None and 'x'"),
        ([[5, 6, 7, 9], None, None, []], "their tokens differ"),
        ([[9, 6, 7, 8], None, None, []], "what stands before them differs"),
    ):
        case = [[plain, other], 2]
        first = [["a", "b"], ["c" if other[0][:2] != [5, 6] or other[1:3] != [None, None] else "a", "b"]]
        assert told in exercise.compare(case, first, reference.block_names(*exercise.arguments(case)))
    pictures = [[[[5, 0], None, None, ["cat"]], [[5, 0], None, None, ["dog"]]], 2]
    complaint = exercise.compare(pictures, [["a"], ["a"]], [[0], [1]])
    assert "an image in or before them differs" in complaint


# ---- e2 and e3


@pytest.mark.parametrize("exercise_id", ["c07-e2", "c07-e3"])
def test_the_text_that_the_mutants_change_is_right(exercise_id):
    """So each of them has the one mistake that it is named after."""
    path = ROOT / "solutions" / "mutants" / f"ch07_{exercise_id[-2:]}.py"
    verdict = verdict_of(exercise_id, runpy.run_path(str(path))["GOOD"])
    assert verdict.status == "pass", verdict.message


# ---- e3


def served_in_order(patience: int, requests: list[SimRequest], config: SchedulerConfig) -> list[list]:
    return [
        step["scheduled"] for step in simulate(requests, config, scheduler_cls=variants.warm_first_with(patience)).steps
    ]


def test_without_patience_it_is_the_scheduler_of_the_page():
    exercise = EXERCISES["c07-e3"]
    for case in exercise.cases(3):
        requests, config, _ = exercise.arguments(case)
        assert run_scheduler(variants.warm_first_with(0), requests, config) == run_scheduler(Stage7, requests, config)


def test_numbers_of_the_two_tenants():
    requests = [SimRequest(f"r{i}", 65, 1, prefix=[7 + i % 2] * 64) for i in range(12)]
    config = SchedulerConfig(
        max_num_seqs=1, num_gpu_blocks=5, block_size=16, max_num_batched_tokens=128, enable_prefix_caching=True
    )
    order = served_in_order(0, requests, config)
    warm = served_in_order(99, requests, config)
    counts = [sum(n for step in steps for _, n in step) for steps in (order, warm)]
    assert counts == [780, 140] and "**780 tokens**" in TEXT and "it is **140**" in TEXT
    assert "780 tokens computed in order of arrival, 140 if" in TEXT
    assert [step[0][0] for step in warm] == [f"r{i}" for i in (*range(0, 12, 2), *range(1, 12, 2))]


def test_patience_worked_example():
    requests = [SimRequest(name, 9, 1, prefix=[tenant] * 8) for name, tenant in (("A", 7), ("B", 8), ("C", 7))]
    config = SchedulerConfig(max_num_seqs=1, enable_prefix_caching=True)
    assert served_in_order(9, requests, config) == [[["A", 9]], [["C", 1]], [["B", 9]]]
    assert served_in_order(1, requests, config) == [[["A", 9]], [["B", 9]], [["C", 1]]]
    assert "In step 1 C finds two blocks and B none: C goes, and computes 1 token." in TEXT


def test_nobody_needs_a_block_while_it_runs():
    """So a graded scheduler, which cannot evict, never meets an exhausted pool."""
    exercise = EXERCISES["c07-e3"]
    for seed in range(20):
        for requests, config, _ in exercise.cases(seed):
            for _, prompt_len, max_tokens, _, _, prefix in requests:
                assert prompt_len % 4 == 1 and max_tokens <= 4 and prefix < prompt_len
                assert -(-prompt_len // 4) <= config["num_gpu_blocks"]


@pytest.mark.parametrize("lost", ["served", "one"])
def test_a_request_that_is_not_served_is_named(lost):
    exercise = EXERCISES["c07-e3"]
    case = exercise.cases(1)[1]
    steps = reference.warm_first(*exercise.arguments(case))
    cut = steps[:-1] if lost == "served" else []
    assert "finished 0 times" in exercise.compare(case, cut, steps)


def test_the_right_class_is_told_apart_only_by_decisions():
    """Another word for the reason why somebody waits is no mistake."""
    exercise = EXERCISES["c07-e3"]
    mine = define(
        "c07-e3", find_answers(SOLUTION).sources["c07-e3"].replace("return self.why_no_blocks", "return 'later' or")
    )
    for case in exercise.cases(5):
        assert exercise.compare(case, exercise.call(mine, *exercise.arguments(case)), reference.warm_first(
            *exercise.arguments(case))) is None  # fmt: skip


# ---- b1


def through(enter, prompts: list[list[int]], block_size: int) -> list[list[int]]:
    return [list(entry) for entry in EXERCISES["c07-b1"].call(enter, prompts, block_size)]


def test_the_entries_are_those_of_the_real_cache():
    for prompts, size in EXERCISES["c07-b1"].cases(2):
        manager = KVCacheManager(SchedulerConfig(block_size=size, num_gpu_blocks=200, enable_prefix_caching=True))
        for i, (tokens, entry) in enumerate(zip(prompts, reference.enter(prompts, size), strict=True)):
            request = Request(f"r{i}", tokens)
            hits = manager.get_computed_blocks(request)
            manager.allocate_slots(request, len(tokens) - size * len(hits), hits=hits)
            manager.free(request)
            assert entry == [size * len(hits), len(tokens) - size * len(hits)]


def test_incident_dashboard_is_what_the_given_function_does():
    head = re.search(r"^\| prompt sent twice, tokens \| (.*) \|$", TEXT, re.MULTILINE)[1]
    row = re.search(r"^\| second time \| (.*) \|$", TEXT, re.MULTILINE)[1]
    for length, told in zip(map(int, head.split(" | ")), row.split(" | "), strict=True):
        prompt = list(range(length))
        (_, first), (start, num_new) = GIVEN([prompt, prompt], 256)
        assert first == length and start + num_new == length
        assert told == ("ok" if num_new else "**dies**"), length
        assert reference.enter([prompt, prompt], 256)[1][1] > 0


def test_incident_log_is_what_the_patches_do():
    of = {sentence.split(":")[0]: function for sentence, function in reference.MISTAKES["c07-b1"]}
    patches = [of["That is the first patch of the incident"], of["That is the second patch of the incident"]]
    prompt = list(range(512))
    longer = [*prompt, *range(1000, 1088)]
    r1, r2, r5 = GIVEN([prompt, prompt, longer], 256)
    r3, r4 = (patch([prompt, prompt], 256)[1] for patch in patches)
    shown = re.findall(r"^[\d:]+ +(r\d) +(\d+) tokens +start +(\d+), computes +(\d+)", TEXT, re.MULTILINE)
    expected = zip(("r1", "r2", "r3", "r4", "r5"), (512, 512, 512, 512, 600), (r1, r2, r3, r4, r5), strict=True)
    assert [(n, int(size), [int(a), int(b)]) for n, size, a, b in shown] == [(n, size, e) for n, size, e in expected]
    assert r4[0] // 256 == 1 and 512 - 256 - r4[1] == 255  # one block is shared, 255 slots of the other are not filled
    assert r3[0] + r3[1] == 513
    assert reference.enter([prompt, prompt, longer], 256) == [[0, 512], [256, 256], [512, 88]]


def test_given_function_is_the_one_on_the_page():
    given = define("c07-b1", find_answers(BLANK).sources["c07-b1"])
    for prompts, size in EXERCISES["c07-b1"].cases(4):
        assert through(given, prompts, size) == GIVEN(prompts, size)
        assert through(right("c07-b1"), prompts, size) == reference.enter(prompts, size)


def test_a_prompt_that_runs_past_its_end_is_told_so():
    source = find_answers(SOLUTION).sources["c07-b1"].replace("len(token_ids) - start", "len(token_ids) - start + 1")
    assert "and the prompt has 5" in unwrapped(verdict_of("c07-b1", source).message)


# ---- all


def test_solutions_use_nothing_but_the_scheduler_they_extend():
    for exercise_id, source in find_answers(SOLUTION).sources.items():
        imported = set(re.findall(r"(?:from|import) (mini_vllm[\w.]*)", source))
        assert imported <= ({"mini_vllm.grading", "mini_vllm.request"} if exercise_id == "c07-e3" else set())


def test_the_chapter_shows_the_code_of_core_as_it_is():
    page = "\n".join(source_of(cell) for cell in notebook("notebooks", "ch07")["cells"])
    [shown] = re.findall(r"```python\n(.*?)\n```", page, re.DOTALL)
    for name in ("block_hash", "root_hash", "extend_hashes"):
        assert inspect.getsource(getattr(prefix_cache, name)).rstrip() in shown, f"{name} has changed since"
