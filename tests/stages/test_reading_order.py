"""The class in one piece is a program, and decides as the class in seven files does."""

import subprocess
import sys

import pytest

from mini_vllm.config import SchedulerConfig
from mini_vllm.sim.driver import SimRequest, simulate
from mini_vllm.stages import STAGES, load_stage
from mini_vllm.stages.reading_order import flattened, home_of, methods_in_order, names_read
from mini_vllm.trace.diff import diff

REQUESTS = [SimRequest(f"R{i}", 3 + 2 * (i % 3), 4 + i, i // 2, i % 2) for i in range(6)]
CONFIG = SchedulerConfig(max_num_seqs=4, num_gpu_blocks=40, policy="priority")


@pytest.mark.parametrize("chapter", STAGES)
def test_it_runs_and_decides_the_same(chapter):
    names = {}
    exec(flattened(load_stage(chapter)), names)
    pieces = [name for name, value in names.items() if isinstance(value, type) and value.__module__ == "builtins"]
    assert pieces == ["Scheduler"]
    assert names["Scheduler"].__mro__[1:] == (object,)
    runs = [simulate(REQUESTS, CONFIG, scheduler_cls=cls) for cls in (load_stage(chapter), names["Scheduler"])]
    assert diff(*runs) is None


def test_a_method_stands_after_the_one_that_calls_it_first():
    class Tiny:
        def schedule(self):
            return self.first(self.second) + self.third()

        def third(self):
            return 3

        def second(self):
            return self.third()

        def first(self, x):
            return 1

        def nobody_calls_me(self):
            return self.first(1)

    assert [*methods_in_order(Tiny)] == ["schedule", "first", "second", "third"]


def test_what_a_later_stage_no_longer_calls_is_left_out():
    assert "tokens_to_reserve" in flattened(load_stage(5))
    assert "tokens_to_reserve" not in flattened(load_stage(6))


def test_names_read_are_those_from_outside():
    source = "def f(a, b=DEFAULT):\n    import os\n    c = [d for d in a]\n    return OTHER.x(c, os, len(b), f)\n"
    assert names_read(source) == ["DEFAULT", "OTHER"]


def test_home_of_a_name_is_where_it_can_be_imported_from():
    from mini_vllm.request import RUNNING

    assert home_of("RUNNING", RUNNING) == "mini_vllm.request"
    assert home_of("SchedulerConfig", SchedulerConfig) == "mini_vllm.config"
    assert home_of("Other", SchedulerConfig) is None
    assert home_of("x", 5) is None


def test_the_command_prints_the_whole_class():
    run = subprocess.run(
        [sys.executable, "-m", "mini_vllm.stages", "4"], capture_output=True, text=True, check=False, timeout=60
    )
    assert (run.returncode, run.stdout) == (0, flattened(load_stage(4)))
    run = subprocess.run(
        [sys.executable, "-m", "mini_vllm.stages", "3"], capture_output=True, text=True, check=False, timeout=60
    )
    assert run.returncode == 2 and "invalid choice: 3" in run.stderr
