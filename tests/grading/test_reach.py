"""A right answer that a graded run would refuse says so in the notebook. Knows chapter 1's third exercise."""

import pytest

from mini_vllm.grading import check, progress_file
from mini_vllm.grading.reference import answer

from .conftest import define

TAKES_THE_BATCHER = """
def continuous_schedule(requests, num_slots):
    pass
    sim_requests = [SimRequest(name, 1, output_len, arrival) for name, arrival, output_len in requests]
    trace = run_batches(ContinuousBatcher, sim_requests, num_slots).trace
    return [[name for name, _ in record["scheduled"]] for record in trace.steps]
"""
IMPORT = "from mini_vllm.batching import ContinuousBatcher, SimRequest, run_batches"


def with_first_line(line: str) -> str:
    return TAKES_THE_BATCHER.replace("pass", line, 1)


def indented(source: str) -> str:
    return source.strip().replace("\n", "\n    ")


USES = {
    "global names": f"{IMPORT}\n{TAKES_THE_BATCHER}",
    "an import inside": with_first_line(IMPORT),
    "attributes of the module": "import mini_vllm.batching\n"
    + TAKES_THE_BATCHER.replace("SimRequest", "mini_vllm.batching.SimRequest")
    .replace("run_batches", "mini_vllm.batching.run_batches")
    .replace("ContinuousBatcher", "mini_vllm.batching.ContinuousBatcher"),
    "import_module": "from importlib import import_module\n"
    + with_first_line(
        'b = import_module("mini_vllm.batching"); '
        "ContinuousBatcher, SimRequest, run_batches = b.ContinuousBatcher, b.SimRequest, b.run_batches"
    ),
    "a helper": f"{IMPORT}\n{TAKES_THE_BATCHER.replace('continuous_schedule', 'helper')}"
    "def continuous_schedule(*arguments):\n    return helper(*arguments)\n",
    "a class": f"{IMPORT}\nclass Mine:\n    {indented(TAKES_THE_BATCHER)}\n"
    "def continuous_schedule(*arguments):\n    return Mine.continuous_schedule(*arguments)\n",
    "a closure": f"def outer():\n    {IMPORT}\n    {indented(TAKES_THE_BATCHER)}\n    return continuous_schedule\n"
    "continuous_schedule = outer()\n",
    "functools.partial": f"import functools\n{IMPORT}\n{TAKES_THE_BATCHER}"
    "continuous_schedule = functools.partial(continuous_schedule)\n",
}


@pytest.mark.parametrize("how", USES)
def test_the_packages_own_batchers_will_not_count(how, capsys, monkeypatch):
    monkeypatch.setattr(progress_file, "_state", {"passed": [], "predictions": {}, "quiz": {}})
    check("c01-e3", define("c01-e3", USES[how]))
    assert capsys.readouterr().out == (
        "c01-e3 ✓ 40 cases, 20 points\nthis uses mini_vllm.batching, which graded runs hide: it will not count\n"
    )
    assert not progress_file.known()["passed"]


def test_the_reference_itself_will_not_count(capsys):
    check("c01-e1", answer("c01-e1"))
    assert "this uses mini_vllm.grading.reference, which" in capsys.readouterr().out


def test_names_beside_the_answer_do_no_harm(capsys):
    """Hidden names in play cells, a docstring that names them, and an attribute of the same name."""
    source = """
import mini_vllm.batching
from mini_vllm.batching import run_batches
class Slot:
    run_batches = 0
def static_waste(output_lens, batch_size):
    'mini_vllm.batching has this too; mine is shorter.'
    batches = [output_lens[i : i + batch_size] for i in range(Slot().run_batches, len(output_lens), batch_size)]
    return 1 - sum(output_lens) / sum(batch_size * max(batch) for batch in batches)
"""
    check("c01-e1", define("c01-e1", source))
    assert capsys.readouterr().out == "c01-e1 ✓ 40 cases, 10 points\n"
