"""Wrong answers to c07-b1, one mistake each, and what the learner must be told. Knows no right answer. Chapter 7."""

from tools.mutant_table import Mutant

MUTANTS = {
    "b1-one-token": Mutant(
        "c07-b1",
        "takes one token off a full hit",
        "the second patch of the incident",
        """
# EXERCISE c07-b1
def enter(token_ids, cache, block_size):
    names = [tuple(token_ids[:end]) for end in range(block_size, len(token_ids) + 1, block_size)]
    found = 0
    while found < len(names) and names[found] in cache:
        found += 1
    cache.update(names)
    start = min(found * block_size, len(token_ids) - 1)
    return start, len(token_ids) - start
""",
    ),
    "b1-at-least-one": Mutant(
        "c07-b1",
        "computes at least one token and starts where it did",
        "the first patch of the incident",
        """
# EXERCISE c07-b1
def enter(token_ids, cache, block_size):
    names = [tuple(token_ids[:end]) for end in range(block_size, len(token_ids) + 1, block_size)]
    found = 0
    while found < len(names) and names[found] in cache:
        found += 1
    cache.update(names)
    start = found * block_size
    return start, max(1, len(token_ids) - start)
""",
    ),
    "b1-always-one-less": Mutant(
        "c07-b1",
        "always gives the last found block back",
        "The last block that was found is always given back",
        """
# EXERCISE c07-b1
def enter(token_ids, cache, block_size):
    names = [tuple(token_ids[:end]) for end in range(block_size, len(token_ids) + 1, block_size)]
    found = 0
    while found < len(names) and names[found] in cache:
        found += 1
    cache.update(names)
    start = max(0, found - 1) * block_size
    return start, len(token_ids) - start
""",
    ),
    "b1-full-hit-is-none": Mutant(
        "c07-b1",
        "computes everything after a full hit",
        "A full hit counts as no hit there",
        """
# EXERCISE c07-b1
def enter(token_ids, cache, block_size):
    names = [tuple(token_ids[:end]) for end in range(block_size, len(token_ids) + 1, block_size)]
    found = 0
    while found < len(names) and names[found] in cache:
        found += 1
    cache.update(names)
    start = found * block_size
    if start == len(token_ids):
        start = 0
    return start, len(token_ids) - start
""",
    ),
    "b1-by-length-alone": Mutant(
        "c07-b1",
        "gives a block back whenever the length is a multiple of the block size",
        "even if the hit was not full",
        """
# EXERCISE c07-b1
def enter(token_ids, cache, block_size):
    names = [tuple(token_ids[:end]) for end in range(block_size, len(token_ids) + 1, block_size)]
    found = 0
    while found < len(names) and names[found] in cache:
        found += 1
    cache.update(names)
    if len(token_ids) % block_size == 0 and found:
        found -= 1
    return found * block_size, len(token_ids) - found * block_size
""",
    ),
    "b1-caches-less": Mutant(
        "c07-b1",
        "does not cache the last block any more",
        "the last block of a prompt without a tail is not cached any more",
        """
# EXERCISE c07-b1
def enter(token_ids, cache, block_size):
    names = [tuple(token_ids[:end]) for end in range(block_size, len(token_ids), block_size)]
    found = 0
    while found < len(names) and names[found] in cache:
        found += 1
    cache.update(names)
    start = found * block_size
    return start, len(token_ids) - start
""",
    ),
    "b1-finds-itself": Mutant(
        "c07-b1",
        "caches its names before it looks them up",
        "so every prompt finds itself",
        """
# EXERCISE c07-b1
def enter(token_ids, cache, block_size):
    names = [tuple(token_ids[:end]) for end in range(block_size, len(token_ids) + 1, block_size)]
    cache.update(names)
    found = 0
    while found < (len(token_ids) - 1) // block_size and names[found] in cache:
        found += 1
    start = found * block_size
    return start, len(token_ids) - start
""",
    ),
    "b1-all-but-one": Mutant(
        "c07-b1",
        "never finds the last full block, whatever stands behind it",
        "also where a tail is left to compute",
        """
# EXERCISE c07-b1
def enter(token_ids, cache, block_size):
    names = [tuple(token_ids[:end]) for end in range(block_size, len(token_ids) + 1, block_size)]
    most = len(names) - 1
    found = 0
    while found < most and names[found] in cache:
        found += 1
    cache.update(names)
    start = found * block_size
    return start, len(token_ids) - start
""",
    ),
    "b1-nothing-cached": Mutant(
        "c07-b1",
        "puts nothing into the cache",
        "Nothing is put into the cache there",
        """
# EXERCISE c07-b1
def enter(token_ids, cache, block_size):
    names = [tuple(token_ids[:end]) for end in range(block_size, len(token_ids) + 1, block_size)]
    most = (len(token_ids) - 1) // block_size
    found = 0
    while found < most and names[found] in cache:
        found += 1
    start = found * block_size
    return start, len(token_ids) - start
""",
    ),
    "b1-swapped": Mutant(
        "c07-b1",
        "returns the two the wrong way round",
        "the two are swapped; start comes first",
        """
# EXERCISE c07-b1
def enter(token_ids, cache, block_size):
    names = [tuple(token_ids[:end]) for end in range(block_size, len(token_ids) + 1, block_size)]
    most = (len(token_ids) - 1) // block_size
    found = 0
    while found < most and names[found] in cache:
        found += 1
    cache.update(names)
    start = found * block_size
    return len(token_ids) - start, start
""",
    ),
    "b1-whole-prompt": Mutant(
        "c07-b1",
        "computes the whole prompt from the start on",
        "What stands before the start is not computed again",
        """
# EXERCISE c07-b1
def enter(token_ids, cache, block_size):
    names = [tuple(token_ids[:end]) for end in range(block_size, len(token_ids) + 1, block_size)]
    most = (len(token_ids) - 1) // block_size
    found = 0
    while found < most and names[found] in cache:
        found += 1
    cache.update(names)
    start = found * block_size
    return start, len(token_ids)
""",
    ),
}
