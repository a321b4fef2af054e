"""Draws prompts that begin alike, with tenants, salts and pictures; runs them. Knows no right answer. Chapter 7."""

import random
import string
from typing import Any

from mini_vllm.grading.checkers import shown
from mini_vllm.grading.exercise import NUM_CASES, Case
from mini_vllm.grading.step_traces import run_scheduler


def draw_name_cases(rng: random.Random) -> list[Case]:
    """[requests, block_size]; a request is [token_ids, salt, adapter, images], and token 0 stands for an image."""
    cases: list[Case] = [
        [[[[5, 6, 7], None, None, []]], 2],
        [[[[5, 6, 7, 8], None, None, []], [[5, 6, 9, 8], None, None, []]], 2],
        [[[[5, 6, 7, 8], None, None, []], [[9, 9, 7, 8], None, None, []]], 2],
        [[[[5, 6], "x", None, []], [[5, 6], None, None, []], [[5, 6], None, "x", []]], 2],
        [[[[5, 6, 0, 7], None, None, ["cat"]], [[5, 6, 0, 7], None, None, ["dog"]]], 2],
        [[[[1, 2, 3, 4, 7, 8], None, None, []], [[9, 2, 3, 4, 7, 8], None, None, []]], 2],
        # Two pictures: in two blocks, of which the first is the same; in one block, the other way round.
        [[[[5, 0, 6, 0], None, None, ["cat", "dog"]], [[5, 0, 6, 0], None, None, ["cat", "fox"]]], 2],
        [[[[0, 0], None, None, ["cat", "dog"]], [[0, 0], None, None, ["dog", "cat"]]], 2],
        [[[[0, 0], None, None, ["cat", "cat"]], [[0, 0], None, None, ["cat", "dog"]]], 2],
        [[[[0, 0], None, None, ["cat", "dog"]], [[0, 0], None, None, ["dog", "dog"]]], 2],
        # Texts that run into each other: nothing is no text, a number no picture, and 1 before 23 not 12 before 3.
        [[[[5, 6], "None", None, []], [[5, 6], None, None, []], [[5, 6], None, "None", []]], 2],
        [[[[5, 6], "x", "y", []], [[5, 6], "x", None, []], [[5, 6], None, "y", []]], 2],
        [[[[5, 0], None, None, ["6"]], [[5, 6], None, None, []]], 2],
        [[[[1, 23], None, None, []], [[12, 3], None, None, []]], 2],
        *([[[[5, 6], f"a{s}a", "a", []], [[5, 6], "a", f"a{s}a", []]], 2] for s in ("", "/", "|", ":", "::", "-")),
    ]
    while len(cases) < NUM_CASES:
        size = rng.choice([2, 3, 4])
        blocks = [[rng.choice([0, 0, *range(1, 9)]) for _ in range(size)] for _ in range(3)]
        requests = []
        for _ in range(rng.randint(3, 6)):
            tokens = [token for block in rng.choices(blocks, k=rng.randint(1, 4)) for token in block]
            del tokens[rng.randint(size, 4 * size) :]
            images = [rng.choice(["cat", "dog", "x"]) for token in tokens if token == 0]
            salt, adapter = rng.choice([None, None, "x", "cat"]), rng.choice([None, None, None, "x"])
            requests.append([tokens, salt, adapter, images])
        cases.append([requests, size])
    return cases


