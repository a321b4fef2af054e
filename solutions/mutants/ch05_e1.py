"""Wrong answers to c05-e1: a step under two budgets, by hand. Knows no right answer. Chapter 5."""

from tools.mutant_table import Mutant

MUTANTS = {
    "e1-no-decodes": Mutant(
        "c05-e1",
        "lets those who run advance for nothing",
        "you have left out their three",
        """
# EXERCISE c05-e1
step = {
    "wide": {"enter": ["D", "E", "F"], "tokens_left": 1, "blocks_reserved": 591, "stopped_by": "token_budget"},
    "tight": {"enter": ["D"], "tokens_left": 2096, "blocks_reserved": 437, "stopped_by": "kv_reservation"},
}
""",
    ),
    "e1-last-token": Mutant(
        "c05-e1",
        "reserves the KV of the last token too",
        "a token too long",
        """
# EXERCISE c05-e1
step = {
    "wide": {"enter": ["D", "E"], "tokens_left": 593, "blocks_reserved": 539, "stopped_by": "token_budget"},
    "tight": {"enter": [], "tokens_left": 4093, "blocks_reserved": 309, "stopped_by": "kv_reservation"},
}
""",
    ),
    "e1-rounds-down": Mutant(
        "c05-e1",
        "rounds blocks down",
        "blocks are rounded up",
        """
# EXERCISE c05-e1
step = {
    "wide": {"enter": ["D", "E"], "tokens_left": 593, "blocks_reserved": 534, "stopped_by": "token_budget"},
    "tight": {"enter": ["D"], "tokens_left": 2093, "blocks_reserved": 437, "stopped_by": "kv_reservation"},
}
""",
    ),
    "e1-prompts-only": Mutant(
        "c05-e1",
        "reserves prompts only",
        "reserved the prompts only",
        """
# EXERCISE c05-e1
step = {
    "wide": {"enter": ["D", "E"], "tokens_left": 593, "blocks_reserved": 428, "stopped_by": "token_budget"},
    "tight": {"enter": ["D", "E"], "tokens_left": 593, "blocks_reserved": 428, "stopped_by": "token_budget"},
}
""",
    ),
    "e1-running-unreserved": Mutant(
        "c05-e1",
        "forgets what those who run have reserved",
        "hold their reservation until they are done",
        """
# EXERCISE c05-e1
step = {
    "wide": {"enter": ["D", "E"], "tokens_left": 593, "blocks_reserved": 229, "stopped_by": "token_budget"},
    "tight": {"enter": ["D", "E"], "tokens_left": 593, "blocks_reserved": 229, "stopped_by": "token_budget"},
}
""",
    ),
    "e1-passes-over": Mutant(
        "c05-e1",
        "passes over the one who does not fit",
        "Nobody is passed over",
        """
# EXERCISE c05-e1
step = {
    "wide": {"enter": ["D", "E", "G"], "tokens_left": 577, "blocks_reserved": 537, "stopped_by": "token_budget"},
    "tight": {"enter": ["D"], "tokens_left": 2093, "blocks_reserved": 437, "stopped_by": "kv_reservation"},
}
""",
    ),
    "e1-cuts": Mutant(
        "c05-e1",
        "lets F in with the tokens that are left",
        "Nothing is cut into pieces",
        """
# EXERCISE c05-e1
step = {
    "wide": {"enter": ["D", "E", "F"], "tokens_left": 0, "blocks_reserved": 591, "stopped_by": "token_budget"},
    "tight": {"enter": ["D"], "tokens_left": 2093, "blocks_reserved": 437, "stopped_by": "kv_reservation"},
}
""",
    ),
    "e1-checked-after": Mutant(
        "c05-e1",
        "writes down what was left before the last one who entered",
        "that does not leave",
        """
# EXERCISE c05-e1
step = {
    "wide": {"enter": ["D", "E"], "tokens_left": 2093, "blocks_reserved": 437, "stopped_by": "token_budget"},
    "tight": {"enter": ["D"], "tokens_left": 4093, "blocks_reserved": 306, "stopped_by": "kv_reservation"},
}
""",
    ),
    "e1-never-full": Mutant(
        "c05-e1",
        "never lets the pool become full",
        "the pool may be full",
        """
# EXERCISE c05-e1
step = {
    "wide": {"enter": ["D", "E"], "tokens_left": 593, "blocks_reserved": 535, "stopped_by": "token_budget"},
    "tight": {"enter": [], "tokens_left": 4093, "blocks_reserved": 306, "stopped_by": "kv_reservation"},
}
""",
    ),
    "e1-blocks-left": Mutant(
        "c05-e1",
        "gives the blocks that are left",
        "You have given the blocks that are left",
        """
# EXERCISE c05-e1
step = {
    "wide": {"enter": ["D", "E"], "tokens_left": 593, "blocks_reserved": 165, "stopped_by": "token_budget"},
    "tight": {"enter": ["D"], "tokens_left": 2093, "blocks_reserved": 0, "stopped_by": "kv_reservation"},
}
""",
    ),
    "e1-blocks-of-newcomers": Mutant(
        "c05-e1",
        "adds up the reservations of those who enter",
        "Those who run keep theirs",
        """
# EXERCISE c05-e1
step = {
    "wide": {"enter": ["D", "E"], "tokens_left": 593, "blocks_reserved": 229, "stopped_by": "token_budget"},
    "tight": {"enter": ["D"], "tokens_left": 2093, "blocks_reserved": 131, "stopped_by": "kv_reservation"},
}
""",
    ),
    "e1-wrong-gate": Mutant(
        "c05-e1",
        "names the wrong budget in one of the pools",
        "tight: stopped_by is not right",
        """
# EXERCISE c05-e1
step = {
    "wide": {"enter": ["D", "E"], "tokens_left": 593, "blocks_reserved": 535, "stopped_by": "token_budget"},
    "tight": {"enter": ["D"], "tokens_left": 2093, "blocks_reserved": 437, "stopped_by": "token_budget"},
}
""",
    ),
}
