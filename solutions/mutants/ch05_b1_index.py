"""Wrong answers to c05-b1: for whom the index moves, and who is spared. Knows no right answer. Chapter 5."""

from tools.mutant_table import Mutant

CELL = """
# EXERCISE c05-b1
def plan_running(running, budget, free, block_size):
    plan, evicted, index = {}, [], 0
    while index < len(running) and budget > 0:
        request = running[index]
        n = min(request["known"] - request["computed"], budget)
        if n == 0:
            index += 1
            continue
        need = -(-(request["computed"] + n) // block_size) - request["blocks"]
        while need > free:
            victim = max(running, key=lambda r: r["priority"])
            at = running.index(victim)
            running.remove(victim)
            free += victim["blocks"]
            evicted.append(victim["id"])
            budget += plan.pop(victim["id"], 0)
            if at < index:
                index -= 1
            if victim is request:
                break
        else:
            free -= need
            request["blocks"] += need
            plan[request["id"]] = n
            budget -= n
            index += 1
    return plan, budget, evicted
"""


def cell_with(old: str, new: str) -> str:
    """The cell with a text replaced."""
    assert CELL.count(old) == 1, old
    return CELL.replace(old, new)


MUTANTS = {
    "b1-index-for-itself": Mutant(
        "c05-b1",
        "moves the index also when the asking one is evicted",
        "The index moves",
        cell_with("if at < index:", "if at <= index:"),
    ),
    "b1-index-for-all": Mutant(
        "c05-b1",
        "moves the index for every victim",
        "The index moves",
        cell_with("if at < index:", "if True:"),
    ),
    "b1-spares-the-planned": Mutant(
        "c05-b1",
        "evicts nobody who is in the plan",
        "Whoever is in the plan is spared",
        cell_with("max(running, key", "max([r for r in running if r['id'] not in plan], key"),
    ),
}
