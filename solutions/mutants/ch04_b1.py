"""Wrong answers to c04-b1, one mistake each, and what the learner must be told. Knows no right answer. Chapter 4."""

from tools.mutant_table import Mutant

MUTANTS = {
    "b1-only-the-blocks": Mutant(
        "c04-b1",
        "gives blocks back and leaves the line alone",
        "stays in the line",
        """
# EXERCISE c04-b1
def abort(gone, waiting, running, blocks, num_free):
    for name in gone:
        if name in running:
            running.remove(name)
            num_free += blocks.pop(name)
    return waiting, running, blocks, num_free
""",
    ),
    "b1-only-the-line": Mutant(
        "c04-b1",
        "mends the line and not the blocks",
        "the blocks of those who ran are still nobody's",
        """
# EXERCISE c04-b1
def abort(gone, waiting, running, blocks, num_free):
    for name in gone:
        if name in running:
            running.remove(name)
            blocks.pop(name)
        elif name in waiting:
            waiting.remove(name)
    return waiting, running, blocks, num_free
""",
    ),
    "b1-asks-the-waiting-for-blocks": Mutant(
        "c04-b1",
        "asks those who wait for blocks that they do not have",
        "Who waits owns no blocks",
        """
# EXERCISE c04-b1
def abort(gone, waiting, running, blocks, num_free):
    for name in gone:
        num_free += blocks.pop(name)
        if name in running:
            running.remove(name)
        else:
            waiting.remove(name)
    return waiting, running, blocks, num_free
""",
    ),
    "b1-everybody-waits-or-runs": Mutant(
        "c04-b1",
        "takes for granted that whoever does not run waits",
        "Look before you take it out",
        """
# EXERCISE c04-b1
def abort(gone, waiting, running, blocks, num_free):
    for name in gone:
        if name in running:
            running.remove(name)
            num_free += blocks.pop(name)
        else:
            waiting.remove(name)
    return waiting, running, blocks, num_free
""",
    ),
    "b1-twice": Mutant(
        "c04-b1",
        "gives the blocks of one who hangs up twice back twice",
        "gives them back twice",
        """
# EXERCISE c04-b1
def abort(gone, waiting, running, blocks, num_free):
    for name in gone:
        num_free += blocks.get(name, 0)
        waiting = [other for other in waiting if other != name]
        running = [other for other in running if other != name]
    return waiting, running, blocks, num_free
""",
    ),
    "b1-one-block-each": Mutant(
        "c04-b1",
        "gives one block back for each request",
        "One block comes back for each request there",
        """
# EXERCISE c04-b1
def abort(gone, waiting, running, blocks, num_free):
    for name in gone:
        if name in running:
            running.remove(name)
            del blocks[name]
            num_free += 1
        if name in waiting:
            waiting.remove(name)
    return waiting, running, blocks, num_free
""",
    ),
    "b1-four-blocks-each": Mutant(
        "c04-b1",
        "gives four blocks back for each request, as many as in the incident",
        "Give back as many as it holds",
        """
# EXERCISE c04-b1
def abort(gone, waiting, running, blocks, num_free):
    for name in gone:
        if name in running:
            running.remove(name)
            blocks.pop(name)
            num_free += 4
        elif name in waiting:
            waiting.remove(name)
    return waiting, running, blocks, num_free
""",
    ),
    "b1-seat-kept": Mutant(
        "c04-b1",
        "frees the blocks and keeps the seat",
        "but the seat does not",
        """
# EXERCISE c04-b1
def abort(gone, waiting, running, blocks, num_free):
    for name in gone:
        num_free += blocks.pop(name, 0)
        if name in waiting:
            waiting.remove(name)
    return waiting, running, blocks, num_free
""",
    ),
    "b1-out-of-order": Mutant(
        "c04-b1",
        "makes sets of the lists",
        "expected",
        """
# EXERCISE c04-b1
def abort(gone, waiting, running, blocks, num_free):
    for name in set(gone):
        num_free += blocks.pop(name, 0)
    return sorted(set(waiting) - set(gone)), sorted(set(running) - set(gone)), blocks, num_free
""",
    ),
}
