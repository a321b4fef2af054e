"""Runs in which small requests may pass the head of the line. Knows cases and records; judges nothing. Chapter 5."""

import random
import string
from typing import Any

from mini_vllm.grading.exercise import NUM_CASES, Case
from mini_vllm.grading.step_traces import as_simulate, run_scheduler


def draw_line_cases(rng: random.Random) -> list[Case]:
    """[requests, config, most_passed]; requests of a few sizes, a pool that carries each of them alone.

    In some cases max_model_len ends answers before their max_tokens.
    """

    def config(seats: int, budget: int, blocks: int) -> dict:
        return dict(max_num_seqs=seats, max_num_batched_tokens=budget, num_gpu_blocks=blocks, block_size=4)

    line = [["A", 8, 5, 0], ["B", 9, 4, 0], ["C", 2, 2, 0], ["D", 3, 2, 0], ["E", 2, 3, 0]]
    cases: list[Case] = [
        [[["A", 4, 3, 0], ["B", 4, 3, 0]], config(4, 20, 10), 0],
        [[["A", 4, 5, 0], ["B", 4, 5, 0]], config(4, 20, 4), 0],
        [[["A", 4, 12, 0], ["B", 4, 12, 0]], config(4, 20, 6) | {"max_model_len": 12}, 0],
        [[["A", 4, 9, 0], ["B", 9, 9, 0]], config(4, 12, 5), 0],
        [[["A", 8, 5, 0], ["B", 9, 4, 0], ["C", 2, 2, 0], ["D", 9, 9, 0], ["E", 2, 2, 0]], config(4, 20, 5), 1],
        [line, config(4, 20, 5), 1],
        [line, config(4, 20, 5), 9],
        [line, config(5, 20, 5), 2],
        [[*line, ["F", 1, 1, 0], ["G", 1, 2, 0]], config(7, 30, 6), 2],
        [
            [["A", 8, 2, 0], ["B", 12, 6, 0], ["C", 12, 6, 0], *([f"s{i}", 1, 2, 0] for i in range(8))],
            config(9, 30, 6),
            2,
        ],
        [[["A", 9, 2, 0], ["B", 8, 2, 0], ["C", 1, 1, 0], ["D", 1, 1, 0]], config(4, 12, 20), 1],
        [[["A", 8, 5, 0], ["B", 9, 4, 0], ["C", 9, 9, 0], ["D", 1, 1, 0]], config(4, 20, 5), 3],
    ]
    while len(cases) < NUM_CASES:
        arrival, requests = 0, []
        for name in string.ascii_uppercase[: rng.randint(4, 9)]:
            prompt, output = rng.choice([(14, 6), (9, 9), (3, 3), (2, 2), (1, 5), (5, 1)])
            requests.append([name, prompt, output, arrival])
            arrival += rng.choice([0, 0, 0, 0, 1, 3])
        limits = config(rng.randint(2, 6), rng.choice([14, 17, 24]), rng.choice([5, 6, 7, 9]))
        limits |= rng.choice([{}, {}, {"max_model_len": 16}])
        cases.append([requests, limits, rng.choice([0, 1, 2, 2, 3])])
    return cases


def run_passing(scheduler_cls: type, requests: list, config: Any, most_passed: int) -> list[dict]:
    """The run of the class with `most_passed` set; 0 is what it must have by itself, so then it is left alone."""
    slots = {"most_passed": most_passed} if most_passed else {}
    return run_scheduler(type(scheduler_cls.__name__, (scheduler_cls,), slots), requests, config)


def show_passing(name: str, arguments: tuple) -> str:
    requests, config, most_passed = arguments
    setting = f"{name}.most_passed = {most_passed}; " if most_passed else ""
    return setting + as_simulate(name, (requests, config))
