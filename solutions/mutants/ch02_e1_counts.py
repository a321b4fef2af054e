"""Wrong answers to c02-e1 that leave out or repeat a whole part. Knows no right answer. Chapter 2."""

from tools.mutant_table import Mutant

MUTANTS = {
    "e1-one-byte": Mutant(
        "c02-e1",
        "takes 8-bit numbers",
        "1 byte a number",
        """
# EXERCISE c02-e1
def decode_intensity(config, context, batch):
    L, h, d = config["layers"], config["hidden"], config["head_dim"]
    heads, kv = config["heads"], config["kv_heads"]
    w = L * (2 * h * (heads + kv) * d + 3 * h * config["ffn"]) + h * config["vocab"]
    flop = batch * (2 * w + 4 * L * heads * d * context)
    return flop / (1 * w + batch * context * 2 * L * kv * d)
""",
    ),
    "e1-context-and-one": Mutant(
        "c02-e1",
        "adds the new token to the context",
        "counts the new token already",
        """
# EXERCISE c02-e1
def decode_intensity(config, context, batch):
    L, h, d = config["layers"], config["hidden"], config["head_dim"]
    heads, kv = config["heads"], config["kv_heads"]
    w = L * (2 * h * (heads + kv) * d + 3 * h * config["ffn"]) + h * config["vocab"]
    flop = batch * (2 * w + 4 * L * heads * d * (context + 1))
    return flop / (2 * w + batch * (context + 1) * 4 * L * kv * d)
""",
    ),
    "e1-head-each-layer": Mutant(
        "c02-e1",
        "puts the head into every layer",
        "The output head is counted in every layer",
        """
# EXERCISE c02-e1
def decode_intensity(config, context, batch):
    L, h, d = config["layers"], config["hidden"], config["head_dim"]
    heads, kv = config["heads"], config["kv_heads"]
    w = L * (2 * h * (heads + kv) * d + 3 * h * config["ffn"] + h * config["vocab"])
    flop = batch * (2 * w + 4 * L * heads * d * context)
    return flop / (2 * w + batch * context * 4 * L * kv * d)
""",
    ),
    "e1-one-layer": Mutant(
        "c02-e1",
        "forgets to multiply the matrices by the layers",
        "The matrices of one layer are counted",
        """
# EXERCISE c02-e1
def decode_intensity(config, context, batch):
    L, h, d = config["layers"], config["hidden"], config["head_dim"]
    heads, kv = config["heads"], config["kv_heads"]
    w = 2 * h * (heads + kv) * d + 3 * h * config["ffn"] + h * config["vocab"]
    flop = batch * (2 * w + 4 * L * heads * d * context)
    return flop / (2 * w + batch * context * 4 * L * kv * d)
""",
    ),
    "e1-matrices-only": Mutant(
        "c02-e1",
        "counts no attention at all beside the matrices",
        "look at the context is missing",
        """
# EXERCISE c02-e1
def decode_intensity(config, context, batch):
    L, h, d = config["layers"], config["hidden"], config["head_dim"]
    heads, kv = config["heads"], config["kv_heads"]
    w = L * (2 * h * (heads + kv) * d + 3 * h * config["ffn"]) + h * config["vocab"]
    flop = batch * (2 * w)
    return flop / (2 * w)
""",
    ),
    "e1-no-attention-matrices": Mutant(
        "c02-e1",
        "has only the feed-forward part and the head",
        "own matrices are missing",
        """
# EXERCISE c02-e1
def decode_intensity(config, context, batch):
    L, h, d = config["layers"], config["hidden"], config["head_dim"]
    heads, kv = config["heads"], config["kv_heads"]
    w = L * 3 * h * config["ffn"] + h * config["vocab"]
    flop = batch * (2 * w + 4 * L * heads * d * context)
    return flop / (2 * w + batch * context * 4 * L * kv * d)
""",
    ),
}
