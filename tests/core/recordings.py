"""Where the recorded runs of vLLM lie, and which of them the clear form has all rules for. Knows no scheduler."""

from pathlib import Path

from mini_vllm.trace.replay import read_recording

FOLDER = Path(__file__).parent.parent / "data" / "vllm_traces"
RECORDINGS = sorted(FOLDER.glob("*.json"))
BEYOND_THE_CLEAR_FORM = ("async_scheduling", "num_speculative_tokens", "num_lookahead_tokens")


def config_of(path: Path) -> dict:
    return read_recording(path)["trace"]["config"]


# Synchronous and without drafts.
CLEAR_FORM = [path for path in RECORDINGS if not any(config_of(path)[name] for name in BEYOND_THE_CLEAR_FORM)]
