"""Layer three of exactness: bfloat16 makes no claim on tokens; how far its log-probabilities are is measured."""

import pytest

from benchmarks.bf16_logprobs import MOST_MEAN, measure


@pytest.mark.model
@pytest.mark.timeout(600)
def test_bfloat16_is_near_float32(capsys):
    """The bound and its reason stand in the script; benchmarks/results/bf16_logprobs.json holds a longer run."""
    result = measure(num_prompts=3, num_tokens=12)
    with capsys.disabled():
        print(f"\nbfloat16 against float32, 3 prompts of 12 tokens: {result['together']}, one by one {result['alone']}")
    for run in (result["together"], result["alone"]):
        assert 0 < run["mean_abs_difference"] < MOST_MEAN, "0: it was not bfloat16"
        assert run["same_likeliest_token"] > 0.8
