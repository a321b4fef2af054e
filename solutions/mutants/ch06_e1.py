"""Wrong answers to c06-e1, one mistake each, and what the learner must be told. Knows no right answer. Chapter 6."""

from tools.mutant_table import Mutant

MUTANTS = {
    "e1-head-first": Mutant(
        "c06-e1",
        "gives A's blocks back head first",
        "its last block first",
        """
# EXERCISE c06-e1
pool = {"table_of_D": [2, 6, 7], "free_queue": [4, 5, 8], "slot_of_token_9_of_D": 29}
""",
    ),
    "e1-to-the-back": Mutant(
        "c06-e1",
        "puts freed blocks behind the free ones",
        "so they go to the front",
        """
# EXERCISE c06-e1
pool = {"table_of_D": [8, 6, 2], "free_queue": [1, 5, 4], "slot_of_token_9_of_D": 9}
""",
    ),
    "e1-lowest-number": Mutant(
        "c06-e1",
        "takes the lowest free numbers",
        "The queue knows an order, not numbers",
        """
# EXERCISE c06-e1
pool = {"table_of_D": [2, 6, 7], "free_queue": [5, 4, 8], "slot_of_token_9_of_D": 29}
""",
    ),
    "e1-block-a-piece": Mutant(
        "c06-e1",
        "starts a block for every piece",
        "as long as that has room",
        """
# EXERCISE c06-e1
pool = {"table_of_D": [2, 1, 8], "free_queue": [5, 4], "slot_of_token_9_of_D": 33}
""",
    ),
    "e1-slot-from-block-1": Mutant(
        "c06-e1",
        "counts slots from block 1",
        "Block 0 has slots too",
        """
# EXERCISE c06-e1
pool = {"table_of_D": [2, 1, 7], "free_queue": [5, 4, 8], "slot_of_token_9_of_D": 25}
""",
    ),
    "e1-slot-is-token": Mutant(
        "c06-e1",
        "takes the token's number for its slot",
        "The slot is the token's own number",
        """
# EXERCISE c06-e1
pool = {"table_of_D": [2, 1, 7], "free_queue": [5, 4, 8], "slot_of_token_9_of_D": 9}
""",
    ),
    "e1-slot-from-first-block": Mutant(
        "c06-e1",
        "counts on from D's first block",
        "as if its blocks lay side by side",
        """
# EXERCISE c06-e1
pool = {"table_of_D": [2, 1, 7], "free_queue": [5, 4, 8], "slot_of_token_9_of_D": 17}
""",
    ),
    "e1-two-blocks": Mutant(
        "c06-e1",
        "rounds ten tokens down to two blocks",
        "need a certain number of blocks",
        """
# EXERCISE c06-e1
pool = {"table_of_D": [2, 1], "free_queue": [5, 4, 7, 8], "slot_of_token_9_of_D": 9}
""",
    ),
    "e1-both-free-and-taken": Mutant(
        "c06-e1",
        "leaves a taken block in the queue",
        "block 7 cannot belong to D and be free",
        """
# EXERCISE c06-e1
pool = {"table_of_D": [2, 1, 7], "free_queue": [5, 4, 7, 8], "slot_of_token_9_of_D": 29}
""",
    ),
    "e1-queue-wrong": Mutant(
        "c06-e1",
        "forgets that C ends",
        "free_queue is not right",
        """
# EXERCISE c06-e1
pool = {"table_of_D": [2, 1, 7], "free_queue": [8], "slot_of_token_9_of_D": 29}
""",
    ),
    "e1-table-sorted": Mutant(
        "c06-e1",
        "sorts the table of D",
        "A table keeps the order",
        """
# EXERCISE c06-e1
pool = {"table_of_D": [1, 2, 7], "free_queue": [5, 4, 8], "slot_of_token_9_of_D": 29}
""",
    ),
    "e1-all-sorted": Mutant(
        "c06-e1",
        "sorts the table of D and the queue",
        "in the order of their numbers",
        """
# EXERCISE c06-e1
pool = {"table_of_D": [1, 2, 7], "free_queue": [4, 5, 8], "slot_of_token_9_of_D": 29}
""",
    ),
    "e1-c-head-first": Mutant(
        "c06-e1",
        "gives only C's blocks back head first",
        "All is right but C's blocks: they are given back first block first",
        """
# EXERCISE c06-e1
pool = {"table_of_D": [2, 1, 7], "free_queue": [4, 5, 8], "slot_of_token_9_of_D": 29}
""",
    ),
    "e1-c-to-the-back": Mutant(
        "c06-e1",
        "puts only C's blocks behind the free ones",
        "they are put behind the free ones",
        """
# EXERCISE c06-e1
pool = {"table_of_D": [2, 1, 7], "free_queue": [8, 5, 4], "slot_of_token_9_of_D": 29}
""",
    ),
    "e1-c-to-the-back-in-order": Mutant(
        "c06-e1",
        "puts C's blocks behind the free ones in their order",
        "they are put behind the free ones",
        """
# EXERCISE c06-e1
pool = {"table_of_D": [2, 1, 7], "free_queue": [8, 4, 5], "slot_of_token_9_of_D": 29}
""",
    ),
    "e1-tokens-from-1": Mutant(
        "c06-e1",
        "counts tokens from 1 in the slot",
        "token 9 is the tenth",
        """
# EXERCISE c06-e1
pool = {"table_of_D": [2, 1, 7], "free_queue": [5, 4, 8], "slot_of_token_9_of_D": 28}
""",
    ),
}
