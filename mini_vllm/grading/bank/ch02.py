"""The exercises of chapter 2: cases, comparers, hints. Knows what is asked, not what is right. Chapter 2."""

import random

from mini_vllm.grading.exercise import NUM_CASES, Case, Exercise
from mini_vllm.grading.quantities import numeric

# Whatever could answer an exercise by itself: the chapter's counts and clocks, and all that is built on them.
HIDDEN = ["mini_vllm.roofline", "mini_vllm.sim", "mini_vllm.models", "mini_vllm.engine", "mini_vllm.os_sched"]


def nine_digits(case: Case, value: float) -> float:
    """What two ways of adding up the same floats agree on."""
    return float(f"{value:.9g}")


# --- e1: decode_intensity(config, context, batch) -------------------------------------------------------------

TOY = {"layers": 2, "hidden": 8, "heads": 4, "kv_heads": 2, "head_dim": 2, "ffn": 16, "vocab": 20}
NOTHING_SHARED = {"layers": 1, "hidden": 4, "heads": 2, "kv_heads": 2, "head_dim": 2, "ffn": 8, "vocab": 10}
LLAMA = {"layers": 32, "hidden": 4096, "heads": 32, "kv_heads": 8, "head_dim": 128, "ffn": 14_336, "vocab": 128_256}


def draw_config(rng: random.Random) -> dict[str, int]:
    """A model of any size; heads × head_dim need not be its hidden size."""
    kv_heads = rng.choice([1, 2, 4, 8])
    return {
        "layers": rng.randint(1, 48),
        "hidden": 64 * rng.randint(2, 64),
        "heads": kv_heads * rng.choice([1, 2, 3, 4, 8]),
        "kv_heads": kv_heads,
        "head_dim": rng.choice([64, 96, 128]),
        "ffn": 64 * rng.randint(4, 200),
        "vocab": rng.randint(1000, 200_000),
    }


def draw_intensity_cases(rng: random.Random) -> list[Case]:
    cases: list[Case] = [[NOTHING_SHARED, 1, 1], [TOY, 10, 1], [TOY, 10, 4], [NOTHING_SHARED, 30, 2]]
    cases += [[LLAMA, 1024, 1], [LLAMA, 131_072, 1], [LLAMA, 1024, 64]]
    while len(cases) < NUM_CASES:
        cases.append([draw_config(rng), rng.choice([1, 7, 64, 1000, 4096, 30_000]), rng.choice([1, 1, 2, 8, 50, 256])])
    return cases


DECODE_INTENSITY = Exercise(
    exercise_id="c02-e1",
    title="FLOP per byte of a decode step",
    kind="code",
    function="decode_intensity",
    stars=1,
    points=10,
    minutes=10,
    needs="the section “The idea: two prices”",
    hints=(
        "Two sums, divided once at the end. Which of the bytes does the batch share, and which does each request read "
        "for itself?",
        "The weights of all matrices, head included, cost 2 FLOP a token and 2 bytes a step. A token of context costs "
        "each request the FLOP of all query heads, and the bytes of the KV heads only.",
        "weights = layers * (Q, K, V, output, gate, up, down of one layer) + hidden * vocab\n"
        "flop  = batch * (2 * weights + context * FLOP of looking at one token)\n"
        "bytes = 2 * weights + batch * context * bytes of one token's KV\n"
        "the answer is flop / bytes",
    ),
    draw_cases=draw_intensity_cases,
    compare=numeric("FLOP/byte"),
    essence=nine_digits,
)


# --- e2: largest_batch(limit_ms, context, costs, machine) -----------------------------------------------------

TOY_COSTS = {
    "layer_bytes": 2304,
    "head_bytes": 320,
    "kv_bytes": 32,
    "layer_flop": 2304,
    "head_flop": 320,
    "pair_flop": 64,
}
SLOW = {"flop_per_s": 20_000_000, "bytes_per_s": 1_000_000}


def draw_costs(rng: random.Random) -> dict[str, int]:
    """Unit costs of a model, all even, as the chapter counts them with 2 bytes a number and 2 FLOP a weight."""
    layer, head = 1000 * rng.randint(20, 400), 1000 * rng.randint(2, 60)
    kv = 2 * rng.randint(8, 200)
    names = ("layer_bytes", "head_bytes", "kv_bytes", "layer_flop", "head_flop", "pair_flop")
    return dict(zip(names, (layer, head, kv, layer, head, kv * rng.choice([1, 2, 4, 8])), strict=True))