def draw_line_cases(rng: random.Random) -> list[Case]:
    """[requests, config, patience]; a request is [id, prompt_len, max_tokens, arrival_step, tenant, prefix_len].

    A prompt ends one token into a block, and an answer of at most four ends in it: nobody needs a block while it runs.
    """

    def config(seats: int, blocks: int, budget: int = 64, watermark: float = 0.0, whole: bool = True) -> dict:
        limits = {"max_num_seqs": seats, "num_gpu_blocks": blocks, "block_size": 4, "enable_prefix_caching": True}
        return limits | {"max_num_batched_tokens": budget, "watermark": watermark, "reserve_full_isl": whole}

    turns = [[name, 17, 1, 0, 7 + i % 2, 16] for i, name in enumerate("ABCDEF")]
    cases: list[Case] = [
        [[["A", 5, 2, 0, 7, 4], ["B", 5, 2, 0, 8, 4]], config(1, 8), 0],
        [[["A", 9, 1, 0, 7, 8], ["B", 9, 1, 0, 8, 8], ["C", 9, 1, 0, 7, 8]], config(1, 8), 9],
        [[["A", 9, 1, 0, 7, 8], ["B", 9, 1, 0, 8, 8], ["C", 9, 1, 0, 7, 8]], config(3, 12), 0],
        [turns, config(1, 6), 0],
        [turns, config(1, 6), 2],
        [turns, config(2, 12), 9],
        [[["A", 9, 4, 0, 7, 8], ["B", 13, 1, 1, 8, 12], ["C", 9, 1, 1, 7, 8], ["D", 5, 1, 2, 7, 4]], config(1, 7), 3],
        [[["A", 9, 4, 0, 7, 8], ["B", 5, 1, 1, 8, 4], ["C", 21, 1, 1, 7, 8]], config(2, 6), 9],
        # What A leaves of the budget is enough for B because of its hit. One block must stay free beside B; none if
        # nobody runs, or A would wait for ever.
        [[["A", 17, 2, 0, 7, 16], ["B", 17, 1, 0, 7, 16]], config(2, 12, budget=20), 0],
        [[["A", 9, 4, 0, 7, 8], ["B", 9, 1, 0, 8, 8]], config(2, 6, watermark=0.2), 0],
        [[["A", 9, 4, 0, 7, 8], ["B", 9, 1, 0, 8, 8]], config(2, 6, watermark=0.2, whole=False), 0],
        [[["A", 17, 2, 0, 7, 16]], config(1, 5, watermark=0.2, whole=False), 0],
        # The chosen C does not fit; B, which stands before it, would.
        [[["A", 9, 4, 0, 7, 8], ["B", 5, 1, 1, 8, 4], ["C", 21, 1, 1, 7, 8]], config(3, 6), 2],
        [[["A", 5, 1, 0, 7, 4], ["B", 5, 1, 0, 8, 4], ["C", 5, 1, 0, 7, 4], ["D", 5, 1, 0, 7, 4]], config(3, 12), 1],
    ]
    while len(cases) < NUM_CASES:
        arrival, requests = 0, []
        for name in string.ascii_uppercase[: rng.randint(4, 9)]:
            prefix = 4 * rng.randint(0, 4)
            prompt_len = prefix + 4 * rng.choice([0, 0, 1]) + 1
            requests.append([name, prompt_len, rng.choice([1, 1, 2, 4]), arrival, rng.choice([7, 8, 9]), prefix])
            arrival += rng.choice([0, 0, 0, 1, 3])
        seats, blocks, budget = rng.choice([1, 1, 2, 3]), rng.choice([6, 7, 9, 14]), rng.choice([24, 32, 64])
        limits = config(seats, blocks, budget, rng.choice([0, 0, 0.2]), rng.choice([True, True, False]))
        cases.append([requests, limits, rng.choice([0, 1, 3, 6, 99])])
    return cases


def line_workload(case: Case) -> tuple:
    from mini_vllm.config import SchedulerConfig
    from mini_vllm.sim.driver import SimRequest

    requests, config, patience = case
    rows = [
        SimRequest(name, prompt_len, max_tokens, arrival, prefix=[tenant] * length)
        for name, prompt_len, max_tokens, arrival, tenant, length in requests
    ]
    return rows, SchedulerConfig(**config), patience


def run_patient(scheduler_cls: type, requests: list, config: Any, patience: int) -> list[dict]:
    """The run of the class with `patience` set; 0 it must have by itself, so then it is left alone."""
    if patience:
        scheduler_cls = type(scheduler_cls.__name__, (scheduler_cls,), {"patience": patience})
    return run_scheduler(scheduler_cls, requests, config)


def show_line(name: str, arguments: tuple) -> str:
    requests, config, patience = arguments
    rows = []
    for r in requests:
        arrival = f", arrival_step={r.arrival_step}" if r.arrival_step else ""
        prefix = f", prefix=[{r.prefix[0]}] * {len(r.prefix)}" if r.prefix else ""
        rows.append(f"SimRequest({r.request_id!r}, {r.prompt_len}, {r.max_tokens}{arrival}{prefix})")
    usual = type(config)()
    limits = ", ".join(f"{key}={value!r}" for key, value in vars(config).items() if value != getattr(usual, key))
    setting = f"{name}.patience = {patience}; " if patience else ""
    return f"{setting}simulate([{', '.join(rows)}], SchedulerConfig({limits}), scheduler_cls={name})"


def draw_prompt_cases(rng: random.Random) -> list[Case]:
    """[prompts, block_size]; one after another through one cache, with many that are the same or go on."""
    eight = list(range(1, 9))
    cases: list[Case] = [
        [[[1, 2, 3, 4, 5]], 4],
        [[[1, 2, 3, 4, 5], [1, 2, 3, 4, 5]], 4],
        [[[1, 2, 3, 4], [1, 2, 3, 4]], 4],
        [[eight, eight], 4],
        [[eight, [*eight, 9]], 4],
        [[eight, eight, [*eight, 9]], 4],
        [[eight, [1, 2, 3, 4, 9, 9, 9, 9], [1, 2, 3, 4]], 4],
    ]
    while len(cases) < NUM_CASES:
        size = rng.choice([2, 3, 4])
        texts = [[rng.randint(1, 3) for _ in range(5 * size)] for _ in range(2)]
        lengths = [rng.choice([size, 2 * size, 3 * size, 4 * size, rng.randint(1, 5 * size)]) for _ in range(6)]
        cases.append([[rng.choice(texts)[:length] for length in lengths], size])
    return cases


def run_through(enter: Any, prompts: list[list[int]], block_size: int) -> list:
    """What the function says of each prompt in turn; the cache is its own to fill."""
    cache: set = set()
    return [enter(list(prompt), cache, block_size) for prompt in prompts]


def show_prompts(name: str, arguments: tuple) -> str:
    prompts, block_size = arguments
    return f"cache = set(); [{name}(prompt, cache, {block_size}) for prompt in {shown(prompts)}]"
