"""Wrong answers to c07-e1, one mistake each, and what the learner must be told. Knows no right answer. Chapter 7."""

from tools.mutant_table import Mutant

MUTANTS = {
    "e1-full-hit": Mutant(
        "c07-e1",
        "lets G find both of its blocks",
        "its last block is computed again",
        """
# EXERCISE c07-e1
found = {"hits": {"C": 12, "E": 8, "F": 0, "G": 8}, "blocks_of_D": [5, 4, 3]}
""",
    ),
    "e1-one-token": Mutant(
        "c07-e1",
        "lets G compute one token, not one block",
        "only whole blocks of 4 are found; G cannot find 7",
        """
# EXERCISE c07-e1
found = {"hits": {"C": 12, "E": 8, "F": 0, "G": 7}, "blocks_of_D": [5, 4, 3]}
""",
    ),
    "e1-head-first": Mutant(
        "c07-e1",
        "gives blocks back head first",
        "Blocks go back with the head of a chain first there",
        """
# EXERCISE c07-e1
found = {"hits": {"C": 12, "E": 0, "F": 0, "G": 4}, "blocks_of_D": [5, 4, 1]}
""",
    ),
    "e1-unnamed-to-the-tail": Mutant(
        "c07-e1",
        "puts blocks without a name at the tail",
        "A block without a name goes to the tail of the queue there",
        """
# EXERCISE c07-e1
found = {"hits": {"C": 12, "E": 8, "F": 0, "G": 4}, "blocks_of_D": [4, 5, 3]}
""",
    ),
    "e1-nothing-evicted": Mutant(
        "c07-e1",
        "forgets that a block that is taken loses what it held",
        "a block that is taken loses what it held",
        """
# EXERCISE c07-e1
found = {"hits": {"C": 12, "E": 12, "F": 4, "G": 4}, "blocks_of_D": [5, 4, 3]}
""",
    ),
    "e1-by-number": Mutant(
        "c07-e1",
        "takes the blocks with the lowest numbers",
        "blocks_of_D: the right ones in another order",
        """
# EXERCISE c07-e1
found = {"hits": {"C": 12, "E": 8, "F": 0, "G": 4}, "blocks_of_D": [3, 4, 5]}
""",
    ),
    "e1-counts-blocks": Mutant(
        "c07-e1",
        "counts blocks, not tokens",
        "only whole blocks of 4 are found; C cannot find 3",
        """
# EXERCISE c07-e1
found = {"hits": {"C": 3, "E": 2, "F": 0, "G": 1}, "blocks_of_D": [5, 4, 3]}
""",
    ),
    "e1-R-is-still-there": Mutant(
        "c07-e1",
        "finds R in E although D took its block",
        "E finds an R, or F an S, that is gone",
        """
# EXERCISE c07-e1
found = {"hits": {"C": 12, "E": 12, "F": 0, "G": 4}, "blocks_of_D": [5, 4, 3]}
""",
    ),
    "e1-S-is-still-there": Mutant(
        "c07-e1",
        "finds S in F although D took its block",
        "F finds an S that is gone",
        """
# EXERCISE c07-e1
found = {"hits": {"C": 12, "E": 8, "F": 4, "G": 4}, "blocks_of_D": [5, 4, 3]}
""",
    ),
    "e1-D-takes-the-head": Mutant(
        "c07-e1",
        "lets D take the head of the chain",
        "tail first, so the head of a chain is taken last",
        """
# EXERCISE c07-e1
found = {"hits": {"C": 12, "E": 8, "F": 0, "G": 4}, "blocks_of_D": [5, 4, 1]}
""",
    ),
}
