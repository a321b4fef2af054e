"""Wrong answers to c03-e3: how a user who comes back is lifted. Knows no right answer. Chapter 3."""

from tools.mutant_table import Mutant

MUTANTS = {
    "e3-no-lift": Mutant(
        "c03-e3",
        "lets a user who comes back keep an old number",
        "The lift is missing",
        """
# EXERCISE c03-e3
def fair_door(requests, num_seats):
    coming, waiting, running, had, out = list(requests), [], {}, {}, []
    who = {name: user for name, user, _, _ in requests}
    while coming or waiting or running:
        while coming and coming[0][2] <= len(out):
            name, user, _, length = coming.pop(0)
            here = {u for _, u, _ in waiting} | {who[n] for n in running}
            floor = [had[u] for u in here if u != user]
            if user not in here:
                had[user] = had.get(user, 0)
            waiting.append((name, user, length))
        while waiting and len(running) < num_seats:
            chosen = min(waiting, key=lambda w: had[w[1]])
            waiting.remove(chosen)
            running[chosen[0]] = chosen[2]
        out.append(list(running))
        for name in list(running):
            had[who[name]] += 1
            running[name] -= 1
            if not running[name]:
                del running[name]
    return out
""",
    ),
    "e3-lift-to-largest": Mutant(
        "c03-e3",
        "lifts to the largest number",
        "The lift is to the largest",
        """
# EXERCISE c03-e3
def fair_door(requests, num_seats):
    coming, waiting, running, had, out = list(requests), [], {}, {}, []
    who = {name: user for name, user, _, _ in requests}
    while coming or waiting or running:
        while coming and coming[0][2] <= len(out):
            name, user, _, length = coming.pop(0)
            here = {u for _, u, _ in waiting} | {who[n] for n in running}
            floor = [had[u] for u in here if u != user]
            if user not in here:
                had[user] = max(had.get(user, 0), max(floor, default=0))
            waiting.append((name, user, length))
        while waiting and len(running) < num_seats:
            chosen = min(waiting, key=lambda w: had[w[1]])
            waiting.remove(chosen)
            running[chosen[0]] = chosen[2]
        out.append(list(running))
        for name in list(running):
            had[who[name]] += 1
            running[name] -= 1
            if not running[name]:
                del running[name]
    return out
""",
    ),
    "e3-lift-lowers": Mutant(
        "c03-e3",
        "sets the number of a user who comes back to the smallest",
        "The lift also lowers",
        """
# EXERCISE c03-e3
def fair_door(requests, num_seats):
    coming, waiting, running, had, out = list(requests), [], {}, {}, []
    who = {name: user for name, user, _, _ in requests}
    while coming or waiting or running:
        while coming and coming[0][2] <= len(out):
            name, user, _, length = coming.pop(0)
            here = {u for _, u, _ in waiting} | {who[n] for n in running}
            floor = [had[u] for u in here if u != user]
            if user not in here:
                had[user] = min(floor, default=had.get(user, 0))
            waiting.append((name, user, length))
        while waiting and len(running) < num_seats:
            chosen = min(waiting, key=lambda w: had[w[1]])
            waiting.remove(chosen)
            running[chosen[0]] = chosen[2]
        out.append(list(running))
        for name in list(running):
            had[who[name]] += 1
            running[name] -= 1
            if not running[name]:
                del running[name]
    return out
""",
    ),
    "e3-lifts-everybody": Mutant(
        "c03-e3",
        "lifts at every arrival",
        "Every arrival is lifted",
        """
# EXERCISE c03-e3
def fair_door(requests, num_seats):
    coming, waiting, running, had, out = list(requests), [], {}, {}, []
    who = {name: user for name, user, _, _ in requests}
    while coming or waiting or running:
        while coming and coming[0][2] <= len(out):
            name, user, _, length = coming.pop(0)
            here = {u for _, u, _ in waiting} | {who[n] for n in running}
            floor = [had[u] for u in here if u != user]
            if True:
                had[user] = max(had.get(user, 0), min(floor, default=0))
            waiting.append((name, user, length))
        while waiting and len(running) < num_seats:
            chosen = min(waiting, key=lambda w: had[w[1]])
            waiting.remove(chosen)
            running[chosen[0]] = chosen[2]
        out.append(list(running))
        for name in list(running):
            had[who[name]] += 1
            running[name] -= 1
            if not running[name]:
                del running[name]
    return out
""",
    ),
    "e3-lifts-only-the-new": Mutant(
        "c03-e3",
        "lifts a user when seen for the first time, and never again",
        "Only a user who was never there before is lifted",
        """
# EXERCISE c03-e3
def fair_door(requests, num_seats):
    coming, waiting, running, had, out = list(requests), [], {}, {}, []
    who = {name: user for name, user, _, _ in requests}
    while coming or waiting or running:
        while coming and coming[0][2] <= len(out):
            name, user, _, length = coming.pop(0)
            here = {u for _, u, _ in waiting} | {who[n] for n in running}
            if user not in had:
                had[user] = min((had[u] for u in here), default=0)
            waiting.append((name, user, length))
        while waiting and len(running) < num_seats:
            chosen = min(waiting, key=lambda w: had[w[1]])
            waiting.remove(chosen)
            running[chosen[0]] = chosen[2]
        out.append(list(running))
        for name in list(running):
            had[who[name]] += 1
            running[name] -= 1
            if not running[name]:
                del running[name]
    return out
""",
    ),
}
