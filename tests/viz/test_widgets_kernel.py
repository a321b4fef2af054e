"""The explorer in real kernels: what a notebook stores, what nbval says, what a browser hears. Knows the messages."""

import json
import queue
import subprocess
import sys
import time
from pathlib import Path

import pytest

from mini_vllm.config import SchedulerConfig
from mini_vllm.sim.driver import SimRequest, simulate

pytest.importorskip("ipywidgets", reason="ipywidgets is not installed")
ROOT = Path(__file__).resolve().parents[2]
REQUESTS = [SimRequest(f"R{i}", 12 + 5 * i, 10 + i, arrival_step=i) for i in range(6)]
CONFIG = SchedulerConfig(max_num_seqs=4, max_num_batched_tokens=16, num_gpu_blocks=24)
CELL = f"""
import sys
sys.path.insert(0, {str(ROOT)!r})
from mini_vllm.config import SchedulerConfig
from mini_vllm.sim.driver import SimRequest
from mini_vllm.viz.plots import gantt
from mini_vllm.viz.widgets import Explorer

Explorer(
    {REQUESTS!r},
    {CONFIG!r},
    controls={{"num_gpu_blocks": range(13, 45)}},
    show=lambda run: gantt(run, alt=f"Six requests, served in {{len(run.steps)}} steps"),
)
"""


def test_execute_stores_the_twin_and_no_widget_and_nbval_agrees(tmp_path):
    pytest.importorskip("nbval", reason="nbval is not installed")
    path = tmp_path / "explorer.ipynb"
    cell = {"cell_type": "code", "source": CELL.strip(), "metadata": {}, "outputs": [], "execution_count": None}
    path.write_text(json.dumps({"cells": [cell], "metadata": {}, "nbformat": 4, "nbformat_minor": 4}))
    execute = [sys.executable, str(ROOT / "tools" / "execute.py"), str(path)]
    done = subprocess.run(execute, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
    stored = json.loads(path.read_text())
    assert set(stored["metadata"]) == {"kernelspec", "language_info", "every_step"}, "no state of widgets"
    first, table = stored["cells"][0]["outputs"]
    assert set(first["data"]) == {"image/png", "text/plain"} and first["metadata"]["image/png"]["alt"]
    assert "<table" in "".join(table["data"]["text/html"])
    check = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "--nbval",
        "--nbval-current-env",
        "-p",
        "no:cacheprovider",
        str(path),
    ]
    done = subprocess.run(check, cwd=tmp_path, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stdout


class LiveKernel:
    """A kernel with the explorer shown in it, and what a frontend would hear from it."""

    def __init__(self):
        from jupyter_client.manager import start_new_kernel

        self.manager, self.client = start_new_kernel(kernel_name="python3", startup_timeout=60)
        self.opened, self.values, self.errors = {}, [], []
        self.listen(cell=self.client.execute(CELL))

    def pictures(self) -> list[str]:
        """Every picture that the kernel has sent since it was shown."""
        return [state["value"] for _, state in self.values if "<img" in str(state.get("value"))]

    def listen(self, cell=""):
        """Take messages until that cell is done; without one, until a picture came and nothing more follows."""
        while True:
            try:
                message = self.client.get_iopub_msg(timeout=3 if self.pictures() else 120)
            except queue.Empty:
                assert not cell and self.pictures(), "the kernel says nothing"
                return
            kind, content = message["msg_type"], message["content"]
            if kind == "comm_open":
                self.opened[content["comm_id"]] = content["data"]["state"]
            elif kind == "comm_msg" and content["data"].get("method") == "update":
                self.values.append((content["comm_id"], content["data"]["state"]))
            elif kind in ("error", "stream"):
                self.errors.append(content)
            elif kind == "status" and content["execution_state"] == "idle":
                if cell and message["parent_header"].get("msg_id") == cell:
                    return

    def comm(self, model: str) -> str:
        return next(comm for comm, state in self.opened.items() if state.get("_model_name") == model)

    def move(self, comm: str, state: dict) -> None:
        """What a browser sends when the reader moves a control."""
        content = {"comm_id": comm, "data": {"method": "update", "state": state, "buffer_paths": []}}
        self.client.shell_channel.send(self.client.session.msg("comm_msg", content))

    def close(self):
        self.client.stop_channels()
        self.manager.shutdown_kernel(now=True)


@pytest.fixture
def live_kernel():
    kernel = LiveKernel()
    yield kernel
    kernel.close()


def test_in_a_real_kernel_the_picture_follows_the_slider_and_a_drag_is_not_thirty_runs(live_kernel):
    slider = live_kernel.comm("SelectionSliderModel")
    assert live_kernel.opened[slider]["_options_labels"][:2] == ["13", "14"] and not live_kernel.errors
    for place in range(1, 31):
        live_kernel.move(slider, {"index": place})
        time.sleep(0.005)
    live_kernel.listen()
    texts = [state["value"] for _, state in live_kernel.values if "value" in state]
    pictures = live_kernel.pictures()
    assert len(pictures) <= 4, "30 positions of the slider are one picture; a few where the machine is busy"
    blocks = 13 + 30
    run = simulate(REQUESTS, SchedulerConfig(max_num_seqs=4, max_num_batched_tokens=16, num_gpu_blocks=blocks))
    assert f"served in {len(run.steps)} steps" in pictures[-1]
    assert any(f"<b>{len(run.steps)}</b>" in text for text in texts) and not live_kernel.errors
    first = next(state for state in live_kernel.opened.values() if "<img" in str(state.get("value")))
    assert first["value"] != pictures[-1]
