"""Part b: the engine with the triton backend against the torch backend, on random weights in real shapes. Chapter 13.

All kernels of ours against none: attention, and the fused small operations.
1. Logits of the same tokens, step by step: ragged prefill, a chunk among decodes, decodes, drafts.
   float32: they agree to rounding. In 16 bit two right answers differ by rounding in every layer, so both are held
   against torch in float32 on the same weights: ours may be no farther off than torch's own.
2. Greedy tokens of whole runs in float32, with CUDA graphs and without. Where they part, the two best logits must be so
   close that rounding decides.
"""

from dataclasses import dataclass
from itertools import accumulate

import torch

from benchmarks.gpu_parts.bench import Bench, OutOfTimeError
from benchmarks.gpu_parts.engine import Workload, attention_of, build_engine, num_replays, serve
from benchmarks.gpu_parts.models import LLAMA, QWEN, build_model, config_of, does_not_fit, random_weights
from mini_vllm import SchedulerConfig
from mini_vllm.engine.attention.backend import AttentionMetadata
from mini_vllm.models.llama import LlamaForCausalLM
from mini_vllm.models.ops import TorchOps, TritonOps

BLOCK = 16
FP32_ERROR = 1e-4  # largest accepted share of the largest logit of a row
FARTHER = 1.5  # times as far from float32 as torch's own 16-bit answer
TIE = 1e-3  # two logits closer than this share of the largest: rounding decides
CASES = ((QWEN, None), (LLAMA, 4))


def run(bench: Bench) -> None:
    for name, layers in CASES[: bench.size(2, 2, 1)]:
        config = config_of(bench, name, layers)
        if why := does_not_fit(bench, config, torch.float32, spare=6e9):
            bench.report.skip(f"parity, {name}", why)
            continue
        try:
            bench.need(8, f"parity, {name}")
            compare_logits(bench, name, config)
            bench.need(8, f"greedy tokens, {name}")
            compare_tokens(bench, name, config)
        except OutOfTimeError:
            continue


@dataclass
class Steps:
    """Tokens of some requests, cut into steps: `new[s][r]` of request r in step s."""

    tokens: list[list[int]]
    new: list[list[int]]


def steps_of(bench: Bench, vocab: int) -> Steps:
    generator = torch.Generator().manual_seed(bench.seed)
    new = bench.size(
        [[5, 64, 200, 33, 1], [1, 1, 100, 1, 1], [1] * 5, [1, 4, 1, 8, 1], [1] * 5],
        [[5, 64, 200, 33, 1], [1, 1, 100, 1, 1], [1] * 5],
        [[2, 9], [1, 3]],
    )
    lengths = [sum(step[r] for step in new) for r in range(len(new[0]))]
    return Steps([torch.randint(0, vocab, (n,), generator=generator).tolist() for n in lengths], new)


