"""Wrong answers to c03-e2: where newcomers start, and what equal passes do. Knows no right answer. Chapter 3."""

from tools.mutant_table import Mutant

MUTANTS = {
    "e2-newcomer-a-stride-late": Mutant(
        "c03-e2",
        "starts those who come later at the smallest pass and a stride",
        "and those of slice 0 at 0",
        """
# EXERCISE c03-e2
def stride(jobs, num_slices):
    tickets = {name: t for name, t, _ in jobs}
    passes, order = {}, []
    for now in range(num_slices):
        start = min(passes.values(), default=0)
        for name, t, arrives in jobs:
            if arrives == now:
                passes[name] = start + (1 / t if now else 0)
        best = min(passes, key=passes.get)
        order.append(best)
        passes[best] += 1 / tickets[best]
    return order
""",
    ),
    "e2-newcomer-at-mean": Mutant(
        "c03-e2",
        "starts a newcomer at the mean pass",
        "at the mean of the passes",
        """
# EXERCISE c03-e2
def stride(jobs, num_slices):
    tickets = {name: t for name, t, _ in jobs}
    passes, order = {}, []
    for now in range(num_slices):
        start = sum(passes.values()) / len(passes) if passes else 0
        for name, t, arrives in jobs:
            if arrives == now:
                passes[name] = start
        best = min(passes, key=passes.get)
        order.append(best)
        passes[best] += 1 / tickets[best]
    return order
""",
    ),
    "e2-newcomer-a-slice-late": Mutant(
        "c03-e2",
        "lets a newcomer in after the slice of its arrival",
        "is there a slice late",
        """
# EXERCISE c03-e2
def stride(jobs, num_slices):
    tickets = {name: t for name, t, _ in jobs}
    passes, order = {}, []
    for now in range(num_slices):
        start = min(passes.values(), default=0)
        for name, t, arrives in jobs:
            if name not in passes and (arrives < now or arrives == 0):
                passes[name] = start
        best = min(passes, key=passes.get)
        order.append(best)
        passes[best] += 1 / tickets[best]
    return order
""",
    ),
    "e2-whole-division": Mutant(
        "c03-e2",
        "writes // for /",
        "1 // tickets, and that is 0",
        """
# EXERCISE c03-e2
def stride(jobs, num_slices):
    tickets = {name: t for name, t, _ in jobs}
    passes, order = {}, []
    for now in range(num_slices):
        start = min(passes.values(), default=0)
        for name, t, arrives in jobs:
            if arrives == now:
                passes[name] = start
        best = min(passes, key=passes.get)
        order.append(best)
        passes[best] += 1 // tickets[best]
    return order
""",
    ),
    "e2-tie-by-tickets": Mutant(
        "c03-e2",
        "lets the most tickets decide between equals",
        "the one with the most tickets runs",
        """
# EXERCISE c03-e2
def stride(jobs, num_slices):
    tickets = {name: t for name, t, _ in jobs}
    passes, order = {}, []
    for now in range(num_slices):
        start = min(passes.values(), default=0)
        for name, t, arrives in jobs:
            if arrives == now:
                passes[name] = start
        best = min(passes, key=lambda name: (passes[name], -tickets[name]))
        order.append(best)
        passes[best] += 1 / tickets[best]
    return order
""",
    ),
}
