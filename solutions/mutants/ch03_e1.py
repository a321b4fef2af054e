"""Wrong answers to c03-e1, one mistake each, and what the learner must be told. Knows no right answer. Chapter 3."""

from tools.mutant_table import Mutant

MUTANTS = {
    "e1-sjf": Mutant(
        "c03-e1",
        "lets A run to its end",
        "Under srtf nobody is interrupted",
        """
# EXERCISE c03-e1
finish = {
    "srtf": dict(zip("ABCD", (7, 12, 8, 16))),
    "rr": dict(zip("ABCD", (15, 14, 7, 16))),
}
""",
    ),
    "e1-turnarounds": Mutant(
        "c03-e1",
        "subtracts the arrivals everywhere",
        "Under both these are turnarounds",
        """
# EXERCISE c03-e1
finish = {
    "srtf": dict(zip("ABCD", (16, 5, 1, 6))),
    "rr": dict(zip("ABCD", (15, 12, 4, 11))),
}
""",
    ),
    "e1-user-before-newcomer": Mutant(
        "c03-e1",
        "puts the one who used the slice before those who came",
        "It is the other way round",
        """
# EXERCISE c03-e1
finish = {
    "srtf": dict(zip("ABCD", (16, 7, 4, 11))),
    "rr": dict(zip("ABCD", (11, 15, 10, 16))),
}
""",
    ),
    "e1-starts-at-one": Mutant(
        "c03-e1",
        "counts the last unit, not the moment in which it ends",
        "is when the last unit of each begins",
        """
# EXERCISE c03-e1
finish = {
    "srtf": dict(zip("ABCD", (15, 6, 3, 10))),
    "rr": dict(zip("ABCD", (14, 13, 6, 15))),
}
""",
    ),
    "e1-too-early": Mutant(
        "c03-e1",
        "lets D be done before it can",
        "it cannot be done at 8",
        """
# EXERCISE c03-e1
finish = {
    "srtf": dict(zip("ABCD", (16, 7, 4, 8))),
    "rr": dict(zip("ABCD", (15, 14, 7, 16))),
}
""",
    ),
    "e1-last-too-early": Mutant(
        "c03-e1",
        "lets the CPU do 15 units of work instead of 16",
        "the last is done at 16",
        """
# EXERCISE c03-e1
finish = {
    "srtf": dict(zip("ABCD", (16, 7, 4, 11))),
    "rr": dict(zip("ABCD", (15, 14, 7, 15))),
}
""",
    ),
    "e1-two-exchanged": Mutant(
        "c03-e1",
        "exchanges A and B under round robin",
        "rr: A and B are not right",
        """
# EXERCISE c03-e1
finish = {
    "srtf": dict(zip("ABCD", (16, 7, 4, 11))),
    "rr": dict(zip("ABCD", (14, 15, 7, 16))),
}
""",
    ),
    "e1-a-list": Mutant(
        "c03-e1",
        "gives lists in place of dicts",
        "expected a dict with a number for A, B, C and D",
        """
# EXERCISE c03-e1
finish = {"srtf": [16, 7, 4, 11], "rr": [15, 14, 7, 16]}
""",
    ),
    "e1-three-wrong": Mutant(
        "c03-e1",
        "loses its way under round robin after C",
        "rr: A, B and D are not right",
        """
# EXERCISE c03-e1
finish = {
    "srtf": dict(zip("ABCD", (16, 7, 4, 11))),
    "rr": dict(zip("ABCD", (16, 13, 7, 14))),
}
""",
    ),
    "e1-a-before-c": Mutant(
        "c03-e1",
        "puts A before C, who comes in the very moment in which its slice ends",
        "A stands before C at 3",
        """
# EXERCISE c03-e1
finish = {
    "srtf": dict(zip("ABCD", (16, 7, 4, 11))),
    "rr": dict(zip("ABCD", (15, 14, 10, 16))),
}
""",
    ),
    "e1-b-before-d": Mutant(
        "c03-e1",
        "puts B before D, who came during its slice",
        "B stands before D at 6",
        """
# EXERCISE c03-e1
finish = {
    "srtf": dict(zip("ABCD", (16, 7, 4, 11))),
    "rr": dict(zip("ABCD", (15, 11, 7, 16))),
}
""",
    ),
    "e1-fcfs-in-rr": Mutant(
        "c03-e1",
        "runs everybody to the end under round robin",
        "Under rr that is first come, first served",
        """
# EXERCISE c03-e1
finish = {
    "srtf": dict(zip("ABCD", (16, 7, 4, 11))),
    "rr": dict(zip("ABCD", (7, 11, 12, 16))),
}
""",
    ),
    "e1-fcfs-twice": Mutant(
        "c03-e1",
        "runs everybody to the end under both",
        "Under both that is first come, first served",
        """
# EXERCISE c03-e1
finish = {
    "srtf": dict(zip("ABCD", (7, 11, 12, 16))),
    "rr": dict(zip("ABCD", (7, 11, 12, 16))),
}
""",
    ),
    "e1-schedules-exchanged": Mutant(
        "c03-e1",
        "writes each schedule under the other name",
        "stand the wrong way round",
        """
# EXERCISE c03-e1
finish = {
    "srtf": dict(zip("ABCD", (15, 14, 7, 16))),
    "rr": dict(zip("ABCD", (16, 7, 4, 11))),
}
""",
    ),
    "e1-last-unit-begins": Mutant(
        "c03-e1",
        "counts from the unit in which each ends, under srtf only",
        "when the last unit of each begins",
        """
# EXERCISE c03-e1
finish = {
    "srtf": dict(zip("ABCD", (15, 6, 3, 10))),
    "rr": dict(zip("ABCD", (15, 14, 7, 16))),
}
""",
    ),
}
