"""Wrong answers to c01-e2, one mistake each, and what the learner must be told. Knows no right answer. Chapter 1."""

from tools.mutant_table import Mutant

MUTANTS = {
    "e2-shortest-first": Mutant(
        "c01-e2",
        "sorts from the wrong end: the part-filled batch is the one of the longest requests",
        "shortest first",
        """
# EXERCISE c01-e2
def bucket(output_lens, batch_size):
    order = sorted(range(len(output_lens)), key=lambda i: output_lens[i])
    return [order[i:i + batch_size] for i in range(0, len(order), batch_size)]
""",
    ),
    "e2-arrival-order": Mutant(
        "c01-e2",
        "cuts the list as it is",
        "order of arrival",
        """
# EXERCISE c01-e2
def bucket(output_lens, batch_size):
    order = list(range(len(output_lens)))
    return [order[i:i + batch_size] for i in range(0, len(order), batch_size)]
""",
    ),
    "e2-last-batch-dropped": Mutant(
        "c01-e2",
        "an off-by-one in range drops the batch that is not full",
        "dropped when it is not full",
        """
# EXERCISE c01-e2
def bucket(output_lens, batch_size):
    order = sorted(range(len(output_lens)), key=lambda i: -output_lens[i])
    return [order[i:i + batch_size] for i in range(0, len(order) - batch_size + 1, batch_size)]
""",
    ),
    "e2-lengths-not-indices": Mutant(
        "c01-e2",
        "returns the lengths themselves",
        "stands for no request",
        """
# EXERCISE c01-e2
def bucket(output_lens, batch_size):
    order = sorted(output_lens, reverse=True)
    return [order[i:i + batch_size] for i in range(0, len(order), batch_size)]
""",
    ),
    "e2-one-big-batch": Mutant(
        "c01-e2",
        "ignores the batch size",
        "are allowed",
        """
# EXERCISE c01-e2
def bucket(output_lens, batch_size):
    return [list(range(len(output_lens)))]
""",
    ),
    "e2-padded": Mutant(
        "c01-e2",
        "fills the last batch up with None",
        "None is no request. A batch may hold fewer",
        """
# EXERCISE c01-e2
def bucket(output_lens, batch_size):
    order = sorted(range(len(output_lens)), key=lambda i: -output_lens[i]) + [None] * batch_size
    return [order[i:i + batch_size] for i in range(0, len(output_lens), batch_size)]
""",
    ),
    "e2-index-of-length": Mutant(
        "c01-e2",
        "looks the indices up by their lengths",
        "list.index finds the first",
        """
# EXERCISE c01-e2
def bucket(output_lens, batch_size):
    order = [output_lens.index(length) for length in sorted(output_lens, reverse=True)]
    return [order[i:i + batch_size] for i in range(0, len(order), batch_size)]
""",
    ),
    "e2-longest-with-shortest": Mutant(
        "c01-e2",
        "gives the longest the shortest for company",
        "Put long ones beside long ones",
        """
# EXERCISE c01-e2
def bucket(output_lens, batch_size):
    order = sorted(range(len(output_lens)), key=lambda i: output_lens[i])
    batches = []
    while order:
        batch = [order.pop()]
        while order and len(batch) < batch_size:
            batch.append(order.pop(0))
        batches.append(batch)
    return batches
""",
    ),
    "e2-each-alone": Mutant(
        "c01-e2",
        "serves one request at a time",
        "a batch of its own",
        """
# EXERCISE c01-e2
def bucket(output_lens, batch_size):
    return [[i] for i in range(len(output_lens))]
""",
    ),
}
