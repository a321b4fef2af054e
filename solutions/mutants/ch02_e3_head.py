"""Wrong answers to c02-e3: who goes through the head. Knows no right answer. Chapter 2."""

from tools.mutant_table import Mutant

MUTANTS = {
    "e3-head-for-all": Mutant(
        "c02-e3",
        "computes the head for every new token",
        "The head is computed for every new token",
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
    head = hypot(new * costs["head_flop"] / F, costs["head_bytes"] / B)
    return machine["fixed_ms"] + linear + attention + head
""",
    ),
    "e3-head-for-every-part": Mutant(
        "c02-e3",
        "computes the head for chunks in the middle of a prompt",
        "The head is computed for every part",
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
    rows = len(parts)
    linear = hypot(new * costs["layer_flop"] / F, costs["layer_bytes"] / B)
    attention = hypot(pairs * costs["pair_flop"] / F, kv * costs["kv_bytes"] / B)
    head = hypot(rows * costs["head_flop"] / F, costs["head_bytes"] / B) if rows else 0
    return machine["fixed_ms"] + linear + attention + head
""",
    ),
    "e3-head-always": Mutant(
        "c02-e3",
        "reads the head in every step",
        "although nobody samples",
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
    head = hypot(rows * costs["head_flop"] / F, costs["head_bytes"] / B)
    return machine["fixed_ms"] + linear + attention + head
""",
    ),
    "e3-head-for-all-if-any": Mutant(
        "c02-e3",
        "computes the head for every new token of a step in which somebody samples",
        "every new token goes through the head there",
        """
# EXERCISE c02-e3
from math import hypot
def step_ms(parts, costs, machine):
    F, B = machine["flop_per_s"] / 1000, machine["bytes_per_s"] / 1000
    new = sum(n for n, c, s in parts)
    pairs = sum(n * c + n * (n + 1) / 2 for n, c, s in parts)
    kv = sum(n + c for n, c, s in parts)
    if not parts:
        return machine["fixed_ms"]
    ms = machine["fixed_ms"] + hypot(new * costs["layer_flop"] / F, costs["layer_bytes"] / B)
    ms += hypot(pairs * costs["pair_flop"] / F, kv * costs["kv_bytes"] / B)
    if any(s for n, c, s in parts):
        ms += hypot(new * costs["head_flop"] / F, costs["head_bytes"] / B)
    return ms
""",
    ),
    "e3-head-read-each": Mutant(
        "c02-e3",
        "reads the head once for every row",
        "head's weights are read once for every row",
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
    head = hypot(rows * costs["head_flop"] / F, rows * costs["head_bytes"] / B) if rows else 0
    return machine["fixed_ms"] + linear + attention + head
""",
    ),
}
