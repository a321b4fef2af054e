"""Right answers to chapter 2's exercises by other roads than the solution. Every one must pass. Chapter 2.

ALTERNATIVES: id -> (exercise, what is different, the cell).
"""

ALTERNATIVES = {
    "e1-matrix-by-matrix": (
        "c02-e1",
        "a list of matrix shapes, summed; floats throughout",
        """
# EXERCISE c02-e1
def decode_intensity(config, context, batch):
    q, kv = config["heads"] * config["head_dim"], config["kv_heads"] * config["head_dim"]
    h, f = config["hidden"], config["ffn"]
    layer = [(h, q), (h, kv), (h, kv), (q, h), (h, f), (h, f), (f, h)]
    flop = moved = 0.0
    for rows, columns in layer * config["layers"] + [(h, config["vocab"])]:
        flop += 2.0 * batch * rows * columns
        moved += 2.0 * rows * columns
    for _ in range(config["layers"]):
        flop += batch * context * config["heads"] * config["head_dim"] * (2 + 2)
        moved += batch * context * kv * 2 * 2
    return flop / moved
""",
    ),
    "e1-per-request": (
        "c02-e1",
        "bytes and FLOP of one request, the weights divided by the batch; numpy",
        """
# EXERCISE c02-e1
import numpy as np
def decode_intensity(config, context, batch):
    locals_ = {k: np.float64(v) for k, v in config.items()}
    L, h, n, k, d, f, v = locals_.values()
    weights = L * h * ((n + n + k + k) * d + f + f + f) + v * h
    return (2 * weights + 4 * context * L * n * d) / (2 * weights / batch + 4 * context * L * k * d)
""",
    ),
    "e2-closed-form": (
        "c02-e2",
        "no loop: the smallest of three quotients; returns a float that is whole",
        """
# EXERCISE c02-e2
import math
def largest_batch(limit_ms, context, costs, machine):
    seconds = limit_ms / 1e3
    left = seconds * machine["bytes_per_s"] - costs["layer_bytes"] - costs["head_bytes"]
    if left < 0:
        return 0
    by_memory = left / (context * costs["kv_bytes"])
    one = costs["layer_flop"] + costs["head_flop"] + context * costs["pair_flop"]
    by_arithmetic = seconds * machine["flop_per_s"] / one
    by_room = machine["kv_tokens"] / context
    return float(math.floor(min(by_memory, by_arithmetic, by_room)))
""",
    ),
    "e2-halving": (
        "c02-e2",
        "bisection; changes the dicts that it is given",
        """
# EXERCISE c02-e2
def largest_batch(limit_ms, context, costs, machine):
    costs["once"] = costs.pop("layer_bytes") + costs.pop("head_bytes")
    def ok(n):
        memory = 1000 * (costs["once"] + n * context * costs["kv_bytes"]) / machine["bytes_per_s"]
        work = n * (costs["layer_flop"] + costs["head_flop"]) + n * context * costs["pair_flop"]
        return memory <= limit_ms and 1000 * work / machine["flop_per_s"] <= limit_ms
    low, high = 0, machine["kv_tokens"] // context
    while low < high:
        middle = (low + high + 1) // 2
        if ok(middle):
            low = middle
        else:
            high = middle - 1
    return low
""",
    ),
    "e3-token-by-token": (
        "c02-e3",
        "counts pairs one token after another; complex numbers for hypot",
        """
# EXERCISE c02-e3
def step_ms(parts, costs, machine):
    new = pairs = kv = rows = 0
    for n, computed, samples in parts:
        seen = computed
        for _ in range(n):
            seen += 1
            pairs += seen
        kv += seen
        new += n
        rows += bool(samples)
    time = machine["fixed_ms"] / 1000
    todo = [(new * costs["layer_flop"], costs["layer_bytes"]), (pairs * costs["pair_flop"], kv * costs["kv_bytes"])]
    if rows:
        todo.append((rows * costs["head_flop"], costs["head_bytes"]))
    for flop, read in todo if parts else []:
        time += abs(complex(flop / machine["flop_per_s"], read / machine["bytes_per_s"]))
    return 1000 * time
""",
    ),
    "e3-numpy": (
        "c02-e3",
        "columns of an array",
        """
# EXERCISE c02-e3
import numpy as np
def step_ms(parts, costs, machine):
    if len(parts) == 0:
        return machine["fixed_ms"]
    n, c, s = np.array(parts, dtype=float).T
    flop = np.array([n.sum() * costs["layer_flop"], (n * c + n * (n + 1) / 2).sum() * costs["pair_flop"],
                     s.sum() * costs["head_flop"]])
    read = np.array([costs["layer_bytes"], (n + c).sum() * costs["kv_bytes"], costs["head_bytes"] * (s.sum() > 0)])
    return machine["fixed_ms"] + 1000 * np.hypot(flop / machine["flop_per_s"], read / machine["bytes_per_s"]).sum()
""",
    ),
    "b1-from-shapes": (
        "c02-b1",
        "rewritten from the list of tensors",
        """
# EXERCISE c02-b1
def kv_capacity(config, memory_bytes, utilization):
    h, f, v, d = config["hidden"], config["ffn"], config["vocab"], config["head_dim"]
    q, kv = config["heads"] * d, config["kv_heads"] * d
    layer = [h * q, h * kv, h * kv, q * h, h * f, h * f, f * h, h, h]
    numbers = config["layers"] * sum(layer) + h + v * h
    if not config["tied"]:
        numbers += v * h
    left = utilization * memory_bytes - 2 * numbers
    return int(left / (4 * config["layers"] * kv))
""",
    ),
    "b1-integers": (
        "c02-b1",
        "whole numbers from the start",
        """
# EXERCISE c02-b1
def kv_capacity(config, memory_bytes, utilization):
    c = dict(config)
    group = c["heads"] // c["kv_heads"]
    attention = 2 * c["hidden"] * c["heads"] * c["head_dim"]
    attention += attention // group
    per_layer = attention + 3 * c["hidden"] * c["ffn"] + 2 * c["hidden"]
    weights = c["layers"] * per_layer + c["hidden"] * (1 + c["vocab"] * (2 - int(c["tied"])))
    usable = int(memory_bytes * utilization) - 2 * weights
    return usable // (4 * c["layers"] * c["heads"] // group * c["head_dim"])
""",
    ),
}