@torch.inference_mode()
def logits_of(bench: Bench, model: LlamaForCausalLM, backend: str, steps: Steps) -> torch.Tensor:
    """[all tokens, vocab] float32: the logits after each token, in the order of the steps."""
    model.use_ops(TritonOps() if backend == "triton" else TorchOps())
    attention, config = attention_of(bench, model, backend), model.config
    width = max(-(-len(tokens) // BLOCK) for tokens in steps.tokens)
    count = len(steps.tokens)
    # Block b of request r is 1 + b * count + r: no two neighbours in the cache belong to one request.
    table = torch.tensor([[1 + b * count + r for b in range(width)] for r in range(count)], dtype=torch.int32)
    shape = (2, 1 + width * count, BLOCK, config.num_key_value_heads, config.head_dim)
    caches = [torch.zeros(shape, dtype=model.dtype, device=bench.device) for _ in range(config.num_hidden_layers)]
    done, rows = [0] * count, []
    for new in steps.new:
        spans = [range(old, old + n) for old, n in zip(done, new, strict=True)]
        slots = [int(table[r, p // BLOCK]) * BLOCK + p % BLOCK for r, span in enumerate(spans) for p in span]
        done = [span.stop for span in spans]
        meta = AttentionMetadata(
            query_start_loc=torch.tensor([0, *accumulate(new)], dtype=torch.int32, device=bench.device),
            seq_lens=torch.tensor(done, dtype=torch.int32, device=bench.device),
            block_table=table.to(bench.device),
            slot_mapping=torch.tensor(slots, device=bench.device),
            max_query_len=max(new),
            max_seq_len=max(done),
        )
        ids = [steps.tokens[r][p] for r, span in enumerate(spans) for p in span]
        positions = torch.tensor([p for span in spans for p in span], device=bench.device)
        hidden = model(torch.tensor(ids, device=bench.device), positions, caches, attention, meta)
        rows.append(model.compute_logits(hidden).float())
    return torch.cat(rows)


def error_of(logits: torch.Tensor, right: torch.Tensor) -> float:
    """Largest difference of a row as a share of its largest logit; inf if a number is missing."""
    difference = (logits - right).abs().amax(-1) / right.abs().amax(-1)
    return float(difference.nan_to_num(nan=float("inf")).max())


def compare_logits(bench: Bench, name: str, config) -> None:
    steps = steps_of(bench, config.vocab_size)
    weights = random_weights(bench, config, bench.dtype)
    exact = build_model(config, {key: tensor.float() for key, tensor in weights.items()})
    right = logits_of(bench, exact, "torch", steps)
    error = error_of(logits_of(bench, exact, "triton", steps), right)
    del exact
    row = {"model": f"{name}, {config.num_hidden_layers} layers", "dtype": "float32", "triton off by": error}
    bench.report.row("logits", row | {"torch off by": 0.0})
    bench.report.must(f"{name}, float32: logits as torch's", error <= FP32_ERROR, f"off by {error:.1e}")
    if bench.dtype is torch.float32:
        return
    rounded = build_model(config, weights)
    ours, theirs = (error_of(logits_of(bench, rounded, backend, steps), right) for backend in ("triton", "torch"))
    bench.report.row("logits", row | {"dtype": bench.dtype_name, "triton off by": ours, "torch off by": theirs})
    bench.report.must(
        f"{name}, {bench.dtype_name}: no farther from float32 than {FARTHER} × torch's",
        ours <= FARTHER * theirs,
        f"{ours:.1e} against {theirs:.1e}",
    )


def compare_tokens(bench: Bench, name: str, config) -> None:
    model = build_model(config, random_weights(bench, config, torch.float32))
    generator = torch.Generator().manual_seed(bench.seed + 1)
    lengths, count = bench.size(([3, 40, 150, 17, 90, 300, 1, 64], 48), ([3, 40, 150, 17], 24), ([1, 9], 2))
    workload: Workload = [
        (torch.randint(0, config.vocab_size, (n,), generator=generator).tolist(), count) for n in lengths
    ]
    limits = SchedulerConfig(
        max_num_seqs=len(lengths), max_num_batched_tokens=128, max_model_len=512, num_gpu_blocks=256, block_size=BLOCK
    )  # fmt: skip
    answers = {}
    for label, backend, graphs, overlap in (
        ("torch", "torch", False, False),
        ("triton", "triton", False, False),
        ("triton, CUDA graphs", "triton", True, False),
        ("triton, CUDA graphs, overlapped", "triton", True, True),
    ):
        model.use_ops(TritonOps() if backend == "triton" else TorchOps())
        core = build_engine(bench, model, limits, backend, graphs=graphs, overlap=overlap)
        served = serve(bench, core, workload, label)
        if not served.is_complete:
            bench.report.skip(f"greedy tokens, {name}, {label}", "out of time")
            break
        answers[label] = served.tokens
        core.loop.close()
        if graphs and not bench.smoke:
            bench.report.must(f"{name}: decodes of {label} were replayed", num_replays(core) > 0)
    for label, tokens in list(answers.items())[1:]:
        same = sum(mine == right for mine, right in zip(tokens, answers["torch"], strict=True))
        apart = [
            tie(bench, model, prompt, mine, right)
            for (prompt, _), mine, right in zip(workload, tokens, answers["torch"], strict=True)
            if mine != right
        ]
        note = f"{same} of {len(tokens)} answers identical; closeness where they part: {apart or '-'}"
        bench.report.must(f"{name}, float32: greedy tokens of {label}", all(gap < TIE for gap in apart), note)


def tie(bench: Bench, model: LlamaForCausalLM, prompt: list[int], mine: list[int], right: list[int]) -> float:
    """How far apart, as a share of the largest, torch's logits of the two first different tokens are."""
    first = next(i for i, (a, b) in enumerate(zip(mine, right, strict=True)) if a != b)
    known = prompt + right[:first]
    logits = logits_of(bench, model, "torch", Steps([known], [[len(known)]]))[-1]
    return float((logits[right[first]] - logits[mine[first]]).abs() / logits.abs().max())
