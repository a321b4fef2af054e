"""Wrong answers to c02-b1, one mistake each, and what the learner must be told. Knows no right answer. Chapter 2."""

from tools.mutant_table import Mutant

MUTANTS = {
    "b1-heads-mended": Mutant(
        "c02-b1",
        "mends the heads and not the tables",
        "a tied head is still counted",
        """
# EXERCISE c02-b1
def kv_capacity(config, memory_bytes, utilization):
    L, h, d = config["layers"], config["hidden"], config["head_dim"]
    heads, kv, tied = config["heads"], config["kv_heads"], config["tied"]
    layer = 2 * h * heads * d + 2 * h * kv * d + 3 * h * config["ffn"] + 2 * h
    one = config["vocab"] * h
    tables = 2
    weights = 2 * (L * layer + h + tables * one)
    return int((utilization * memory_bytes - weights) // (4 * L * kv * d))
""",
    ),
    "b1-tables-mended": Mutant(
        "c02-b1",
        "mends the tables and not the heads",
        "still has as many heads as there are queries",
        """
# EXERCISE c02-b1
def kv_capacity(config, memory_bytes, utilization):
    L, h, d = config["layers"], config["hidden"], config["head_dim"]
    heads, kv, tied = config["heads"], config["kv_heads"], config["tied"]
    layer = 2 * h * heads * d + 2 * h * kv * d + 3 * h * config["ffn"] + 2 * h
    one = config["vocab"] * h
    tables = 1 if tied else 2
    weights = 2 * (L * layer + h + tables * one)
    return int((utilization * memory_bytes - weights) // (4 * L * heads * d))
""",
    ),
    "b1-one-table": Mutant(
        "c02-b1",
        "drops the second table of every model",
        "A head that is not tied is a second one",
        """
# EXERCISE c02-b1
def kv_capacity(config, memory_bytes, utilization):
    L, h, d = config["layers"], config["hidden"], config["head_dim"]
    heads, kv, tied = config["heads"], config["kv_heads"], config["tied"]
    layer = 2 * h * heads * d + 2 * h * kv * d + 3 * h * config["ffn"] + 2 * h
    one = config["vocab"] * h
    tables = 1
    weights = 2 * (L * layer + h + tables * one)
    return int((utilization * memory_bytes - weights) // (4 * L * kv * d))
""",
    ),
    "b1-tables-reversed": Mutant(
        "c02-b1",
        "gives the tied model two tables",
        "The tables are the wrong way round",
        """
# EXERCISE c02-b1
def kv_capacity(config, memory_bytes, utilization):
    L, h, d = config["layers"], config["hidden"], config["head_dim"]
    heads, kv, tied = config["heads"], config["kv_heads"], config["tied"]
    layer = 2 * h * heads * d + 2 * h * kv * d + 3 * h * config["ffn"] + 2 * h
    one = config["vocab"] * h
    tables = 1 + tied
    weights = 2 * (L * layer + h + tables * one)
    return int((utilization * memory_bytes - weights) // (4 * L * kv * d))
""",
    ),
    "b1-keys-only": Mutant(
        "c02-b1",
        "divides the bytes of a token by two",
        "K and V are two",
        """
# EXERCISE c02-b1
def kv_capacity(config, memory_bytes, utilization):
    L, h, d = config["layers"], config["hidden"], config["head_dim"]
    heads, kv, tied = config["heads"], config["kv_heads"], config["tied"]
    layer = 2 * h * heads * d + 2 * h * kv * d + 3 * h * config["ffn"] + 2 * h
    one = config["vocab"] * h
    tables = 2 - tied
    weights = 2 * (L * layer + h + tables * one)
    return int((utilization * memory_bytes - weights) // (2 * L * kv * d))
""",
    ),
    "b1-narrow-queries": Mutant(
        "c02-b1",
        "replaces heads by kv_heads everywhere",
        "They were right: every head has queries of its own",
        """
# EXERCISE c02-b1
def kv_capacity(config, memory_bytes, utilization):
    L, h, d = config["layers"], config["hidden"], config["head_dim"]
    heads, kv, tied = config["heads"], config["kv_heads"], config["tied"]
    layer = 2 * h * heads * d + 2 * h * kv * d + 3 * h * config["ffn"] + 2 * h
    one = config["vocab"] * h
    layer = 4 * h * kv * d + 3 * h * config["ffn"] + 2 * h
    tables = 2 - tied
    weights = 2 * (L * layer + h + tables * one)
    return int((utilization * memory_bytes - weights) // (4 * L * kv * d))
""",
    ),
    "b1-group-size": Mutant(
        "c02-b1",
        "divides heads by kv_heads",
        "that is how many queries share one",
        """
# EXERCISE c02-b1
def kv_capacity(config, memory_bytes, utilization):
    L, h, d = config["layers"], config["hidden"], config["head_dim"]
    heads, kv, tied = config["heads"], config["kv_heads"], config["tied"]
    layer = 2 * h * heads * d + 2 * h * kv * d + 3 * h * config["ffn"] + 2 * h
    one = config["vocab"] * h
    tables = 2 - tied
    weights = 2 * (L * layer + h + tables * one)
    return int((utilization * memory_bytes - weights) // (4 * L * (heads // kv) * d))
""",
    ),
}
