"""Wrong answers to c02-e3: matrices, attention and the clock. Knows no right answer. Chapter 2."""

from tools.mutant_table import Mutant

MUTANTS = {
    "e3-plain-roofline": Mutant(
        "c02-e3",
        "takes the longer of the two instead of hypot",
        "That is the plain roofline",
        """
# EXERCISE c02-e3
from math import hypot
def step_ms(parts, costs, machine):
    F, B = machine["flop_per_s"] / 1000, machine["bytes_per_s"] / 1000
    new = sum(n for n, c, s in parts)
    rows = sum(1 for n, c, s in parts if s)
    pairs = sum(n * c + n * (n + 1) / 2 for n, c, s in parts)
    kv = sum(n + c for n, c, s in parts)
    if not parts:
        return machine["fixed_ms"]
    linear = max(new * costs["layer_flop"] / F, costs["layer_bytes"] / B)
    attention = max(pairs * costs["pair_flop"] / F, kv * costs["kv_bytes"] / B)
    head = max(rows * costs["head_flop"] / F, costs["head_bytes"] / B) if rows else 0
    return machine["fixed_ms"] + linear + attention + head
""",
    ),
    "e3-one-hypot": Mutant(
        "c02-e3",
        "adds up all FLOP and all bytes first",
        "one hypot over all FLOP and all bytes",
        """
# EXERCISE c02-e3
from math import hypot
def step_ms(parts, costs, machine):
    F, B = machine["flop_per_s"] / 1000, machine["bytes_per_s"] / 1000
    new = sum(n for n, c, s in parts)
    rows = sum(1 for n, c, s in parts if s)
    pairs = sum(n * c + n * (n + 1) / 2 for n, c, s in parts)
    kv = sum(n + c for n, c, s in parts)
    if not parts:
        return machine["fixed_ms"]
    flop = new * costs["layer_flop"] + pairs * costs["pair_flop"] + rows * costs["head_flop"]
    read = costs["layer_bytes"] + kv * costs["kv_bytes"] + (costs["head_bytes"] if rows else 0)
    return machine["fixed_ms"] + hypot(flop / F, read / B)
""",
    ),
    "e3-sums": Mutant(
        "c02-e3",
        "adds arithmetic and memory",
        "as if nothing overlapped",
        """
# EXERCISE c02-e3
from math import hypot
def step_ms(parts, costs, machine):
    F, B = machine["flop_per_s"] / 1000, machine["bytes_per_s"] / 1000
    new = sum(n for n, c, s in parts)
    rows = sum(1 for n, c, s in parts if s)
    pairs = sum(n * c + n * (n + 1) / 2 for n, c, s in parts)
    kv = sum(n + c for n, c, s in parts)
    if not parts:
        return machine["fixed_ms"]
    flop = new * costs["layer_flop"] + pairs * costs["pair_flop"] + rows * costs["head_flop"]
    read = costs["layer_bytes"] + kv * costs["kv_bytes"] + (costs["head_bytes"] if rows else 0)
    return machine["fixed_ms"] + flop / F + read / B
""",
    ),
    "e3-only-old-pairs": Mutant(
        "c02-e3",
        "lets new tokens look at old ones only",
        "The pairs are new × computed",
        """
# EXERCISE c02-e3
from math import hypot
def step_ms(parts, costs, machine):
    F, B = machine["flop_per_s"] / 1000, machine["bytes_per_s"] / 1000
    new = sum(n for n, c, s in parts)
    rows = sum(1 for n, c, s in parts if s)
    pairs = sum(n * c + n * (n + 1) / 2 for n, c, s in parts)
    kv = sum(n + c for n, c, s in parts)
    if not parts:
        return machine["fixed_ms"]
    pairs = sum(n * c for n, c, s in parts)
    linear = hypot(new * costs["layer_flop"] / F, costs["layer_bytes"] / B)
    attention = hypot(pairs * costs["pair_flop"] / F, kv * costs["kv_bytes"] / B)
    head = hypot(rows * costs["head_flop"] / F, costs["head_bytes"] / B) if rows else 0
    return machine["fixed_ms"] + linear + attention + head
""",
    ),
    "e3-square-pairs": Mutant(
        "c02-e3",
        "lets every new token look at the whole prompt",
        "as if the first new token saw those after it",
        """
# EXERCISE c02-e3
from math import hypot
def step_ms(parts, costs, machine):
    F, B = machine["flop_per_s"] / 1000, machine["bytes_per_s"] / 1000
    new = sum(n for n, c, s in parts)
    rows = sum(1 for n, c, s in parts if s)
    pairs = sum(n * c + n * (n + 1) / 2 for n, c, s in parts)
    kv = sum(n + c for n, c, s in parts)
    if not parts:
        return machine["fixed_ms"]
    pairs = sum(n * (n + c) for n, c, s in parts)
    linear = hypot(new * costs["layer_flop"] / F, costs["layer_bytes"] / B)
    attention = hypot(pairs * costs["pair_flop"] / F, kv * costs["kv_bytes"] / B)
    head = hypot(rows * costs["head_flop"] / F, costs["head_bytes"] / B) if rows else 0
    return machine["fixed_ms"] + linear + attention + head
""",
    ),
    "e3-not-itself": Mutant(
        "c02-e3",
        "forgets that a token looks at itself",
        "A new token looks at itself, too",
        """
# EXERCISE c02-e3
from math import hypot
def step_ms(parts, costs, machine):
    F, B = machine["flop_per_s"] / 1000, machine["bytes_per_s"] / 1000
    new = sum(n for n, c, s in parts)
    rows = sum(1 for n, c, s in parts if s)
    pairs = sum(n * c + n * (n + 1) / 2 for n, c, s in parts)
    kv = sum(n + c for n, c, s in parts)
    if not parts:
        return machine["fixed_ms"]
    pairs = sum(sum(c + i for i in range(n)) for n, c, s in parts)
    linear = hypot(new * costs["layer_flop"] / F, costs["layer_bytes"] / B)
    attention = hypot(pairs * costs["pair_flop"] / F, kv * costs["kv_bytes"] / B)
    head = hypot(rows * costs["head_flop"] / F, costs["head_bytes"] / B) if rows else 0
    return machine["fixed_ms"] + linear + attention + head
""",
    ),
    "e3-new-kv-free": Mutant(
        "c02-e3",
        "counts only the KV that is read",
        "The KV of the new tokens is missing",
        """
# EXERCISE c02-e3
from math import hypot
def step_ms(parts, costs, machine):
    F, B = machine["flop_per_s"] / 1000, machine["bytes_per_s"] / 1000
    new = sum(n for n, c, s in parts)
    rows = sum(1 for n, c, s in parts if s)
    pairs = sum(n * c + n * (n + 1) / 2 for n, c, s in parts)
    kv = sum(n + c for n, c, s in parts)
    if not parts:
        return machine["fixed_ms"]
    kv = sum(c for n, c, s in parts)
    linear = hypot(new * costs["layer_flop"] / F, costs["layer_bytes"] / B)
    attention = hypot(pairs * costs["pair_flop"] / F, kv * costs["kv_bytes"] / B)
    head = hypot(rows * costs["head_flop"] / F, costs["head_bytes"] / B) if rows else 0
    return machine["fixed_ms"] + linear + attention + head
""",
    ),
    "e3-weights-each": Mutant(
        "c02-e3",
        "reads the layers once for every request",
        "read for every part there",
        """
# EXERCISE c02-e3
from math import hypot
def step_ms(parts, costs, machine):
    F, B = machine["flop_per_s"] / 1000, machine["bytes_per_s"] / 1000
    new = sum(n for n, c, s in parts)
    rows = sum(1 for n, c, s in parts if s)
    pairs = sum(n * c + n * (n + 1) / 2 for n, c, s in parts)
    kv = sum(n + c for n, c, s in parts)
    if not parts:
        return machine["fixed_ms"]
    linear = hypot(new * costs["layer_flop"] / F, len(parts) * costs["layer_bytes"] / B)
    attention = hypot(pairs * costs["pair_flop"] / F, kv * costs["kv_bytes"] / B)
    head = hypot(rows * costs["head_flop"] / F, costs["head_bytes"] / B) if rows else 0
    return machine["fixed_ms"] + linear + attention + head
""",
    ),
    "e3-empty-step": Mutant(
        "c02-e3",
        "reads the weights although there is nothing to compute",
        "All is right but the empty step",
        """
# EXERCISE c02-e3
from math import hypot
def step_ms(parts, costs, machine):
    F, B = machine["flop_per_s"] / 1000, machine["bytes_per_s"] / 1000
    new = sum(n for n, c, s in parts)
    rows = sum(1 for n, c, s in parts if s)
    pairs = sum(n * c + n * (n + 1) / 2 for n, c, s in parts)
    kv = sum(n + c for n, c, s in parts)
    linear = hypot(new * costs["layer_flop"] / F, costs["layer_bytes"] / B)
    attention = hypot(pairs * costs["pair_flop"] / F, kv * costs["kv_bytes"] / B)
    head = hypot(rows * costs["head_flop"] / F, costs["head_bytes"] / B) if rows else 0
    return machine["fixed_ms"] + linear + attention + head
""",
    ),
    "e3-seconds": Mutant(
        "c02-e3",
        "returns seconds",
        "off by 1000: seconds instead of milliseconds?",
        """
# EXERCISE c02-e3
from math import hypot
def step_ms(parts, costs, machine):
    F, B = machine["flop_per_s"] / 1000, machine["bytes_per_s"] / 1000
    new = sum(n for n, c, s in parts)
    rows = sum(1 for n, c, s in parts if s)
    pairs = sum(n * c + n * (n + 1) / 2 for n, c, s in parts)
    kv = sum(n + c for n, c, s in parts)
    if not parts:
        return machine["fixed_ms"]
    linear = hypot(new * costs["layer_flop"] / F, costs["layer_bytes"] / B)
    attention = hypot(pairs * costs["pair_flop"] / F, kv * costs["kv_bytes"] / B)
    head = hypot(rows * costs["head_flop"] / F, costs["head_bytes"] / B) if rows else 0
    return (machine["fixed_ms"] + linear + attention + head) / 1000
""",
    ),
    "e3-seconds-and-ms": Mutant(
        "c02-e3",
        "adds seconds to fixed_ms",
        "Seconds and milliseconds are added",
        """
# EXERCISE c02-e3
from math import hypot
def step_ms(parts, costs, machine):
    F, B = machine["flop_per_s"], machine["bytes_per_s"]
    new = sum(n for n, c, s in parts)
    rows = sum(1 for n, c, s in parts if s)
    pairs = sum(n * c + n * (n + 1) / 2 for n, c, s in parts)
    kv = sum(n + c for n, c, s in parts)
    if not parts:
        return machine["fixed_ms"]
    linear = hypot(new * costs["layer_flop"] / F, costs["layer_bytes"] / B)
    attention = hypot(pairs * costs["pair_flop"] / F, kv * costs["kv_bytes"] / B)
    head = hypot(rows * costs["head_flop"] / F, costs["head_bytes"] / B) if rows else 0
    return machine["fixed_ms"] + linear + attention + head
""",
    ),
    "e3-pairs-pooled": Mutant(
        "c02-e3",
        "counts the pairs over the sums of new and computed tokens",
        "count pairs part by part",
        """
# EXERCISE c02-e3
from math import hypot
def step_ms(parts, costs, machine):
    F, B = machine["flop_per_s"] / 1000, machine["bytes_per_s"] / 1000
    new = sum(n for n, c, s in parts)
    rows = sum(1 for n, c, s in parts if s)
    pairs = sum(n * c + n * (n + 1) / 2 for n, c, s in parts)
    kv = sum(n + c for n, c, s in parts)
    if not parts:
        return machine["fixed_ms"]
    done = sum(c for n, c, s in parts)
    pairs = new * done + new * (new + 1) / 2
    linear = hypot(new * costs["layer_flop"] / F, costs["layer_bytes"] / B)
    attention = hypot(pairs * costs["pair_flop"] / F, kv * costs["kv_bytes"] / B)
    head = hypot(rows * costs["head_flop"] / F, costs["head_bytes"] / B) if rows else 0
    return machine["fixed_ms"] + linear + attention + head
""",
    ),
}
