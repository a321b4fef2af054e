"""Wrong answers to c05-b1: traces that an evicted request leaves. Knows no right answer. Chapter 5."""

from tools.mutant_table import Mutant

MUTANTS = {
    "b1-out-of-plan-only": Mutant(
        "c05-b1",
        "takes the victim out of the plan and nothing else",
        "its tokens are lost, too",
        """
# EXERCISE c05-b1
def plan_running(running, budget, free, block_size):
    plan, evicted = {}, []
    index = 0
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
            if victim is request:
                break
            plan.pop(victim["id"], None)
        else:
            free -= need
            request["blocks"] += need
            plan[request["id"]] = n
            budget -= n
            index += 1
    return plan, budget, evicted
""",
    ),
    "b1-no-shift": Mutant(
        "c05-b1",
        "mends plan and budget, not the index",
        "but somebody is skipped",
        """
# EXERCISE c05-b1
def plan_running(running, budget, free, block_size):
    plan, evicted = {}, []
    index = 0
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
            if victim is request:
                break
            budget += plan.pop(victim["id"], 0)
        else:
            free -= need
            request["blocks"] += need
            plan[request["id"]] = n
            budget -= n
            index += 1
    return plan, budget, evicted
""",
    ),
    "b1-shift-if-planned": Mutant(
        "c05-b1",
        "moves the index only for a victim that was planned",
        "had nothing to compute",
        """
# EXERCISE c05-b1
def plan_running(running, budget, free, block_size):
    plan, evicted = {}, []
    index = 0
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
            if victim is request:
                break
            if victim["id"] in plan:
                budget += plan.pop(victim["id"])
                index -= 1
        else:
            free -= need
            request["blocks"] += need
            plan[request["id"]] = n
            budget -= n
            index += 1
    return plan, budget, evicted
""",
    ),
    "b1-shift-only": Mutant(
        "c05-b1",
        "mends the index, not the plan",
        "still in the plan, and its tokens are spent",
        """
# EXERCISE c05-b1
def plan_running(running, budget, free, block_size):
    plan, evicted = {}, []
    index = 0
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
            if victim is request:
                break
            index -= at < index
        else:
            free -= need
            request["blocks"] += need
            plan[request["id"]] = n
            budget -= n
            index += 1
    return plan, budget, evicted
""",
    ),
    "b1-no-refund": Mutant(
        "c05-b1",
        "forgets the victim's tokens",
        "gone without a trace but for its tokens",
        """
# EXERCISE c05-b1
def plan_running(running, budget, free, block_size):
    plan, evicted = {}, []
    index = 0
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
            if victim is request:
                break
            plan.pop(victim["id"], None)
            index -= at < index
        else:
            free -= need
            request["blocks"] += need
            plan[request["id"]] = n
            budget -= n
            index += 1
    return plan, budget, evicted
""",
    ),
    "b1-ghost": Mutant(
        "c05-b1",
        "gives the tokens back and leaves the victim in the plan",
        "the victim is still in the plan: it would",
        """
# EXERCISE c05-b1
def plan_running(running, budget, free, block_size):
    plan, evicted = {}, []
    index = 0
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
            if victim is request:
                break
            budget += plan.get(victim["id"], 0)
            index -= at < index
        else:
            free -= need
            request["blocks"] += need
            plan[request["id"]] = n
            budget -= n
            index += 1
    return plan, budget, evicted
""",
    ),
    "b1-one-token": Mutant(
        "c05-b1",
        "gives one token back",
        "gives one token back",
        """
# EXERCISE c05-b1
def plan_running(running, budget, free, block_size):
    plan, evicted = {}, []
    index = 0
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
            if victim is request:
                break
            if plan.pop(victim["id"], None):
                budget += 1
            index -= at < index
        else:
            free -= need
            request["blocks"] += need
            plan[request["id"]] = n
            budget -= n
            index += 1
    return plan, budget, evicted
""",
    ),
    "b1-measures-again": Mutant(
        "c05-b1",
        "measures the asking request again",
        "measured again",
        """
# EXERCISE c05-b1
def plan_running(running, budget, free, block_size):
    plan, evicted = {}, []
    index = 0
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
            if victim is request:
                break
            budget += plan.pop(victim["id"], 0)
            index -= at < index
            n = min(request["known"] - request["computed"], budget)
            need = -(-(request["computed"] + n) // block_size) - request["blocks"]
        else:
            free -= need
            request["blocks"] += need
            plan[request["id"]] = n
            budget -= n
            index += 1
    return plan, budget, evicted
""",
    ),
}
