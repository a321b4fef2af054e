"""Wrong answers to c01-e1, one mistake each, and what the learner must be told. Knows no right answer. Chapter 1."""

from tools.mutant_table import Mutant

MUTANTS = {
    "e1-mean-of-wastes": Mutant(
        "c01-e1",
        "averages the wastes of the batches, as if a short batch cost as much as a long one",
        "mean of the batches' wastes",
        """
# EXERCISE c01-e1
def static_waste(output_lens, batch_size):
    wastes = []
    for start in range(0, len(output_lens), batch_size):
        batch = output_lens[start:start + batch_size]
        wastes.append(1 - sum(batch) / (batch_size * max(batch)))
    return sum(wastes) / len(wastes)
""",
    ),
    "e1-empty-slots-forgotten": Mutant(
        "c01-e1",
        "counts only slots with somebody in them, so the last batch looks full",
        "empty slots of the last batch",
        """
# EXERCISE c01-e1
def static_waste(output_lens, batch_size):
    paid = 0
    for start in range(0, len(output_lens), batch_size):
        batch = output_lens[start:start + batch_size]
        paid += len(batch) * max(batch)
    return 1 - sum(output_lens) / paid
""",
    ),
    "e1-longest-of-all": Mutant(
        "c01-e1",
        "lets every batch run as long as the longest request of all",
        "the longest request of all",
        """
# EXERCISE c01-e1
import math
def static_waste(output_lens, batch_size):
    batches = math.ceil(len(output_lens) / batch_size)
    return 1 - sum(output_lens) / (batches * batch_size * max(output_lens))
""",
    ),
    "e1-useful-share": Mutant(
        "c01-e1",
        "returns the share that is used",
        "useful share",
        """
# EXERCISE c01-e1
def static_waste(output_lens, batch_size):
    paid = sum(batch_size * max(output_lens[i:i + batch_size]) for i in range(0, len(output_lens), batch_size))
    return sum(output_lens) / paid
""",
    ),
    "e1-percent": Mutant(
        "c01-e1",
        "returns percent",
        "off by 100: percent instead of a share between 0 and 1?",
        """
# EXERCISE c01-e1
def static_waste(output_lens, batch_size):
    paid = sum(batch_size * max(output_lens[i:i + batch_size]) for i in range(0, len(output_lens), batch_size))
    return 100 - 100 * sum(output_lens) / paid
""",
    ),
    "e1-rounded": Mutant(
        "c01-e1",
        "rounds to two digits",
        "rounded; give the number in full",
        """
# EXERCISE c01-e1
def static_waste(output_lens, batch_size):
    paid = sum(batch_size * max(output_lens[i:i + batch_size]) for i in range(0, len(output_lens), batch_size))
    return round(1 - sum(output_lens) / paid, 2)
""",
    ),
    "e1-whole-number": Mutant(
        "c01-e1",
        "divides with //",
        "does // stand where / is meant?",
        """
# EXERCISE c01-e1
def static_waste(output_lens, batch_size):
    paid = sum(batch_size * max(output_lens[i:i + batch_size]) for i in range(0, len(output_lens), batch_size))
    return (paid - sum(output_lens)) // paid
""",
    ),
    "e1-of-the-useful": Mutant(
        "c01-e1",
        "divides the idle slot-steps by the useful ones",
        "divides by the useful slot-steps only",
        """
# EXERCISE c01-e1
def static_waste(output_lens, batch_size):
    idle = -sum(output_lens)
    for start in range(0, len(output_lens), batch_size):
        idle += batch_size * max(output_lens[start:start + batch_size])
    return idle / sum(output_lens)
""",
    ),
    "e1-empty-slots-not-idle": Mutant(
        "c01-e1",
        "counts the idle slot-steps request by request, and so never those of an empty slot",
        "empty slots of the last batch are missing",
        """
# EXERCISE c01-e1
def static_waste(output_lens, batch_size):
    idle = total = 0
    for start in range(0, len(output_lens), batch_size):
        batch = output_lens[start:start + batch_size]
        total += batch_size * max(batch)
        for length in batch:
            idle += max(batch) - length
    return idle / total
""",
    ),
    "e1-nan": Mutant(
        "c01-e1",
        "returns something that compares as false with everything",
        "no finite number",
        """
# EXERCISE c01-e1
def static_waste(output_lens, batch_size):
    return float("nan")
""",
    ),
    "e1-one-batch": Mutant(
        "c01-e1",
        "copies the chapter's formula, which is for one batch, and gives it the whole list",
        "takes the whole list as one batch",
        """
# EXERCISE c01-e1
def static_waste(output_lens, batch_size):
    return 1 - sum(output_lens) / (batch_size * max(output_lens))
""",
    ),
}