def draw_batch_cases(rng: random.Random) -> list[Case]:
    """Machines on which memory, arithmetic or the room for KV is the first to end.

    Limits and rates (in thousands) are odd and costs are even, so that no batch takes exactly the limit: there
    rounding would decide.
    """
    cases: list[Case] = [
        [5, 10, TOY_COSTS, SLOW | {"kv_tokens": 200}],
        [5, 10, TOY_COSTS, SLOW | {"kv_tokens": 60}],
        [5, 10, TOY_COSTS, SLOW | {"kv_tokens": 9}],
        [1, 10, TOY_COSTS, SLOW | {"kv_tokens": 200}],
        [5, 10, TOY_COSTS, SLOW | {"flop_per_s": 4_000_000, "kv_tokens": 200}],
        # The arithmetic of one request, or its KV, takes too long already: the answer is 0.
        [5, 10, TOY_COSTS, SLOW | {"flop_per_s": 500_000, "kv_tokens": 200}],
        [5, 200, TOY_COSTS, SLOW | {"kv_tokens": 200}],
    ]
    while len(cases) < NUM_CASES:
        costs, context, limit_ms = draw_costs(rng), rng.choice([1, 16, 100, 500, 2000]), 2 * rng.randint(1, 50) + 1
        # About how many requests memory, arithmetic and room allow; one of the three is the fewest.
        ends = [rng.choice([40, 70, 150])] * 3
        ends[rng.randrange(3)] = rng.randint(0, 39)
        weights, kv = costs["layer_bytes"] + costs["head_bytes"], context * costs["kv_bytes"]
        memory = (weights + (ends[0] + 0.5) * kv) / limit_ms
        arithmetic = (ends[1] + 0.5) * (weights + context * costs["pair_flop"]) / limit_ms
        machine = {"flop_per_s": 1000 * _odd(arithmetic), "bytes_per_s": 1000 * _odd(memory)}
        room = ends[2] * context + rng.randrange(context)
        cases.append([limit_ms, context, costs, machine | {"kv_tokens": room}])
    return cases


def _odd(number: float) -> int:
    return 2 * int(number / 2) + 1


LARGEST_BATCH = Exercise(
    exercise_id="c02-e2",
    title="The largest batch within a time",
    kind="code",
    function="largest_batch",
    stars=2,
    points=15,
    minutes=15,
    needs="c02-e1",
    hints=(
        "One more request: what does it add to the bytes, to the FLOP, and to the tokens that must fit? It may come "
        "if none of the three goes over its limit.",
        "A loop that lets one more in while all hold: its KV fits, the bytes of the step take at most limit_ms, the "
        "FLOP of the step take at most limit_ms. Rates are per second, the limit is in milliseconds.",
        "batch = 0\n"
        "while all this holds for n = batch + 1 requests:\n"
        "        n * context <= kv_tokens\n"
        "        1000 * (all weights + n * context * kv_bytes) / bytes_per_s <= limit_ms\n"
        "        1000 * n * (FLOP of one request) / flop_per_s <= limit_ms\n"
        "    batch += 1",
    ),
    draw_cases=draw_batch_cases,
    compare=numeric("requests"),
)


# --- e3: step_ms(parts, costs, machine) -----------------------------------------------------------------------

BALANCED = {"flop_per_s": 4_000_000, "bytes_per_s": 1_000_000, "fixed_ms": 1.0}


def draw_part(rng: random.Random, kinds: tuple[str, ...]) -> list:
    """A decode, a whole prompt, a first or middle chunk of one (samples nothing), or its last."""
    kind, computed = rng.choice(kinds), rng.choice([1, 15, 100, 900])
    if kind == "decode":
        return [1, computed, True]
    return [rng.randint(2, 64), 0 if kind == "prompt" else computed, kind != "chunk"]


