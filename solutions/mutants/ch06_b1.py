"""Wrong answers to c06-b1, one mistake each, and what the learner must be told. Knows no right answer. Chapter 6."""

from tools.mutant_table import Mutant

CELL = """
# EXERCISE c06-b1
class Tables:
    def __init__(self, num_blocks, window):
        self.window = window
        self.free = list(range(1, num_blocks + 1))
        self.refs = [0] * (num_blocks + 1)
        self.tables = {}

    def take(self):
        block = min(self.free)
        self.free.remove(block)
        self.refs[block] = 1
        return block

    def drop(self, block):
        GUARD
        self.refs[block] -= 1
        if self.refs[block] == 0:
            self.free.append(block)

    def start(self, name):
        self.tables[name] = []

    def grow(self, name):
        table = self.tables[name]
        if len(table) < self.window:
            table.append(self.take())
            return
        oldest = table[-self.window]
        if self.refs[oldest] == 1:
            table.append(oldest)
        else:
            table.append(self.take())
            WHEN_COPIED

    def fork(self, parent, child):
        for block in FORK:
            self.refs[block] += 1
        self.tables[child] = CLONE

    def end(self, name):
        for block in END:
            self.drop(block)
        del self.tables[name]
"""
USUAL = {
    "FORK": "set(self.tables[parent][-self.window :])",
    "END": "set(self.tables[name][-self.window :])",
    "CLONE": "list(self.tables[parent])",
    "GUARD": "pass",
    "WHEN_COPIED": "self.drop(oldest)",
}
NOT_TWICE = "if self.refs[block] == 0: return"


def mutant(mistake: str, says: str, **changes: str) -> Mutant:
    """The cell, with what is changed in it."""
    cell = CELL
    for name, text in {**USUAL, **changes}.items():
        cell = cell.replace(name, text)
    return Mutant("c06-b1", mistake, says, cell)


MUTANTS = {
    "b1-fork-mended": mutant("mends the fork and not the end", "The fork is right now", END="set(self.tables[name])"),
    "b1-end-mended": mutant("mends the end and not the fork", "The end is right now", FORK="self.tables[parent]"),
    "b1-fork-counts-the-table": mutant(
        "counts every block of the table once in a fork",
        "also those that the parent has given back",
        FORK="set(self.tables[parent])",
    ),
    "b1-agree-on-the-table": mutant(
        "lets both count the whole table",
        "Fork and end agree now",
        FORK="set(self.tables[parent])",
        END="set(self.tables[name])",
    ),
    "b1-frees-nothing": mutant("frees nothing at the end", "because nothing is freed", END="[]"),
    "b1-keeps-the-copied": mutant("keeps the block that was copied", "nobody will ever drop it", WHEN_COPIED="pass"),
    "b1-shares-the-list": mutant(
        "gives both answers the same table", "have one and the same list", CLONE="self.tables[parent]"
    ),
    "b1-shares-the-list-as-given": mutant(
        "gives both answers the same table, and mends nothing else",
        "have one and the same list",
        CLONE="self.tables[parent]",
        FORK="self.tables[parent]",
        END="set(self.tables[name])",
    ),
    "b1-end-as-often": mutant(
        "drops a block at the end as often as it stands in the table", "as often as it stands", END="self.tables[name]"
    ),
    "b1-both-as-often": mutant(
        "counts and drops as often as a block stands in the table",
        "as often as it stands",
        FORK="self.tables[parent]",
        END="self.tables[name]",
    ),
    "b1-table-and-as-often": mutant(
        "counts the table once and drops each entry",
        "as often as it stands",
        FORK="set(self.tables[parent])",
        END="self.tables[name]",
    ),
    "b1-guards-entry-entry": mutant(
        "refuses to drop what is free; the fork counts each entry, the end each entry",
        "That hides the fault",
        FORK="self.tables[parent]",
        END="self.tables[name]",
        GUARD=NOT_TWICE,
    ),
    "b1-guards-entry-table": mutant(
        "refuses to drop what is free; the fork counts each entry, the end the table",
        "That hides the fault",
        FORK="self.tables[parent]",
        END="set(self.tables[name])",
        GUARD=NOT_TWICE,
    ),
    "b1-guards-table-entry": mutant(
        "refuses to drop what is free; the fork counts the table, the end each entry",
        "That hides the fault",
        FORK="set(self.tables[parent])",
        END="self.tables[name]",
        GUARD=NOT_TWICE,
    ),
    "b1-guards-table-table": mutant(
        "refuses to drop what is free; the fork counts the table, the end the table",
        "That hides the fault",
        FORK="set(self.tables[parent])",
        END="set(self.tables[name])",
        GUARD=NOT_TWICE,
    ),
    "b1-guards-window-entry": mutant(
        "refuses to drop what is free; the fork counts the window, the end each entry",
        "That hides the fault",
        END="self.tables[name]",
        GUARD=NOT_TWICE,
    ),
    "b1-guards-window-table": mutant(
        "refuses to drop what is free; the fork counts the window, the end the table",
        "That hides the fault",
        END="set(self.tables[name])",
        GUARD=NOT_TWICE,
    ),
}
