"""Right answers and known mistakes of chapter 2. Never importable in a graded kernel. Chapter 2."""

from mini_vllm.grading.reference.ch02_intensity import INTENSITY_MISTAKES
from mini_vllm.grading.reference.ch02_variants import batch_with, capacity_with, pooled_pairs, step_with
from mini_vllm.models.config import ModelConfig
from mini_vllm.roofline import HardwareSpec, ModelCosts, StepWork, kv_capacity_tokens


def model_costs(config: dict) -> ModelCosts:
    """The chapter's own counts of a model that is given as a dict. Rotation and context length change no cost."""
    return ModelCosts(
        ModelConfig(
            vocab_size=config["vocab"],
            hidden_size=config["hidden"],
            intermediate_size=config["ffn"],
            num_hidden_layers=config["layers"],
            num_attention_heads=config["heads"],
            num_key_value_heads=config["kv_heads"],
            head_dim=config["head_dim"],
            rope_theta=1e4,
            rms_norm_eps=1e-5,
            max_position_embeddings=2**20,
            tie_word_embeddings=config.get("tied", False),
        )
    )


# --- e1 -------------------------------------------------------------------------------------------------------


def decode_intensity(config: dict, context: int, batch: int) -> float:
    return model_costs(config).step(StepWork.decode(batch, context)).intensity


# --- e2 -------------------------------------------------------------------------------------------------------


def largest_batch(limit_ms: float, context: int, costs: dict, machine: dict) -> int:
    return batch_with(limit_ms, context, costs, machine)


# --- e3 -------------------------------------------------------------------------------------------------------


def step_ms(parts: list[tuple], costs: dict, machine: dict) -> float:
    return step_with(parts, costs, machine)


# --- b1 -------------------------------------------------------------------------------------------------------


def kv_capacity(config: dict, memory_bytes: int, utilization: float) -> int:
    card = HardwareSpec("a card", {"bfloat16": 1.0}, 1.0, memory_bytes, "the exercise")
    return kv_capacity_tokens(model_costs(config), card, utilization)


def capacity_as_given(config: dict, memory_bytes: int, utilization: float) -> int:
    return capacity_with(config, memory_bytes, utilization, kv_heads="heads", tables=lambda tied: 2)


ANSWERS = {
    "c02-e1": decode_intensity,
    "c02-e2": largest_batch,
    "c02-e3": step_ms,
    "c02-b1": kv_capacity,
}