def draw_step_cases(rng: random.Random) -> list[Case]:
    cases: list[Case] = [
        [[], TOY_COSTS, BALANCED],
        [[[1, 0, True]], TOY_COSTS, BALANCED],
        [[[3, 0, False]], TOY_COSTS, BALANCED],
        [[[3, 0, False], [1, 4, True]], TOY_COSTS, BALANCED],
        [[[2, 5, True], [1, 1, True]], TOY_COSTS, BALANCED],
    ]
    while len(cases) < NUM_CASES:
        kinds = rng.choice([("chunk",), ("decode", "decode", "prompt", "chunk", "last chunk"), ("decode", "chunk")])
        parts = [draw_part(rng, kinds) for _ in range(rng.randint(1, 6))]
        bytes_per_s = 1000 * rng.randint(5000, 50_000)
        rates = {"flop_per_s": bytes_per_s * rng.choice([1, 5, 30, 100]), "bytes_per_s": bytes_per_s}
        cases.append([parts, draw_costs(rng), rates | {"fixed_ms": rng.choice([0.5, 1.0, 3.0])}])
    return cases


STEP_MS = Exercise(
    exercise_id="c02-e3",
    title="Step time of a mixed batch",
    kind="code",
    function="step_ms",
    stars=3,
    points=20,
    minutes=25,
    needs="c02-e2",
    hints=(
        "First count, then clock. Five counts describe the whole step: new tokens, pairs, tokens of KV traffic, rows "
        "that sample, and whether there is anything at all.",
        "Of a part with n new and c computed tokens, new token number i (from 0) looks at c + i + 1 tokens: together "
        "n * c + n * (n + 1) / 2 pairs, and c + n tokens of KV. Three hypots over the whole step: matrices, "
        "attention, head; the head only if somebody samples.",
        "if there are no parts: the answer is fixed_ms\n"
        "new, pairs, kv, rows = sums over the parts\n"
        "seconds  = hypot(new * layer_flop / flop_per_s, layer_bytes / bytes_per_s)\n"
        "seconds += hypot(pairs * pair_flop / flop_per_s, kv * kv_bytes / bytes_per_s)\n"
        "if rows: seconds += hypot(rows * head_flop / flop_per_s, head_bytes / bytes_per_s)\n"
        "the answer is fixed_ms + 1000 * seconds",
    ),
    draw_cases=draw_step_cases,
    compare=numeric("ms"),
    essence=nine_digits,
    prepare=lambda case: ([tuple(part) for part in case[0]], case[1], case[2]),
)


# --- b1: kv_capacity(config, memory_bytes, utilization) -------------------------------------------------------


def draw_capacity_cases(rng: random.Random) -> list[Case]:
    """Cards of any size on which the weights fit, for models with and without shared heads and a tied head."""
    cases: list[Case] = [
        [NOTHING_SHARED | {"tied": False}, 10_000, 0.5],
        [TOY | {"tied": False}, 10_000, 0.5],
        [NOTHING_SHARED | {"tied": True}, 10_000, 0.5],
        [TOY | {"tied": True}, 10_000, 0.9],
        [LLAMA | {"tied": False}, 80_000_000_000, 0.92],
    ]
    while len(cases) < NUM_CASES:
        config = draw_config(rng) | {"tied": rng.random() < 0.5}
        width = config["heads"] * config["head_dim"] * 4 + 3 * config["ffn"] + 2
        at_most = 2 * config["hidden"] * (config["layers"] * width + 2 * config["vocab"] + 1)
        utilization = rng.choice([0.5, 0.85, 0.9, 0.92])
        cases.append([config, int(at_most * rng.uniform(1.1, 3) / utilization) + 10_000_000, utilization])
    return cases


KV_CAPACITY = Exercise(
    exercise_id="c02-b1",
    title="Bug hunt: the capacity plan that was four times too small",
    kind="bug hunt",
    function="kv_capacity",
    stars=2,
    points=15,
    minutes=15,
    needs="c02-e1",
    hints=(
        "Llama-2-7B is planned right, Llama-3.1-8B is not. In which line of its configuration do they differ that "
        "the plan should have looked at and did not?",
        "Two things are wrong. One is a factor: it shows in the bytes of one token. The other is a fixed amount: the "
        "smaller the card, the more it hurts, and only with the models whose head is tied.",
        "the KV of a token has keys and values of kv_heads heads, not of heads\n"
        "a tied head is the embedding table itself: one table of vocab × hidden, else two",
    ),
    draw_cases=draw_capacity_cases,
    compare=numeric("tokens"),
)

EXERCISES = (DECODE_INTENSITY, LARGEST_BATCH, STEP_MS, KV_CAPACITY)
