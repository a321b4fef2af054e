"""What the engine takes of memory beside weights and KV pool, in a process of its own. Knows the real model."""

from pathlib import Path

import pytest

from benchmarks.peak_memory import in_a_fresh_process


@pytest.mark.model
@pytest.mark.timeout(600)
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads /proc/self/status, which only Linux has")
def test_peak_memory_is_within_weights_pool_and_300_mb():
    run = in_a_fresh_process("--requests", "6")
    assert run["within"], run
    assert run["peak_mb"] > run["weights_mb"] + run["kv_written_mb"] > run["weights_mb"] + 10, "it did hold them"
    assert run["of_files_after_loading_mb"] < 150, "the weights' file is still mapped beside the packed weights"
