"""Wrong answers to c03-e2, one mistake each, and what the learner must be told. Knows no right answer. Chapter 3."""

from tools.mutant_table import Mutant

MUTANTS = {
    "e2-newcomer-at-0": Mutant(
        "c03-e2",
        "starts everybody at 0",
        "A newcomer starts at 0",
        """
# EXERCISE c03-e2
def stride(jobs, num_slices):
    tickets = {name: t for name, t, _ in jobs}
    passes, order = {}, []
    for now in range(num_slices):
        start = 0
        for name, t, arrives in jobs:
            if arrives == now:
                passes[name] = start
        best = min(passes, key=passes.get)
        order.append(best)
        passes[best] += 1 / tickets[best]
    return order
""",
    ),
    "e2-newcomer-at-largest": Mutant(
        "c03-e2",
        "starts a newcomer at the largest pass",
        "A newcomer starts at the largest pass",
        """
# EXERCISE c03-e2
def stride(jobs, num_slices):
    tickets = {name: t for name, t, _ in jobs}
    passes, order = {}, []
    for now in range(num_slices):
        start = max(passes.values(), default=0)
        for name, t, arrives in jobs:
            if arrives == now:
                passes[name] = start
        best = min(passes, key=passes.get)
        order.append(best)
        passes[best] += 1 / tickets[best]
    return order
""",
    ),
    "e2-grows-by-tickets": Mutant(
        "c03-e2",
        "adds the tickets to the pass",
        "whoever has many gets few slices",
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
        passes[best] += tickets[best]
    return order
""",
    ),
    "e2-round-robin": Mutant(
        "c03-e2",
        "adds 1 for everybody",
        "that is round robin",
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
        passes[best] += 1
    return order
""",
    ),
    "e2-last-of-equals": Mutant(
        "c03-e2",
        "lets the last of equals run",
        "Of equal passes the last in the list runs",
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
        best = min(reversed(passes), key=passes.get)
        order.append(best)
        passes[best] += 1 / tickets[best]
    return order
""",
    ),
    "e2-one-stride-late": Mutant(
        "c03-e2",
        "starts at the smallest pass and a stride",
        "A job starts one stride further",
        """
# EXERCISE c03-e2
def stride(jobs, num_slices):
    tickets = {name: t for name, t, _ in jobs}
    passes, order = {}, []
    for now in range(num_slices):
        start = min(passes.values(), default=0)
        for name, t, arrives in jobs:
            if arrives == now:
                passes[name] = start + 1 / t
        best = min(passes, key=passes.get)
        order.append(best)
        passes[best] += 1 / tickets[best]
    return order
""",
    ),
    "e2-arrival-ignored": Mutant(
        "c03-e2",
        "lets everybody in at slice 0",
        "before they have arrived",
        """
# EXERCISE c03-e2
def stride(jobs, num_slices):
    tickets = {name: t for name, t, _ in jobs}
    passes, order = {}, []
    for now in range(num_slices):
        start = min(passes.values(), default=0)
        for name, t, arrives in jobs:
            if now == 0:
                passes[name] = start
        best = min(passes, key=passes.get)
        order.append(best)
        passes[best] += 1 / tickets[best]
    return order
""",
    ),
    "e2-largest-pass": Mutant(
        "c03-e2",
        "runs the largest pass",
        "The largest pass runs there",
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
        best = max(passes, key=passes.get)
        order.append(best)
        passes[best] += 1 / tickets[best]
    return order
""",
    ),
    "e2-one-short": Mutant(
        "c03-e2",
        "gives one slice too few",
        "slice 2 is missing",
        """
# EXERCISE c03-e2
def stride(jobs, num_slices):
    tickets = {name: t for name, t, _ in jobs}
    passes, order = {}, []
    for now in range(num_slices - 1):
        start = min(passes.values(), default=0)
        for name, t, arrives in jobs:
            if arrives == now:
                passes[name] = start
        best = min(passes, key=passes.get)
        order.append(best)
        passes[best] += 1 / tickets[best]
    return order
""",
    ),
    "e2-by-name": Mutant(
        "c03-e2",
        "takes the smallest pair of pass and name",
        "comes first in the alphabet runs there",
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
        _, best = min((p, name) for name, p in passes.items())
        order.append(best)
        passes[best] += 1 / tickets[best]
    return order
""",
    ),
}
