"""Wrong answers to c02-e1, one mistake each, and what the learner must be told. Knows no right answer. Chapter 2."""

from tools.mutant_table import Mutant

MUTANTS = {
    "e1-heads-everywhere": Mutant(
        "c02-e1",
        "never looks at kv_heads",
        "as if no head were shared",
        """
# EXERCISE c02-e1
def decode_intensity(config, context, batch):
    L, h, d = config["layers"], config["hidden"], config["head_dim"]
    heads, kv = config["heads"], config["kv_heads"]
    w = L * (4 * h * heads * d + 3 * h * config["ffn"]) + h * config["vocab"]
    flop = batch * (2 * w + 4 * L * heads * d * context)
    return flop / (2 * w + batch * context * 4 * L * heads * d)
""",
    ),
    "e1-heads-in-kv": Mutant(
        "c02-e1",
        "has the matrices right and keeps keys and values of every query head",
        "the KV of a token is counted with heads",
        """
# EXERCISE c02-e1
def decode_intensity(config, context, batch):
    L, h, d = config["layers"], config["hidden"], config["head_dim"]
    heads, kv = config["heads"], config["kv_heads"]
    w = L * (2 * h * (heads + kv) * d + 3 * h * config["ffn"]) + h * config["vocab"]
    flop = batch * (2 * w + 4 * L * heads * d * context)
    return flop / (2 * w + batch * context * 4 * L * heads * d)
""",
    ),
    "e1-keys-only": Mutant(
        "c02-e1",
        "counts one tensor a token in the cache",
        "K and V are two",
        """
# EXERCISE c02-e1
def decode_intensity(config, context, batch):
    L, h, d = config["layers"], config["hidden"], config["head_dim"]
    heads, kv = config["heads"], config["kv_heads"]
    w = L * (2 * h * (heads + kv) * d + 3 * h * config["ffn"]) + h * config["vocab"]
    flop = batch * (2 * w + 4 * L * heads * d * context)
    return flop / (2 * w + batch * context * 2 * L * kv * d)
""",
    ),
    "e1-no-attention": Mutant(
        "c02-e1",
        "counts only the matrices' arithmetic",
        "The FLOP of attention are missing",
        """
# EXERCISE c02-e1
def decode_intensity(config, context, batch):
    L, h, d = config["layers"], config["hidden"], config["head_dim"]
    heads, kv = config["heads"], config["kv_heads"]
    w = L * (2 * h * (heads + kv) * d + 3 * h * config["ffn"]) + h * config["vocab"]
    return batch * 2 * w / (2 * w + batch * context * 4 * L * kv * d)
""",
    ),
    "e1-embedding-read": Mutant(
        "c02-e1",
        "reads the embedding table beside the head",
        "It is looked up",
        """
# EXERCISE c02-e1
def decode_intensity(config, context, batch):
    L, h, d = config["layers"], config["hidden"], config["head_dim"]
    heads, kv = config["heads"], config["kv_heads"]
    w = L * (2 * h * (heads + kv) * d + 3 * h * config["ffn"]) + h * config["vocab"]
    flop = batch * (2 * w + 4 * L * heads * d * context)
    return flop / (2 * (w + h * config["vocab"]) + batch * context * 4 * L * kv * d)
""",
    ),
    "e1-no-head": Mutant(
        "c02-e1",
        "leaves the output head out",
        "The output head is missing",
        """
# EXERCISE c02-e1
def decode_intensity(config, context, batch):
    L, h, d = config["layers"], config["hidden"], config["head_dim"]
    heads, kv = config["heads"], config["kv_heads"]
    w = L * (2 * h * (heads + kv) * d + 3 * h * config["ffn"])
    flop = batch * (2 * w + 4 * L * heads * d * context)
    return flop / (2 * w + batch * context * 4 * L * kv * d)
""",
    ),
    "e1-weights-each": Mutant(
        "c02-e1",
        "adds up FLOP and bytes request by request, the weights too",
        "counted once for every request",
        """
# EXERCISE c02-e1
def decode_intensity(config, context, batch):
    L, h, d = config["layers"], config["hidden"], config["head_dim"]
    heads, kv = config["heads"], config["kv_heads"]
    w = L * (2 * h * (heads + kv) * d + 3 * h * config["ffn"]) + h * config["vocab"]
    total_flop = total_bytes = 0
    for _ in range(batch):
        total_flop += 2 * w + 4 * L * heads * d * context
        total_bytes += 2 * w + context * 4 * L * kv * d
    return total_flop / total_bytes
""",
    ),
    "e1-four-bytes": Mutant(
        "c02-e1",
        "takes 32-bit numbers",
        "16 bits are 2 bytes",
        """
# EXERCISE c02-e1
def decode_intensity(config, context, batch):
    L, h, d = config["layers"], config["hidden"], config["head_dim"]
    heads, kv = config["heads"], config["kv_heads"]
    w = L * (2 * h * (heads + kv) * d + 3 * h * config["ffn"]) + h * config["vocab"]
    flop = batch * (2 * w + 4 * L * heads * d * context)
    return flop / (4 * (w + batch * context * 2 * L * kv * d))
""",
    ),
    "e1-two-mlp-matrices": Mutant(
        "c02-e1",
        "has no gate in the feed-forward part",
        "There are three: gate, up and down",
        """
# EXERCISE c02-e1
def decode_intensity(config, context, batch):
    L, h, d = config["layers"], config["hidden"], config["head_dim"]
    heads, kv = config["heads"], config["kv_heads"]
    w = L * (2 * h * (heads + kv) * d + 2 * h * config["ffn"]) + h * config["vocab"]
    flop = batch * (2 * w + 4 * L * heads * d * context)
    return flop / (2 * w + batch * context * 4 * L * kv * d)
""",
    ),
    "e1-kv-of-one": Mutant(
        "c02-e1",
        "reads the KV of one request for the whole batch",
        "Nobody shares it",
        """
# EXERCISE c02-e1
def decode_intensity(config, context, batch):
    L, h, d = config["layers"], config["hidden"], config["head_dim"]
    heads, kv = config["heads"], config["kv_heads"]
    w = L * (2 * h * (heads + kv) * d + 3 * h * config["ffn"]) + h * config["vocab"]
    flop = batch * (2 * w + 4 * L * heads * d * context)
    return flop / (2 * w + context * 4 * L * kv * d)
""",
    ),
    "e1-shared-looks": Mutant(
        "c02-e1",
        "saves arithmetic by sharing heads, too",
        "Sharing saves bytes, not arithmetic",
        """
# EXERCISE c02-e1
def decode_intensity(config, context, batch):
    L, h, d = config["layers"], config["hidden"], config["head_dim"]
    heads, kv = config["heads"], config["kv_heads"]
    w = L * (2 * h * (heads + kv) * d + 3 * h * config["ffn"]) + h * config["vocab"]
    flop = batch * (2 * w + 4 * L * kv * d * context)
    return flop / (2 * w + batch * context * 4 * L * kv * d)
""",
    ),
    "e1-half-a-look": Mutant(
        "c02-e1",
        "counts a key and forgets the value when a token looks",
        "counted with half its FLOP",
        """
# EXERCISE c02-e1
def decode_intensity(config, context, batch):
    L, h, d = config["layers"], config["hidden"], config["head_dim"]
    heads, kv = config["heads"], config["kv_heads"]
    w = L * (2 * h * (heads + kv) * d + 3 * h * config["ffn"]) + h * config["vocab"]
    flop = batch * (2 * w + 2 * L * heads * d * context)
    return flop / (2 * w + batch * context * 4 * L * kv * d)
""",
    ),
    "e1-rounded": Mutant(
        "c02-e1",
        "rounds the intensity to two digits",
        "rounded; give the number in full",
        """
# EXERCISE c02-e1
def decode_intensity(config, context, batch):
    L, h, d = config["layers"], config["hidden"], config["head_dim"]
    heads, kv = config["heads"], config["kv_heads"]
    w = L * (2 * h * (heads + kv) * d + 3 * h * config["ffn"]) + h * config["vocab"]
    flop = batch * (2 * w + 4 * L * heads * d * context)
    return round(flop / (2 * w + batch * context * 4 * L * kv * d), 2)
""",
    ),
    "e1-batch-forgotten": Mutant(
        "c02-e1",
        "never looks at batch",
        "intensity of a batch of 1",
        """
# EXERCISE c02-e1
def decode_intensity(config, context, batch):
    L, h, d = config["layers"], config["hidden"], config["head_dim"]
    heads, kv = config["heads"], config["kv_heads"]
    w = L * (2 * h * (heads + kv) * d + 3 * h * config["ffn"]) + h * config["vocab"]
    flop = 2 * w + 4 * L * heads * d * context
    return flop / (2 * w + context * 4 * L * kv * d)
""",
    ),
    "e1-flop-of-one": Mutant(
        "c02-e1",
        "forgets the batch in the FLOP",
        "The FLOP are those of one request",
        """
# EXERCISE c02-e1
def decode_intensity(config, context, batch):
    L, h, d = config["layers"], config["hidden"], config["head_dim"]
    heads, kv = config["heads"], config["kv_heads"]
    w = L * (2 * h * (heads + kv) * d + 3 * h * config["ffn"]) + h * config["vocab"]
    flop = 2 * w + 4 * L * heads * d * context
    return flop / (2 * w + batch * context * 4 * L * kv * d)
""",
    ),
}
