"""Wrong answers to c04-e1, one mistake each, and what the learner must be told. Knows no right answer. Chapter 4."""

from tools.mutant_table import Mutant

MUTANTS = {
    "e1-newcomers-first": Mutant(
        "c04-e1",
        "serves the line before those who run",
        "Whoever waits is served before those who run",
        """
# EXERCISE c04-e1
plans = [
    {"A": 3, "B": 2, "C": 1},
    {"D": 4, "A": 1, "B": 1},
    {"A": 1, "B": 1, "C": 4},
    {"A": 1, "B": 1},
    {"A": 1, "B": 1},
    {"A": 1, "B": 1},
    {"C": 6},
    {"B": 1, "C": 1},
    {"D": 5, "C": 1},
]
""",
    ),
    "e1-nothing-cut": Mutant(
        "c04-e1",
        "lets prompts in only whole",
        "Prompts enter whole there",
        """
# EXERCISE c04-e1
plans = [
    {"A": 3, "B": 2},
    {"A": 1, "B": 1},
    {"A": 1, "B": 1},
    {"A": 1, "B": 1},
    {"A": 1, "B": 1},
    {"A": 1, "B": 1},
    {"B": 1},
    {"C": 6},
    {"C": 1, "D": 4},
    {"C": 1, "D": 1},
]
""",
    ),
    "e1-first-evicted": Mutant(
        "c04-e1",
        "evicts the one who was admitted first",
        "The first of the running is evicted there",
        """
# EXERCISE c04-e1
plans = [
    {"A": 3, "B": 2, "C": 1},
    {"A": 1, "B": 1, "C": 4},
    {"A": 1, "B": 1, "C": 1},
    {"B": 1, "C": 1},
    {"B": 1, "C": 1},
    {"B": 1, "A": 5},
    {"B": 1, "A": 1, "D": 4},
    {"A": 1, "D": 1},
    {"A": 1},
]
""",
    ),
    "e1-gives-way-itself": Mutant(
        "c04-e1",
        "lets the one who needs the block give way",
        "gives way itself there",
        """
# EXERCISE c04-e1
plans = [
    {"A": 3, "B": 2, "C": 1},
    {"A": 1, "B": 1, "C": 4},
    {"A": 1, "B": 1, "C": 1},
    {"A": 1, "C": 1},
    {"A": 1, "C": 1},
    {"A": 1, "B": 5},
    {"B": 1, "D": 4},
    {"B": 1, "D": 1},
    {"B": 1},
]
""",
    ),
    "e1-passes-over": Mutant(
        "c04-e1",
        "passes over a head that does not fit",
        "A head that does not fit is passed over there",
        """
# EXERCISE c04-e1
plans = [
    {"A": 3, "B": 2, "C": 1},
    {"A": 1, "B": 1, "C": 4},
    {"A": 1, "B": 1, "C": 1},
    {"A": 1, "B": 1},
    {"A": 1, "B": 1, "D": 4},
    {"A": 1, "B": 1},
    {"B": 1, "D": 5},
    {"C": 6},
    {"C": 1},
    {"C": 1},
]
""",
    ),
    "e1-to-the-back": Mutant(
        "c04-e1",
        "sends the evicted one to the end of the line",
        "goes to the end of the line there",
        """
# EXERCISE c04-e1
plans = [
    {"A": 3, "B": 2, "C": 1},
    {"A": 1, "B": 1, "C": 4},
    {"A": 1, "B": 1, "C": 1},
    {"A": 1, "B": 1},
    {"A": 1, "B": 1, "D": 4},
    {"A": 1, "B": 1},
    {"B": 1, "C": 5},
    {"C": 2, "D": 4},
    {"C": 1, "D": 1},
]
""",
    ),
    "e1-prompt-only": Mutant(
        "c04-e1",
        "recomputes only the prompt",
        "computes only its prompt there",
        """
# EXERCISE c04-e1
plans = [
    {"A": 3, "B": 2, "C": 1},
    {"A": 1, "B": 1, "C": 4},
    {"A": 1, "B": 1, "C": 1},
    {"A": 1, "B": 1},
    {"A": 1, "B": 1},
    {"A": 1, "B": 1},
    {"B": 1, "C": 5},
    {"C": 1, "D": 4},
    {"C": 1, "D": 1},
    {"C": 1},
]
""",
    ),
    "e1-keeps-kv": Mutant(
        "c04-e1",
        "lets the evicted one go on where it was",
        "keeps its computed tokens there",
        """
# EXERCISE c04-e1
plans = [
    {"A": 3, "B": 2, "C": 1},
    {"A": 1, "B": 1, "C": 4},
    {"A": 1, "B": 1, "C": 1},
    {"A": 1, "B": 1},
    {"A": 1, "B": 1},
    {"A": 1, "B": 1},
    {"B": 1, "C": 1, "D": 4},
    {"C": 1, "D": 1},
]
""",
    ),
    "e1-piece-fits": Mutant(
        "c04-e1",
        "asks only for the blocks of the piece",
        "needs blocks only for its piece there",
        """
# EXERCISE c04-e1
plans = [
    {"A": 3, "B": 2, "C": 1},
    {"A": 1, "B": 1, "C": 4},
    {"A": 1, "B": 1, "C": 1},
    {"A": 1, "B": 1},
    {"A": 1, "B": 1, "C": 4},
    {"A": 1, "B": 1},
    {"B": 1, "C": 5},
    {"C": 2, "D": 4},
    {"C": 1, "D": 1},
]
""",
    ),
    "e1-block-too-early": Mutant(
        "c04-e1",
        "takes a block for the sampled token",
        "A block is taken one step early there",
        """
# EXERCISE c04-e1
plans = [
    {"A": 3, "B": 2, "C": 1},
    {"A": 1, "B": 1, "C": 4},
    {"A": 1, "B": 1},
    {"A": 1, "B": 1},
    {"A": 1, "B": 1},
    {"A": 1, "B": 1},
    {"B": 1, "C": 5},
    {"C": 1, "D": 4},
    {"C": 1, "D": 1},
    {"C": 1},
]
""",
    ),
    "e1-first-token-late": Mutant(
        "c04-e1",
        "samples nothing at the end of a prompt",
        "The end of a prompt gives no token there",
        """
# EXERCISE c04-e1
plans = [
    {"A": 3, "B": 2, "C": 1},
    {"A": 1, "B": 1, "C": 4},
    {"A": 1, "B": 1, "C": 1},
    {"A": 1, "B": 1},
    {"A": 1, "B": 1},
    {"A": 1, "B": 1},
    {"A": 1, "B": 1},
    {"B": 1, "C": 5},
    {"C": 2, "D": 4},
    {"C": 1, "D": 1},
    {"C": 1, "D": 1},
]
""",
    ),
    "e1-over-budget": Mutant(
        "c04-e1",
        "hands out more than the budget",
        "step 1: 7 tokens are more than the budget of 6",
        """
# EXERCISE c04-e1
plans = [
    {"A": 3, "B": 2, "C": 1},
    {"A": 1, "B": 1, "C": 5},
    {"A": 1, "B": 1, "C": 1},
    {"A": 1, "B": 1},
    {"A": 1, "B": 1},
    {"A": 1, "B": 1},
    {"B": 1, "C": 5},
    {"C": 2, "D": 4},
    {"C": 1, "D": 1},
]
""",
    ),
}
