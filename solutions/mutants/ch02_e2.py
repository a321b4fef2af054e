"""Wrong answers to c02-e2, one mistake each, and what the learner must be told. Knows no right answer. Chapter 2."""

from tools.mutant_table import Mutant

MUTANTS = {
    "e2-no-room": Mutant(
        "c02-e2",
        "never looks at kv_tokens",
        "nobody looks whether the KV fits",
        """
# EXERCISE c02-e2
def largest_batch(limit_ms, context, costs, machine):
    weights = costs["layer_bytes"] + costs["head_bytes"]
    flop = costs["layer_flop"] + costs["head_flop"] + context * costs["pair_flop"]
    kv = context * costs["kv_bytes"]
    s, room = limit_ms / 1000, machine["kv_tokens"] // context
    memory = (s * machine["bytes_per_s"] - weights) // kv
    arithmetic = s * machine["flop_per_s"] // flop
    return max(0, int(min(memory, arithmetic)))
""",
    ),
    "e2-memory-only": Mutant(
        "c02-e2",
        "clocks only the bytes",
        "Only the bytes are clocked",
        """
# EXERCISE c02-e2
def largest_batch(limit_ms, context, costs, machine):
    weights = costs["layer_bytes"] + costs["head_bytes"]
    flop = costs["layer_flop"] + costs["head_flop"] + context * costs["pair_flop"]
    kv = context * costs["kv_bytes"]
    s, room = limit_ms / 1000, machine["kv_tokens"] // context
    return max(0, min(room, int((s * machine["bytes_per_s"] - weights) // kv)))
""",
    ),
    "e2-arithmetic-only": Mutant(
        "c02-e2",
        "clocks only the FLOP",
        "Only the FLOP are clocked",
        """
# EXERCISE c02-e2
def largest_batch(limit_ms, context, costs, machine):
    weights = costs["layer_bytes"] + costs["head_bytes"]
    flop = costs["layer_flop"] + costs["head_flop"] + context * costs["pair_flop"]
    kv = context * costs["kv_bytes"]
    s, room = limit_ms / 1000, machine["kv_tokens"] // context
    return max(0, min(room, int(s * machine["flop_per_s"] // flop)))
""",
    ),
    "e2-no-kv": Mutant(
        "c02-e2",
        "thinks that a bigger batch reads nothing more",
        "The bytes of KV are missing",
        """
# EXERCISE c02-e2
def largest_batch(limit_ms, context, costs, machine):
    weights = costs["layer_bytes"] + costs["head_bytes"]
    flop = costs["layer_flop"] + costs["head_flop"] + context * costs["pair_flop"]
    kv = context * costs["kv_bytes"]
    s, room = limit_ms / 1000, machine["kv_tokens"] // context
    if weights / machine["bytes_per_s"] > s:
        return 0
    return min(room, int(s * machine["flop_per_s"] // flop))
""",
    ),
    "e2-weights-each": Mutant(
        "c02-e2",
        "reads the weights again for every request",
        "read once for every request there",
        """
# EXERCISE c02-e2
def largest_batch(limit_ms, context, costs, machine):
    weights = costs["layer_bytes"] + costs["head_bytes"]
    flop = costs["layer_flop"] + costs["head_flop"] + context * costs["pair_flop"]
    kv = context * costs["kv_bytes"]
    s, room = limit_ms / 1000, machine["kv_tokens"] // context
    memory = s * machine["bytes_per_s"] // (weights + kv)
    return max(0, min(room, int(memory), int(s * machine["flop_per_s"] // flop)))
""",
    ),
    "e2-one-too-many": Mutant(
        "c02-e2",
        "returns the batch at which its loop stopped",
        "One too many",
        """
# EXERCISE c02-e2
def largest_batch(limit_ms, context, costs, machine):
    weights = costs["layer_bytes"] + costs["head_bytes"]
    flop = costs["layer_flop"] + costs["head_flop"] + context * costs["pair_flop"]
    kv = context * costs["kv_bytes"]
    s, room = limit_ms / 1000, machine["kv_tokens"] // context
    n = 1
    while n <= room and weights + n * kv <= s * machine["bytes_per_s"] and n * flop <= s * machine["flop_per_s"]:
        n += 1
    return n
""",
    ),
    "e2-one-too-few": Mutant(
        "c02-e2",
        "tests the next request before it lets this one in",
        "One too few",
        """
# EXERCISE c02-e2
def largest_batch(limit_ms, context, costs, machine):
    weights = costs["layer_bytes"] + costs["head_bytes"]
    flop = costs["layer_flop"] + costs["head_flop"] + context * costs["pair_flop"]
    kv = context * costs["kv_bytes"]
    s, room = limit_ms / 1000, machine["kv_tokens"] // context
    memory, arithmetic = s * machine["bytes_per_s"], s * machine["flop_per_s"]
    n = 0
    while n + 2 <= room and weights + (n + 2) * kv <= memory and (n + 2) * flop <= arithmetic:
        n += 1
    return n
""",
    ),
    "e2-added": Mutant(
        "c02-e2",
        "adds memory and arithmetic",
        "In a plain roofline they overlap",
        """
# EXERCISE c02-e2
def largest_batch(limit_ms, context, costs, machine):
    weights = costs["layer_bytes"] + costs["head_bytes"]
    flop = costs["layer_flop"] + costs["head_flop"] + context * costs["pair_flop"]
    kv = context * costs["kv_bytes"]
    s, room = limit_ms / 1000, machine["kv_tokens"] // context
    n = 0
    while n < room and (weights + (n + 1) * kv) / machine["bytes_per_s"] + (n + 1) * flop / machine["flop_per_s"] <= s:
        n += 1
    return n
""",
    ),
    "e2-seconds": Mutant(
        "c02-e2",
        "compares seconds with milliseconds",
        "The limit is compared with seconds",
        """
# EXERCISE c02-e2
def largest_batch(limit_ms, context, costs, machine):
    weights = costs["layer_bytes"] + costs["head_bytes"]
    flop = costs["layer_flop"] + costs["head_flop"] + context * costs["pair_flop"]
    kv = context * costs["kv_bytes"]
    s, room = limit_ms / 1000, machine["kv_tokens"] // context
    n = 0
    while n < room:
        time = max((weights + (n + 1) * kv) / machine["bytes_per_s"], (n + 1) * flop / machine["flop_per_s"])
        if time > limit_ms:
            break
        n += 1
    return n
""",
    ),
    "e2-at-least-one": Mutant(
        "c02-e2",
        "serves one request whatever it takes",
        "the answer is 0",
        """
# EXERCISE c02-e2
def largest_batch(limit_ms, context, costs, machine):
    weights = costs["layer_bytes"] + costs["head_bytes"]
    flop = costs["layer_flop"] + costs["head_flop"] + context * costs["pair_flop"]
    kv = context * costs["kv_bytes"]
    s, room = limit_ms / 1000, machine["kv_tokens"] // context
    memory = (s * machine["bytes_per_s"] - weights) // kv
    return max(1, min(room, int(memory), int(s * machine["flop_per_s"] // flop)))
""",
    ),
    "e2-batch-forgotten": Mutant(
        "c02-e2",
        "clocks the step of one request, however many there are",
        "The batch is forgotten",
        """
# EXERCISE c02-e2
def largest_batch(limit_ms, context, costs, machine):
    batch = 0
    while True:
        n = batch + 1
        total_bytes = costs["layer_bytes"] + costs["head_bytes"] + context * costs["kv_bytes"]
        flop = (costs["layer_flop"] + costs["head_flop"] + context * costs["pair_flop"])
        ms = 1000 * max(total_bytes / machine["bytes_per_s"], flop / machine["flop_per_s"])
        if ms > limit_ms or n * context > machine["kv_tokens"]:
            return batch
        batch = n
""",
    ),
    "e2-flop-of-one": Mutant(
        "c02-e2",
        "clocks the FLOP of one request",
        "The FLOP are those of one request",
        """
# EXERCISE c02-e2
def largest_batch(limit_ms, context, costs, machine):
    batch = 0
    while True:
        n = batch + 1
        total_bytes = costs["layer_bytes"] + costs["head_bytes"] + n * context * costs["kv_bytes"]
        flop = (costs["layer_flop"] + costs["head_flop"] + context * costs["pair_flop"])
        ms = 1000 * max(total_bytes / machine["bytes_per_s"], flop / machine["flop_per_s"])
        if ms > limit_ms or n * context > machine["kv_tokens"]:
            return batch
        batch = n
""",
    ),
    "e2-kv-of-one": Mutant(
        "c02-e2",
        "clocks the KV of one request",
        "The bytes hold the KV of one request",
        """
# EXERCISE c02-e2
def largest_batch(limit_ms, context, costs, machine):
    batch = 0
    while True:
        n = batch + 1
        total_bytes = costs["layer_bytes"] + costs["head_bytes"] + context * costs["kv_bytes"]
        flop = n * (costs["layer_flop"] + costs["head_flop"] + context * costs["pair_flop"])
        ms = 1000 * max(total_bytes / machine["bytes_per_s"], flop / machine["flop_per_s"])
        if ms > limit_ms or n * context > machine["kv_tokens"]:
            return batch
        batch = n
""",
    ),
    "e2-room-for-one": Mutant(
        "c02-e2",
        "compares the room with the KV of one request",
        "The room is compared with the KV of one request",
        """
# EXERCISE c02-e2
def largest_batch(limit_ms, context, costs, machine):
    batch = 0
    while True:
        n = batch + 1
        total_bytes = costs["layer_bytes"] + costs["head_bytes"] + n * context * costs["kv_bytes"]
        flop = n * (costs["layer_flop"] + costs["head_flop"] + context * costs["pair_flop"])
        ms = 1000 * max(total_bytes / machine["bytes_per_s"], flop / machine["flop_per_s"])
        if ms > limit_ms or context > machine["kv_tokens"]:
            return batch
        batch = n
""",
    ),
}
