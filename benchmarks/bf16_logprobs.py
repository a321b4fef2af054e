"""How far is bfloat16 from float32? Log-probabilities of the same tokens, in the engine, on the real model.

    python benchmarks/bf16_logprobs.py [--tokens 48] [--json FILE]

float32 answers a few prompts. Then bfloat16 is led along the same answers, token by token, through the same engine:
prefill and decode, all prompts in one batch, and each alone (few rows take another product on a CPU). Given are the
mean and the largest |difference| of the taken token's log-probability (natural logarithm), and how often bfloat16 would
have taken the same token. No token is claimed to be equal: in a near tie the last bit decides.
About a minute on two cores. Needs the model.
"""

import argparse
import json
import os
import platform
import sys
from collections.abc import Callable, Sequence
from datetime import date
from pathlib import Path

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch
from torch import Tensor

from mini_vllm import LLM, SamplingParams

HERE = Path(__file__).resolve().parent
MODEL = "smollm2-135m"
SERVER = {"max_num_seqs": 16, "max_num_batched_tokens": 512, "num_gpu_blocks": 256, "device": "cpu"}
QUESTIONS = ("What is a queue?", "Why is the sky blue?", "Write a haiku about rain.", "What is 17 + 25?")
TEXTS = (
    "Once upon a time, in a village by the sea,",
    "def fibonacci(n):\n    ",
    "1, 2, 3, 5, 8, 13,",
    "Dear Sir or Madam,",
)
# A logit of 16 to 32, as the best ones are, is stored in steps of 1/8 in bfloat16 (8 bits). Two steps, on average over
# tokens, are more than rounding in 30 layers gives, and less than a wrong weight, mask or position does.
MOST_MEAN = 0.25


def prompts_of(llm: LLM) -> list[list[int]]:
    """Conversations and plain texts, as token ids."""
    chats = [llm.chat_template.encode([{"role": "user", "content": text}]) for text in QUESTIONS]
    return chats + [llm.tokenizer.encode(text) for text in TEXTS]


class Led:
    """In place of a model's `compute_logits`: notes log-probabilities, and leads greedy sampling along given tokens.

    answers: of each prompt the tokens to take, one a step; None takes the likeliest. Rows are prompts, in their order.
    """

    def __init__(self, compute_logits: Callable[[Tensor], Tensor], answers: Sequence[Sequence[int]] | None) -> None:
        self.compute_logits, self.answers = compute_logits, answers
        self.logprobs: list[Tensor] = []  # of each step: [prompts]
        self.likeliest: list[Tensor] = []

    def __call__(self, hidden: Tensor) -> Tensor:
        logits, step = self.compute_logits(hidden), len(self.logprobs)
        best = logits.argmax(-1)
        taken = best if self.answers is None else torch.tensor([answer[step] for answer in self.answers])
        rows = torch.arange(len(taken))
        self.logprobs.append(torch.log_softmax(logits.float(), -1)[rows, taken])
        self.likeliest.append(best)
        led = torch.zeros_like(logits)
        led[rows, taken] = 1.0
        return led


def answer(llm: LLM, prompts: list[list[int]], num_tokens: int, answers: list[list[int]] | None) -> tuple:
    """Token ids, their log-probabilities and the likeliest tokens, each [prompts, tokens]. One batch, all together."""
    model = llm.engine_core.model
    led, plain = Led(model.compute_logits, answers), model.compute_logits
    model.compute_logits = led
    try:
        outputs = llm.generate(prompts, SamplingParams(max_tokens=num_tokens, ignore_eos=True), progress=False)
    finally:
        model.compute_logits = plain
    ids = [output.token_ids for output in outputs]
    assert answers is None or ids == [list(given) for given in answers]
    return ids, torch.stack(led.logprobs, 1), torch.stack(led.likeliest, 1)


def measure(num_prompts: int = 8, num_tokens: int = 48) -> dict:
    """bfloat16 against float32, on the first prompts."""
    exact = LLM(MODEL, dtype="float32", **SERVER)
    prompts = prompts_of(exact)[:num_prompts]
    answers, expected, _ = answer(exact, prompts, num_tokens, None)
    del exact
    rounded = LLM(MODEL, dtype="bfloat16", **SERVER)
    together = answer(rounded, prompts, num_tokens, answers)
    one_by_one = [answer(rounded, [p], num_tokens, [a]) for p, a in zip(prompts, answers, strict=True)]
    alone = [torch.cat([run[i] for run in one_by_one]) for i in (1, 2)]
    result = {"prompts": len(prompts), "tokens": num_tokens, "mean_logprob_float32": float(expected.mean())}
    for name, (logprobs, likeliest) in (("together", together[1:]), ("alone", alone)):
        difference = (logprobs - expected).abs()
        result[name] = {
            "mean_abs_difference": float(difference.mean()),
            "largest_abs_difference": float(difference.max()),
            "mean_difference": float((logprobs - expected).mean()),
            "same_likeliest_token": float((likeliest == torch.tensor(answers)).double().mean()),
        }
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=48, help="of each answer")
    parser.add_argument("--json", type=Path, default=HERE / "results" / "bf16_logprobs.json")
    options = parser.parse_args()
    result = measure(num_tokens=options.tokens)
    print(f"{result['prompts']} prompts, {result['tokens']} tokens each; bfloat16 against float32")
    for name in ("together", "alone"):
        row = result[name]
        print(
            f"  {name:9} mean |Δ log p| {row['mean_abs_difference']:.4f}, largest {row['largest_abs_difference']:.3f}, "
            f"mean Δ {row['mean_difference']:+.4f}; the same likeliest token {row['same_likeliest_token']:.1%}"
        )
    is_sane = max(result[name]["mean_abs_difference"] for name in ("together", "alone")) < MOST_MEAN
    print(f"  below {MOST_MEAN}: {'yes' if is_sane else 'NO'}")
    result |= {
        "what": "log-probabilities (natural) of the same tokens in bfloat16 and float32, SmolLM2-135M on a CPU",
        "below": MOST_MEAN,
        "is_below": is_sane,
        "versions": {"python": platform.python_version(), "torch": torch.__version__},
        "date": date.today().isoformat(),
    }
    options.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(f"written: {options.json}")


if __name__ == "__main__":
    main()
