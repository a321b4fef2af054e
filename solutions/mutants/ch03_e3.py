"""Wrong answers to c03-e3: who is let in, and what is counted. Knows no right answer. Chapter 3."""

from tools.mutant_table import Mutant

MUTANTS = {
    "e3-fcfs": Mutant(
        "c03-e3",
        "takes the first of the line",
        "the door does not look at users",
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
                had[user] = max(had.get(user, 0), min(floor, default=0))
            waiting.append((name, user, length))
        while waiting and len(running) < num_seats:
            chosen = waiting[0]
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
    "e3-counts-requests": Mutant(
        "c03-e3",
        "counts requests that were let in",
        "That counts the requests that were let in",
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
                had[user] = max(had.get(user, 0), min(floor, default=0))
            waiting.append((name, user, length))
        while waiting and len(running) < num_seats:
            chosen = min(waiting, key=lambda w: had[w[1]])
            waiting.remove(chosen)
            running[chosen[0]] = chosen[2]
            had[chosen[1]] += 1
        out.append(list(running))
        for name in list(running):
            pass
            running[name] -= 1
            if not running[name]:
                del running[name]
    return out
""",
    ),
    "e3-counts-lengths": Mutant(
        "c03-e3",
        "counts the whole output at the door",
        "A server does not know it",
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
                had[user] = max(had.get(user, 0), min(floor, default=0))
            waiting.append((name, user, length))
        while waiting and len(running) < num_seats:
            chosen = min(waiting, key=lambda w: had[w[1]])
            waiting.remove(chosen)
            running[chosen[0]] = chosen[2]
            had[chosen[1]] += chosen[2]
        out.append(list(running))
        for name in list(running):
            pass
            running[name] -= 1
            if not running[name]:
                del running[name]
    return out
""",
    ),
    "e3-all-at-once": Mutant(
        "c03-e3",
        "looks once who is present, before anybody of the step has come",
        "They come one after another",
        """
# EXERCISE c03-e3
def fair_door(requests, num_seats):
    coming, waiting, running, had, out = list(requests), [], {}, {}, []
    who = {name: user for name, user, _, _ in requests}
    while coming or waiting or running:
        here = {u for _, u, _ in waiting} | {who[n] for n in running}
        while coming and coming[0][2] <= len(out):
            name, user, _, length = coming.pop(0)
            floor = [had[u] for u in here if u != user]
            if user not in here:
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
    "e3-newest-of-equals": Mutant(
        "c03-e3",
        "takes the newest of equals",
        "the newest joins there",
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
                had[user] = max(had.get(user, 0), min(floor, default=0))
            waiting.append((name, user, length))
        while waiting and len(running) < num_seats:
            chosen = min(reversed(waiting), key=lambda w: had[w[1]])
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
    "e3-evicts": Mutant(
        "c03-e3",
        "gives all seats anew in every step",
        "Somebody is sent away",
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
                had[user] = max(had.get(user, 0), min(floor, default=0))
            waiting.append((name, user, length))
        waiting = [(n, who[n], left) for n, left in running.items()] + waiting
        running = {}
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
    "e3-forgets": Mutant(
        "c03-e3",
        "takes back the tokens of a request that is done",
        "forgotten when it is done",
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
                had[who[name]] -= next(r[3] for r in requests if r[0] == name)
    return out
""",
    ),
}
