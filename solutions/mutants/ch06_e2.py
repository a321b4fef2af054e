"""Wrong answers to c06-e2, one mistake each, and what the learner must be told. Knows no right answer. Chapter 6."""

from tools.mutant_table import Mutant

BODY = """
# EXERCISE c06-e2
def allocate(free_queue, num_owned, num_computed, num_new, block_size, num_known, watermark):
    take = TAKE - num_owned
    must = MUST if num_known else take
    if must + watermark > len(free_queue):
        return None, free_queue
    QUEUE
    return BLOCKS
"""
USUAL = {
    "TAKE": "-(-(num_computed + num_new) // block_size)",
    "MUST": "max(take, -(-num_known // block_size))",
    "QUEUE": "queue = free_queue",
    "BLOCKS": "queue[:take], queue[take:]",
}
DOWN = {"TAKE": "(num_computed + num_new) // block_size", "MUST": "max(take, num_known // block_size)"}


def mutant(mistake: str, says: str, **changes: str) -> Mutant:
    """The body, with what is changed in it."""
    cell = BODY
    for name, text in {**USUAL, **changes}.items():
        cell = cell.replace(name, text)
    return Mutant("c06-e2", mistake, says, cell)


MUTANTS = {
    "e2-piece-only": Mutant(
        "c06-e2",
        "asks only for num_new",
        "All num_known tokens must fit",
        """
# EXERCISE c06-e2
def allocate(free_queue, num_owned, num_computed, num_new, block_size, num_known, watermark):
    take = -(-(num_computed + num_new) // block_size) - num_owned
    must = take
    if must + watermark > len(free_queue):
        return None, free_queue
    return free_queue[:take], free_queue[take:]
""",
    ),
    "e2-takes-all": Mutant(
        "c06-e2",
        "takes the blocks of all known tokens",
        "taken are only those of num_new",
        """
# EXERCISE c06-e2
def allocate(free_queue, num_owned, num_computed, num_new, block_size, num_known, watermark):
    take = -(-(num_computed + num_new) // block_size) - num_owned
    must = max(take, -(-num_known // block_size)) if num_known else take
    if must + watermark > len(free_queue):
        return None, free_queue
    return free_queue[:must], free_queue[must:]
""",
    ),
    "e2-rounds-down": Mutant(
        "c06-e2",
        "rounds down",
        "A block that is only started is needed in full",
        """
# EXERCISE c06-e2
def allocate(free_queue, num_owned, num_computed, num_new, block_size, num_known, watermark):
    take = (num_computed + num_new) // block_size - num_owned
    must = max(take, num_known // block_size) if num_known else take
    if must + watermark > len(free_queue):
        return None, free_queue
    return free_queue[:take], free_queue[take:]
""",
    ),
    "e2-new-tokens-alone": Mutant(
        "c06-e2",
        "counts the new tokens by themselves",
        "as if the last block were full",
        """
# EXERCISE c06-e2
def allocate(free_queue, num_owned, num_computed, num_new, block_size, num_known, watermark):
    take = -(-num_new // block_size)
    must = max(take, -(-num_known // block_size)) if num_known else take
    if must + watermark > len(free_queue):
        return None, free_queue
    return free_queue[:take], free_queue[take:]
""",
    ),
    "e2-owned-forgotten": Mutant(
        "c06-e2",
        "forgets the blocks it has",
        "gets all its blocks again",
        """
# EXERCISE c06-e2
def allocate(free_queue, num_owned, num_computed, num_new, block_size, num_known, watermark):
    take = -(-(num_computed + num_new) // block_size)
    must = max(take, -(-num_known // block_size)) if num_known else take
    if must + watermark > len(free_queue):
        return None, free_queue
    return free_queue[:take], free_queue[take:]
""",
    ),
    "e2-no-watermark": Mutant(
        "c06-e2",
        "ignores the watermark",
        "The watermark is ignored",
        """
# EXERCISE c06-e2
def allocate(free_queue, num_owned, num_computed, num_new, block_size, num_known, watermark):
    take = -(-(num_computed + num_new) // block_size) - num_owned
    must = max(take, -(-num_known // block_size)) if num_known else take
    if must > len(free_queue):
        return None, free_queue
    return free_queue[:take], free_queue[take:]
""",
    ),
    "e2-watermark-beside-piece": Mutant(
        "c06-e2",
        "asks for the watermark beside num_new only",
        "beside all known tokens too",
        """
# EXERCISE c06-e2
def allocate(free_queue, num_owned, num_computed, num_new, block_size, num_known, watermark):
    take = -(-(num_computed + num_new) // block_size) - num_owned
    must = max(take, -(-num_known // block_size)) if num_known else take
    if take + watermark > len(free_queue) or must > len(free_queue):
        return None, free_queue
    return free_queue[:take], free_queue[take:]
""",
    ),
    "e2-strict": Mutant(
        "c06-e2",
        "refuses what fits exactly",
        "Exactly enough is refused",
        """
# EXERCISE c06-e2
def allocate(free_queue, num_owned, num_computed, num_new, block_size, num_known, watermark):
    take = -(-(num_computed + num_new) // block_size) - num_owned
    must = max(take, -(-num_known // block_size)) if num_known else take
    if must + watermark >= len(free_queue):
        return None, free_queue
    return free_queue[:take], free_queue[take:]
""",
    ),
    "e2-from-tail": Mutant(
        "c06-e2",
        "takes from the tail",
        "They are taken from its head",
        """
# EXERCISE c06-e2
def allocate(free_queue, num_owned, num_computed, num_new, block_size, num_known, watermark):
    take = -(-(num_computed + num_new) // block_size) - num_owned
    must = max(take, -(-num_known // block_size)) if num_known else take
    if must + watermark > len(free_queue):
        return None, free_queue
    return free_queue[::-1][:take], free_queue[: len(free_queue) - take]
""",
    ),
    "e2-hands-out-what-there-is": Mutant(
        "c06-e2",
        "hands out what there is",
        "It gets None, and nothing has changed",
        """
# EXERCISE c06-e2
def allocate(free_queue, num_owned, num_computed, num_new, block_size, num_known, watermark):
    take = -(-(num_computed + num_new) // block_size) - num_owned
    must = max(take, -(-num_known // block_size)) if num_known else take
    if must + watermark > len(free_queue):
        return free_queue, []
    return free_queue[:take], free_queue[take:]
""",
    ),
    "e2-empty-queue": Mutant(
        "c06-e2",
        "refuses whenever the queue is empty",
        "An empty queue is refused",
        """
# EXERCISE c06-e2
def allocate(free_queue, num_owned, num_computed, num_new, block_size, num_known, watermark):
    take = -(-(num_computed + num_new) // block_size) - num_owned
    must = max(take, -(-num_known // block_size)) if num_known else take
    if not free_queue or must + watermark > len(free_queue):
        return None, free_queue
    return free_queue[:take], free_queue[take:]
""",
    ),
    "e2-takes-watermark": Mutant(
        "c06-e2",
        "takes the watermark's blocks",
        "They stay free",
        """
# EXERCISE c06-e2
def allocate(free_queue, num_owned, num_computed, num_new, block_size, num_known, watermark):
    take = -(-(num_computed + num_new) // block_size) - num_owned
    must = max(take, -(-num_known // block_size)) if num_known else take
    if must + watermark > len(free_queue):
        return None, free_queue
    take += watermark
    return free_queue[:take], free_queue[take:]
""",
    ),
    "e2-changes-on-failure": Mutant(
        "c06-e2",
        "has taken blocks before it finds out",
        "a failure changes nothing",
        """
# EXERCISE c06-e2
def allocate(free_queue, num_owned, num_computed, num_new, block_size, num_known, watermark):
    take = -(-(num_computed + num_new) // block_size) - num_owned
    must = max(take, -(-num_known // block_size)) if num_known else take
    left = list(free_queue)
    blocks = [left.pop(0) for _ in range(min(take, len(left)))]
    return (None if must + watermark > len(free_queue) else blocks), left
""",
    ),
    "e2-taken-rounded-down": mutant(
        "rounds only what is taken down", "only started is needed in full", TAKE=DOWN["TAKE"]
    ),
    "e2-rounded-down-not-below-0": mutant(
        "rounds down, and never below nothing",
        "only started is needed in full",
        TAKE="max(num_owned, (num_computed + num_new) // block_size)",
        MUST=DOWN["MUST"],
    ),
    "e2-known-rounded-down": mutant(
        "rounds only all known tokens down", "of all known tokens are rounded down", MUST=DOWN["MUST"]
    ),
    "e2-plus-one": mutant(
        "divides down and adds 1",
        "adding 1 is one too many",
        TAKE="(num_computed + num_new) // block_size + 1",
        MUST="max(take, num_known // block_size + 1)",
    ),
    "e2-known-and-piece": mutant(
        "adds the blocks of the piece to those of all", "They are among them", MUST="take + -(-num_known // block_size)"
    ),
    "e2-known-and-piece-in-tokens": mutant(
        "adds the tokens of the piece to all", "They are among them", MUST="-(-(num_known + num_new) // block_size)"
    ),
    "e2-tail-in-order": mutant(
        "takes from the tail, in the queue's order",
        "They are taken from its head",
        QUEUE="queue, end = free_queue, len(free_queue) - take",
        BLOCKS="queue[end:], queue[:end]",
    ),
    "e2-minus-take": mutant(
        "takes queue[-take:], also where take is 0",
        "queue[-0:] is the whole queue",
        BLOCKS="queue[-take:], queue[:-take]",
    ),
    "e2-sorted": mutant("sorts the queue", "The queue knows an order, not numbers", QUEUE="queue = sorted(free_queue)"),
    "e2-lowest-first": mutant(
        "takes the lowest numbers and leaves the rest in order",
        "The queue knows an order, not numbers",
        QUEUE="low = sorted(free_queue)[:take]",
        BLOCKS="low, [block for block in free_queue if block not in low]",
    ),
}
