"""The two runs on the first page: real, of one workload, and what the text says of them. No model is run."""

import subprocess
import sys

from mini_vllm.trace.trace import Trace
from tests.repo.repository import ROOT
from tools.record_race import QUESTIONS, RUNS, recording

STATIC, CONTINUOUS = (Trace.load(recording(name)) for name in RUNS)


def end_s(trace, req_id: str) -> float:
    return trace.steps[trace.finish_step()[req_id]]["t_end"]


def test_the_page_is_drawn_from_the_recordings():
    done = subprocess.run([sys.executable, ROOT / "tools" / "record_race.py", "draw", "--check"], check=False)
    assert done.returncode == 0, "run tools/record_race.py draw"


def test_both_runs_are_of_the_engine_and_gave_the_same_words():
    assert STATIC.header["kind"] == CONTINUOUS.header["kind"] == "engine"
    assert list(STATIC.header["requests"]) == ["R1", "R2", "R3", "R4", "R5"] and len(QUESTIONS) == 5
    assert STATIC.outputs() == CONTINUOUS.outputs()


def test_what_the_text_says_is_true():
    """R5 waits for a story under static batching and does not under continuous; the whole run is shorter, too."""
    assert end_s(CONTINUOUS, "R5") < end_s(STATIC, "R2") < STATIC.steps[STATIC.first_token_step()["R5"]]["t_end"]
    assert CONTINUOUS.steps[-1]["t_end"] < 0.95 * STATIC.steps[-1]["t_end"]
