"""Wrong answers to c07-e2: one text, and what each changes in it. Knows which mistake is which. Chapter 7."""

from tools.mutant_table import Mutant

GOOD = """
# EXERCISE c07-e2
def block_names(requests, block_size):
    out = []
    for tokens, salt, adapter, images in requests:
        parent, names, at = (salt, adapter), [], 0
        for i in range(len(tokens) // block_size):
            block = tuple(tokens[i * block_size:(i + 1) * block_size])
            k = block.count(0)
            parent = (parent, block, tuple(images[at:at + k]))
            names.append(repr(parent))
            at += k
        out.append(names)
    return out
"""


def mutant(mistake: str, says: str, *changes: tuple[str, str]) -> Mutant:
    """The good text with each (old, new) replaced; every old one stands in it once."""
    source = GOOD
    for old, new in changes:
        assert source.count(old) == 1, old
        source = source.replace(old, new)
    return Mutant("c07-e2", mistake, says, source)


MUTANTS = {
    "e2-own-tokens": mutant(
        "names a block by its own tokens",
        "That names a block by its own tokens alone",
        ("parent = (parent,", "parent = (salt, adapter,"),
    ),
    "e2-one-block-back": mutant(
        "puts the tokens of the block before into the name, not its name",
        "That looks one block back and no further",
        ("= (salt, adapter)", "= ()"),
        ("(parent, block, tuple(images[at:at + k]))", "(block, images[at:at + k], parent[:2])"),
        ("repr(parent)", "repr((salt, adapter, parent))"),
    ),
    "e2-no-salt": mutant(
        "leaves the salt out",
        "The salt is in no name",
        ("(salt, adapter)", "adapter"),
    ),
    "e2-no-adapter": mutant(
        "leaves the adapter out",
        "The adapter is in no name",
        ("(salt, adapter)", "salt"),
    ),
    "e2-salt-or-adapter": mutant(
        "starts from the salt, or else the adapter",
        "Where there is a salt, the adapter is not",
        ("(salt, adapter)", "salt or adapter"),
    ),
    "e2-joined": mutant(
        "joins salt and adapter to one text",
        "joined without saying which is which",
        ("(salt, adapter)", '(adapter or "") + (salt or "")'),
    ),
    "e2-joined-by-a-slash": mutant(
        "joins adapter and salt with a slash between them",
        "joined by a sign that may stand in them: 'a/a'",
        ("(salt, adapter)", '"/".join([adapter or "", salt or ""])'),
    ),
    "e2-joined-by-colons": mutant(
        "joins salt and adapter with two colons between them",
        "joined by a sign that may stand in them: 'a::a'",
        ("(salt, adapter)", '(salt or "") + "::" + (adapter or "")'),
    ),
    "e2-joined-by-a-bar": mutant(
        "joins salt and adapter with a bar, None as text",
        "put into one text there",
        ("(salt, adapter)", 'f"{salt}|{adapter}"'),
    ),
    "e2-none-as-text": mutant(
        "writes None as a text",
        "None is written as 'None' there",
        ("(salt, adapter)", "(str(salt), str(adapter))"),
    ),
    "e2-no-images": mutant(
        "names by token ids and forgets the pictures",
        "The images are in no name",
        (", tuple(images[at:at + k])", ""),
    ),
    "e2-all-images": mutant(
        "puts all pictures of the prompt into every name",
        "All images of the prompt are in every name",
        ("tuple(images[at:at + k])", "tuple(images)"),
    ),
    "e2-first-pictures": mutant(
        "names a block with k pictures by the first k of the prompt",
        "by the first k of the prompt",
        ("images[at:at + k]", "images[:k]"),
    ),
    "e2-sorted-pictures": mutant(
        "sorts the pictures of a block",
        "The pictures of a block are sorted there",
        ("images[at:at + k]", "sorted(images[at:at + k])"),
    ),
    "e2-last-picture": mutant(
        "puts only the last picture of a block into its name",
        "an image in or before them differs",
        ("images[at:at + k]", "images[at:at + k][-1:]"),
    ),
    "e2-picture-as-token": mutant(
        "writes a picture as it writes a token",
        "a picture called '6' cannot be told from token 6",
        ("names, at = (salt, adapter), [], 0", "names, at, line = (salt, adapter), [], 0, iter(images)"),
        ("block, tuple(images[at:at + k])", "[str(t or next(line)) for t in block]"),
    ),
    "e2-digits": mutant(
        "writes tokens into one text with nothing between them",
        "without a sign between them",
        ("block, tuple", '"".join(map(str, block)), tuple'),
    ),
    "e2-whole-length": mutant(
        "puts the length of the prompt into every name",
        "The length of the whole prompt is in every name",
        ("repr(parent)", "repr((len(tokens), parent))"),
    ),
    "e2-partial": mutant(
        "names the last block although it is not full",
        "although it is not full",
        ("len(tokens) // block_size", "-(-len(tokens) // block_size)"),
    ),
    "e2-by-number": mutant(
        "gives every block a number of its own",
        "Every block has a name of its own there",
        ("repr(parent)", "(len(out), i)"),
    ),
}
