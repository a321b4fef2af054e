"""Questions about the roofline: what binds a step, and how long it takes. Knows peaks; knows no overhead. Chapter 2."""

import random

from mini_vllm.grading.quizzes.question import Option, Question, multiple_choice
from mini_vllm.roofline.bounds import RooflineTime
from mini_vllm.roofline.hardware import HardwareSpec, get_hardware

DTYPE, BYTES_PER_WEIGHT = "bfloat16", 2
FLOPS_PER_WEIGHT = 2  # for each token: a multiplication and an addition
CARDS = ("L4", "A100-80GB-SXM", "H100-SXM", "H200", "RTX-4090")
OTHER = {"memory": "compute", "compute": "memory"}


def draw(rng: random.Random) -> Question | None:
    return rng.choice([ask_place, ask_ridge, ask_step])(rng, draw_machine(rng))


def draw_machine(rng: random.Random) -> HardwareSpec:
    """A real card, or one with round numbers."""
    if rng.random() < 0.3:
        return get_hardware(rng.choice(CARDS))
    flop_per_s, bytes_per_s = rng.randint(5, 100) * 1e13, rng.randint(1, 16) * 0.25e12
    return HardwareSpec("A GPU of ours", {DTYPE: flop_per_s}, bytes_per_s, 80e9, "drawn for this question")


def in_words(machine: HardwareSpec) -> str:
    return f"{machine.name}: {_tflops(machine.peak(DTYPE))} in bf16 at most, {_tb(machine)} of memory traffic."


def step_time(machine: HardwareSpec, num_weights: float, num_tokens: int) -> RooflineTime:
    """A step that reads every weight once and computes `num_tokens` tokens with it."""
    return RooflineTime(
        compute_ms=1e3 * num_weights * FLOPS_PER_WEIGHT * num_tokens / machine.peak(DTYPE),
        memory_ms=1e3 * num_weights * BYTES_PER_WEIGHT / machine.bytes_per_s,
    )


def ask_place(rng: random.Random, machine: HardwareSpec) -> Question | None:
    intensity = rng.choice([rng.randint(1, 9), rng.randint(1, 20) * 10, rng.randint(1, 20) * 100])
    if 0.8 < intensity / machine.ridge_point(DTYPE) < 1.25:  # too near to tell
        return None
    peak, product = machine.peak(DTYPE), intensity * machine.bytes_per_s
    bound, reached, larger = ("memory" if product < peak else "compute"), min(peak, product), max(peak, product)
    compare = f"Compare {intensity:,} × the memory traffic with the peak: the smaller one is the limit."
    right = Option(
        f"{bound}-bound, {_tflops(reached)}",
        f"{intensity:,} × {_tb(machine)} = {_tflops(product)}, {'under' if product < peak else 'over'} the peak of "
        f"{_tflops(peak)}; the smaller of the two is reached, and it names the limit.",
    )
    wrong = [
        Option(f"{OTHER[bound]}-bound, {_tflops(reached)}", f"that can be reached, but what stops it there? {compare}"),
        Option(f"{bound}-bound, {_tflops(larger)}", "the limit is right, but that is the larger of the two numbers."),
        Option(f"{OTHER[bound]}-bound, {_tflops(larger)}", f"that limit is never reached. {compare}"),
        Option(f"{bound}-bound, {_tflops(reached / 2)}", "half of what it can reach: nothing is to be counted twice."),
    ]
    asks = f"A kernel does {intensity:,} FLOP for each byte that it moves. What binds it, and what can it reach?"
    return multiple_choice(rng, in_words(machine), asks, right, wrong)


def ask_ridge(rng: random.Random, machine: HardwareSpec) -> Question | None:
    batch = machine.ridge_point(DTYPE) * BYTES_PER_WEIGHT / FLOPS_PER_WEIGHT
    right = Option(
        f"about {batch:,.0f}",
        f"each weight is {BYTES_PER_WEIGHT} bytes and gives {FLOPS_PER_WEIGHT} FLOP a token, so a batch of B does B "
        f"FLOP for each byte: {_tflops(machine.peak(DTYPE))} / {_tb(machine)} = {batch:.4g}.",
    )
    wrong = [
        Option(f"about {batch * 2:,.0f}", "that counts one FLOP a weight; a multiplication and an addition are two."),
        Option(f"about {batch / 2:,.0f}", "that counts one byte a weight; bf16 has two."),
        Option(f"about {batch * 8:,.0f}", "that counts bits as bytes."),
        Option("1: decode is always compute-bound", "a batch of one reads 2 bytes for 2 FLOP, far below the ridge."),
    ]
    asks = (
        "Decode with weights in bf16; attention and activations do not count. From which batch size on is arithmetic "
        "the limit, not the reading of weights?"
    )
    return multiple_choice(rng, in_words(machine), asks, right, wrong)


def ask_step(rng: random.Random, machine: HardwareSpec) -> Question | None:
    billions = rng.randint(1, 80)
    num_tokens = rng.choice([1, 8, 32, 64, 256, 512, 2048, 4096])
    time = step_time(machine, billions * 1e9, num_tokens)
    shorter = min(time.memory_ms, time.compute_ms)
    if 0.8 < time.memory_ms / time.compute_ms < 1.25:
        return None
    right = Option(
        f"{time.bound}-bound, {_ms(time.ms)}",
        f"reading {billions * BYTES_PER_WEIGHT} GB takes {_ms(time.memory_ms)}, and {FLOPS_PER_WEIGHT} × {billions} "
        f"billion × {num_tokens:,} FLOP take {_ms(time.compute_ms)}; the longer one is the least a step can take.",
    )
    other = OTHER[time.bound]
    wrong = [
        Option(
            f"{other}-bound, {_ms(shorter)}", "that is the shorter of reading and computing; a step takes the longer."
        ),
        Option(
            f"{time.bound}-bound, {_ms(time.ms / 2)}", "half: two bytes a weight in bf16, two FLOP a weight and token."
        ),
        Option(f"{time.bound}-bound, {_ms(time.ms * 1000)}", "off by 1000: microseconds for milliseconds."),
        Option(f"{other}-bound, {_ms(time.ms)}", "the time is right; but is it that of reading or of computing?"),
    ]
    if shorter > time.ms / 8:
        total = _ms(time.memory_ms + time.compute_ms)
        wrong.append(
            Option(f"{time.bound}-bound, {total}", "that adds the two; they overlap, and the longer one counts.")
        )
    situation = f"{in_words(machine)}\nA model of {billions} billion weights in bf16. Attention does not count."
    tokens = "1 token" if num_tokens == 1 else f"{num_tokens:,} tokens"
    asks = f"A step computes {tokens}. What binds it, and what is the least time it takes?"
    return multiple_choice(rng, situation, asks, right, wrong)


def _tflops(flop_per_s: float) -> str:
    return f"{flop_per_s / 1e12:,.5g} TFLOP/s"


def _tb(machine: HardwareSpec) -> str:
    return f"{machine.bytes_per_s / 1e12:g} TB/s"


def _ms(ms: float) -> str:
    return f"{ms:,.3g} ms" if ms < 1000 else f"{ms:,.0f} ms"
