"""Wrong answers to c07-e2, one mistake each, and what the learner must be told. Knows no right answer. Chapter 7."""

from tools.mutant_table import Mutant

MUTANTS = {
    "e2-own-tokens": Mutant(
        "c07-e2",
        "names a block by its own tokens",
        "That names a block by its own tokens alone",
        """
# EXERCISE c07-e2
def block_names(requests, block_size):
    out = []
    for tokens, salt, adapter, images in requests:
        pictures = list(images)
        tokens = [t or "image " + pictures.pop(0) for t in tokens]
        n = len(tokens) // block_size
        out.append([repr((salt, adapter, tokens[i * block_size:(i + 1) * block_size])) for i in range(n)])
    return out
""",
    ),
    "e2-one-block-back": Mutant(
        "c07-e2",
        "puts the tokens of the block before into the name, not its name",
        "That looks one block back and no further",
        """
# EXERCISE c07-e2
def block_names(requests, block_size):
    out = []
    for tokens, salt, adapter, images in requests:
        pictures = list(images)
        tokens = [t or "image " + pictures.pop(0) for t in tokens]
        names, before = [], None
        for i in range(len(tokens) // block_size):
            block = tokens[i * block_size:(i + 1) * block_size]
            names.append(repr((salt, adapter, before, block)))
            before = block
        out.append(names)
    return out
""",
    ),
    "e2-no-salt": Mutant(
        "c07-e2",
        "leaves the salt out",
        "The salt is in no name",
        """
# EXERCISE c07-e2
def block_names(requests, block_size):
    out = []
    for tokens, salt, adapter, images in requests:
        pictures = list(images)
        tokens = [t or "image " + pictures.pop(0) for t in tokens]
        ends = range(block_size, len(tokens) + 1, block_size)
        out.append([repr((adapter, tokens[:end])) for end in ends])
    return out
""",
    ),
    "e2-no-adapter": Mutant(
        "c07-e2",
        "leaves the adapter out",
        "The adapter is in no name",
        """
# EXERCISE c07-e2
def block_names(requests, block_size):
    out = []
    for tokens, salt, adapter, images in requests:
        pictures = list(images)
        tokens = [t or "image " + pictures.pop(0) for t in tokens]
        ends = range(block_size, len(tokens) + 1, block_size)
        out.append([repr((salt, tokens[:end])) for end in ends])
    return out
""",
    ),
    "e2-joined": Mutant(
        "c07-e2",
        "joins salt and adapter to one text",
        "joined without saying which is which",
        """
# EXERCISE c07-e2
def block_names(requests, block_size):
    out = []
    for tokens, salt, adapter, images in requests:
        pictures = list(images)
        tokens = [t or "image " + pictures.pop(0) for t in tokens]
        ends = range(block_size, len(tokens) + 1, block_size)
        out.append([(adapter or "") + (salt or "") + repr(tokens[:end]) for end in ends])
    return out
""",
    ),
    "e2-joined-by-a-slash": Mutant(
        "c07-e2",
        "joins salt and adapter with a slash between them",
        "joined by a sign that may stand in them",
        """
# EXERCISE c07-e2
def block_names(requests, block_size):
    out = []
    for tokens, salt, adapter, images in requests:
        pictures = list(images)
        tokens = [t or "image " + pictures.pop(0) for t in tokens]
        ends = range(block_size, len(tokens) + 1, block_size)
        out.append(["/".join([salt or "", adapter or "", repr(tokens[:end])]) for end in ends])
    return out
""",
    ),
    "e2-no-images": Mutant(
        "c07-e2",
        "names by token ids and forgets the pictures",
        "The images are in no name",
        """
# EXERCISE c07-e2
def block_names(requests, block_size):
    out = []
    for tokens, salt, adapter, images in requests:
        ends = range(block_size, len(tokens) + 1, block_size)
        out.append([repr((salt, adapter, tokens[:end])) for end in ends])
    return out
""",
    ),
    "e2-all-images": Mutant(
        "c07-e2",
        "puts all pictures of the prompt into every name",
        "All images of the prompt are in every name",
        """
# EXERCISE c07-e2
def block_names(requests, block_size):
    out = []
    for tokens, salt, adapter, images in requests:
        ends = range(block_size, len(tokens) + 1, block_size)
        out.append([repr((salt, adapter, images, tokens[:end])) for end in ends])
    return out
""",
    ),
    "e2-partial": Mutant(
        "c07-e2",
        "names the last block although it is not full",
        "although it is not full",
        """
# EXERCISE c07-e2
def block_names(requests, block_size):
    out = []
    for tokens, salt, adapter, images in requests:
        pictures = list(images)
        tokens = [t or "image " + pictures.pop(0) for t in tokens]
        starts = range(0, len(tokens), block_size)
        out.append([repr((salt, adapter, tokens[:start + block_size])) for start in starts])
    return out
""",
    ),
    "e2-by-number": Mutant(
        "c07-e2",
        "gives every block a number of its own",
        "hold the same KV and have two names",
        """
# EXERCISE c07-e2
import itertools
def block_names(requests, block_size):
    count = itertools.count()
    return [[next(count) for _ in range(len(r[0]) // block_size)] for r in requests]
""",
    ),
}
