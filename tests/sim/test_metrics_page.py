"""The page on metrics against the code: every field is explained, and its worked example is true."""

import re
from dataclasses import fields
from pathlib import Path

from mini_vllm.config import SchedulerConfig
from mini_vllm.sim.clock import FixedClock
from mini_vllm.sim.metrics import Metrics, e2e_ms, normalized_ms, queue_ms, summarize, tpot_ms, ttft_ms
from mini_vllm.sim.request_log import RequestRow
from mini_vllm.sim.simulator import Simulator
from mini_vllm.sim.workloads import Arrival

PAGE = (Path(__file__).resolve().parents[2] / "book" / "metrics.md").read_text(encoding="utf-8")


def test_every_field_is_explained():
    words = set(re.findall(r"`([a-z0-9_]+)`", PAGE))
    assert {field.name for field in fields(Metrics)} <= words
    assert set(RequestRow._fields) <= words


def test_the_symbols_come_before_the_metrics():
    assert PAGE.index("## Symbols") < PAGE.index("## Of one request") < PAGE.index("## Of a run")


def test_the_worked_example_is_what_the_simulator_says():
    (said,) = re.findall(r"arrives at 0\.2 s .*?(?=\n\n)", PAGE, re.DOTALL)
    said = " ".join(said.split())
    config = SchedulerConfig(max_num_seqs=8, max_num_batched_tokens=64, num_gpu_blocks=64, block_size=4)
    result = Simulator(config, FixedClock(1.0)).run([Arrival(0.2, 5, 3)], token_times=True)
    row = result.log[0]
    s, times = row.scheduled_s, result.token_times[0]
    assert f"$s = {s:g}$, $t_1 = {times[0]:g}$, $t_2 = {times[1]:g}$, $t_3 = {times[2]:g}$" in said
    assert f"queueing time {queue_ms(row) / 1e3:g} s, TTFT {ttft_ms(row) / 1e3:g} s" in said
    assert f"TPOT {tpot_ms(row) / 1e3:g} s, E2E {e2e_ms(row) / 1e3:g} s" in said
    assert f"normalised {normalized_ms(row) / 1e3:.2f} s a token" in said
    assert summarize(result).itl_ms.p50 == 1000 and "ITL 1 s and 1 s" in said