MISTAKES = {
    "c02-e1": INTENSITY_MISTAKES,
    "c02-e2": [
        (
            "Memory and arithmetic are right, but nobody looks whether the KV fits: `batch` times `context` tokens "
            "must fit into machine['kv_tokens'].",
            lambda ms, t, c, m: batch_with(ms, t, c, m, room=False),
        ),
        (
            "Only the bytes are clocked. Arithmetic may take longer: the step is done when the slower one is done.",
            lambda ms, t, c, m: batch_with(ms, t, c, m, arithmetic=False),
        ),
        (
            "Only the FLOP are clocked. A decode step mostly waits for memory: clock its bytes, too.",
            lambda ms, t, c, m: batch_with(ms, t, c, m, memory=False),
        ),
        (
            "The limit is compared with seconds. It is in milliseconds, and both rates are per second.",
            lambda ms, t, c, m: largest_batch(1000 * ms, t, c, m),
        ),
        (
            "The bytes of KV are missing: the step reads the weights once, and `context` tokens of KV for each "
            "request.",
            lambda ms, t, c, m: batch_with(ms, t, c, m, kv=0),
        ),
        (
            "The batch is forgotten in the step's time: each request adds its own FLOP, and its KV to the bytes.",
            lambda ms, t, c, m: batch_with(ms, t, c, m, kv_each=False, flop_each=False),
        ),
        (
            "The FLOP are those of one request. Each request of the batch computes a token of its own.",
            lambda ms, t, c, m: batch_with(ms, t, c, m, flop_each=False),
        ),
        (
            "The bytes hold the KV of one request. Nobody shares it: `batch` times `context` tokens are read.",
            lambda ms, t, c, m: batch_with(ms, t, c, m, kv_each=False),
        ),
        (
            "The room is compared with the KV of one request. That of all must fit: `batch` times `context` tokens.",
            lambda ms, t, c, m: batch_with(ms, t, c, m, room_each=False),
        ),
        (
            "The weights are read once for every request there. A step reads them once, however many requests it has.",
            lambda ms, t, c, m: batch_with(ms, t, c, m, weights_each=True),
        ),
        (
            "One too many: that is the first batch which is over a limit, not the last one within all.",
            lambda ms, t, c, m: largest_batch(ms, t, c, m) + 1,
        ),
        (
            "One too few wherever there is room for one at all.",
            lambda ms, t, c, m: max(0, largest_batch(ms, t, c, m) - 1),
        ),
        (
            "Memory and arithmetic are added. In a plain roofline they overlap: the longer one counts.",
            lambda ms, t, c, m: batch_with(ms, t, c, m, side_by_side=False),
        ),
        (
            "The FLOP of attention are missing: each request looks at `context` tokens, pair_flop each.",
            lambda ms, t, c, m: batch_with(ms, t, c, m, attention=False),
        ),
        (
            "At least 1 everywhere: where not even one request is within all limits, the answer is 0.",
            lambda ms, t, c, m: max(1, largest_batch(ms, t, c, m)),
        ),
    ],
    "c02-e3": [
        (
            "That is the plain roofline, max(arithmetic, memory). Here neither hides all of the other: hypot of the "
            "two.",
            lambda p, c, m: step_with(p, c, m, longer=max),
        ),
        (
            "Arithmetic and memory are added, as if nothing overlapped: hypot of the two.",
            lambda p, c, m: step_with(p, c, m, longer=lambda flop, read: flop + read),
        ),
        (
            "That is one hypot over all FLOP and all bytes. Matrices, attention and head come one after another: a "
            "hypot for each, then add.",
            lambda p, c, m: step_with(p, c, m, one_hypot=True),
        ),
        (
            "The pairs are new × computed: the new tokens of a part look at each other as well, and at themselves.",
            lambda p, c, m: step_with(p, c, m, pairs=lambda n, done: n * done),
        ),
        (
            "The pairs are new × (computed + new), as if the first new token saw those after it. Token i of the new "
            "ones looks at computed + i + 1.",
            lambda p, c, m: step_with(p, c, m, pairs=lambda n, done: n * (done + n)),
        ),
        (
            "A new token looks at itself, too: n · c + n(n + 1)/2 pairs, not n(n − 1)/2.",
            lambda p, c, m: step_with(p, c, m, pairs=lambda n, done: n * done + n * (n - 1) / 2),
        ),
        (
            "The head is computed for every new token there. Only the rows that sample go through it, one for each "
            "part that samples.",
            lambda p, c, m: step_with(p, c, m, head_rows=lambda part: part[0]),
        ),
        (
            "The head is computed for every part there. A chunk that does not reach its prompt's end samples nothing.",
            lambda p, c, m: step_with(p, c, m, head_rows=lambda part: 1),
        ),
        (
            "The head is read although nobody samples. Then the step leaves it out, FLOP and bytes.",
            lambda p, c, m: step_with(p, c, m, head_always=True),
        ),
        (
            "All new tokens of a part that samples go through the head there. One row is enough: its last.",
            lambda p, c, m: step_with(p, c, m, head_rows=lambda part: part[0] * part[2]),
        ),
        (
            "As soon as one part samples, every new token goes through the head there. One row a part does.",
            lambda p, c, m: step_with(p, c, m, head_rows=lambda part: part[0] * any(samples for *_, samples in p)),
        ),
        (
            "The KV of the new tokens is missing: it is written, and a byte written is a byte moved. computed + new "
            "for each part.",
            lambda p, c, m: step_with(p, c, m, kv_of_new=False),
        ),
        (
            "All is right but the empty step. Without parts nothing is computed and nothing read: fixed_ms alone.",
            lambda p, c, m: step_with(p, c, m, idle_reads=True),
        ),
        (
            "Seconds and milliseconds are added: flop_per_s and bytes_per_s give seconds, fixed_ms is in milliseconds. "
            "1000 times the seconds.",
            lambda p, c, m: step_with(p, c, m, ms_per_s=1),
        ),
        (
            "The head's weights are read once for every row that samples. They are read once a step.",
            lambda p, c, m: step_with(p, c, m, head_read_each=True),
        ),
        (
            "The pairs are those of one part with the tokens of all, as if every new token saw everybody's context. A "
            "request looks at its own tokens only: count pairs part by part, then add.",
            lambda p, c, m: step_with(p, c, m, pairs_of_all=pooled_pairs),
        ),
        ("fixed_ms is missing.", lambda p, c, m: step_with(p, c, m, fixed=False)),
        (
            "The weights of the layers are read for every part there. They are read once a step, for all tokens.",
            lambda p, c, m: step_with(p, c, m, weights_read=len),
        ),
    ],
    "c02-b1": [
        ("That is the function as given.", capacity_as_given),
        (
            "The KV of a token is right now. But a tied head is still counted as a table of its own.",
            lambda c, m, u: capacity_with(c, m, u, tables=lambda tied: 2),
        ),
        (
            "The tables are right now. But the KV of a token still has as many heads as there are queries.",
            lambda c, m, u: capacity_with(c, m, u, kv_heads="heads"),
        ),
        (
            "Now every model has one table. A head that is not tied is a second one.",
            lambda c, m, u: capacity_with(c, m, u, tables=lambda tied: 1),
        ),
        (
            "The tables are the wrong way round: the tied model is the one with a single table.",
            lambda c, m, u: capacity_with(c, m, u, tables=lambda tied: 2 if tied else 1),
        ),
        (
            "The tables are the wrong way round (the tied model is the one with a single table), and the KV of a token "
            "still has as many heads as there are queries.",
            lambda c, m, u: capacity_with(c, m, u, tables=lambda tied: 2 if tied else 1, kv_heads="heads"),
        ),
        (
            "Now the matrices of queries have kv_heads heads as well. They were right: every head has queries of its "
            "own, only keys and values are shared.",
            lambda c, m, u: capacity_with(c, m, u, q_heads="kv_heads"),
        ),
        (
            "That counts one tensor of KV a token. K and V are two.",
            lambda c, m, u: capacity_with(c, m, u, tensors=1),
        ),
        (
            "The KV of a token has heads / kv_heads heads there: that is how many queries share one. kv_heads is the "
            "number of heads in the cache itself.",
            lambda c, m, u: capacity_with(c | {"group": c["heads"] // c["kv_heads"]}, m, u, kv_heads="group"),
        ),
    ],
}
