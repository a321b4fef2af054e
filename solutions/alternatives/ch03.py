"""Right answers to chapter 3's exercises by other roads than the solution. Every one must pass. Chapter 3.

ALTERNATIVES: id -> (exercise, what is different, the cell).
"""

ALTERNATIVES = {
    "e1-floats": (
        "c03-e1",
        "times as floats; the policies in the other order",
        """
# EXERCISE c03-e1
finish = {}
finish["rr"] = dict(A=15.0, B=14.0, C=7.0, D=16.0)
finish["srtf"] = dict(D=11.0, C=4.0, B=7.0, A=16.0)
""",
    ),
    "e1-simulated": (
        "c03-e1",
        "lets a small simulation work it out",
        """
# EXERCISE c03-e1
jobs = {"A": (0, 7), "B": (2, 4), "C": (3, 1), "D": (5, 4)}
left, srtf = {name: needs for name, (_, needs) in jobs.items()}, {}
for now in range(16):
    there = [name for name in left if jobs[name][0] <= now and left[name]]
    name = min(there, key=left.get)
    left[name] -= 1
    if not left[name]:
        srtf[name] = now + 1
left, rr, line, now = {name: needs for name, (_, needs) in jobs.items()}, {}, ["A"], 0
while line:
    name = line.pop(0)
    end = now + min(3, left[name])
    line += [other for other in jobs if now < jobs[other][0] <= end]
    left[name] -= end - now
    if left[name]:
        line.append(name)
    else:
        rr[name] = end
    now = end
finish = {"srtf": srtf, "rr": rr}
""",
    ),
    "e2-whole-numbers": (
        "c03-e2",
        "strides of 1024 / tickets; a heap of (pass, place); a generator",
        """
# EXERCISE c03-e2
import heapq
def stride(jobs, num_slices):
    heap, to_come = [], list(enumerate(jobs))
    for now in range(num_slices):
        floor = heap[0][0] if heap else 0
        while to_come and to_come[0][1][2] <= now:
            place, (name, tickets, _) = to_come.pop(0)
            heapq.heappush(heap, (floor, place, name, 1024 // tickets))
        at, place, name, step = heapq.heappop(heap)
        yield name
        heapq.heappush(heap, (at + step, place, name, step))
""",
    ),
    "e2-fractions": (
        "c03-e2",
        "fractions; a dict of the waiting and a class",
        """
# EXERCISE c03-e2
from fractions import Fraction
class Tenant:
    def __init__(self, name, tickets, start):
        self.name, self.stride, self.at = name, Fraction(1, tickets), start
def stride(jobs, num_slices):
    present, record = [], []
    for now in range(num_slices):
        start = min((t.at for t in present), default=Fraction(0))
        present += [Tenant(name, tickets, start) for name, tickets, arrival in jobs if arrival == now]
        best = present[0]
        for tenant in present:
            if tenant.at < best.at:
                best = tenant
        best.at += best.stride
        record.append(best.name)
    return tuple(record)
""",
    ),
    "e3-class-and-lines": (
        "c03-e3",
        "a small class; one line of waiting requests for each user; tuples as steps",
        """
# EXERCISE c03-e3
class User:
    def __init__(self):
        self.had, self.waiting, self.seated = 0, [], 0
    def here(self):
        return self.waiting or self.seated
def fair_door(requests, num_seats):
    users = {user: User() for _, user, _, _ in requests}
    queue, seats, now = list(enumerate(requests)), [], 0
    while queue or any(u.here() for u in users.values()):
        while queue and queue[0][1][2] == now:
            place, (name, user, _, length) = queue.pop(0)
            me = users[user]
            if not me.here():
                others = [u.had for u in users.values() if u.here()]
                if others and min(others) > me.had:
                    me.had = min(others)
            me.waiting.append((place, name, user, length))
        while len(seats) < num_seats:
            heads = [(u.had, u.waiting[0]) for u in users.values() if u.waiting]
            if not heads:
                break
            _, first = min(heads)
            users[first[2]].waiting.pop(0)
            users[first[2]].seated += 1
            seats.append([first[1], first[2], first[3]])
        yield tuple(name for name, _, _ in seats)
        for seat in seats:
            seat[2] -= 1
            users[seat[1]].had += 1
            users[seat[1]].seated -= seat[2] == 0
        seats = [seat for seat in seats if seat[2]]
        now += 1
""",
    ),
    "e3-sorted-each-time": (
        "c03-e3",
        "one list of dicts with a state; sorts the waiting for every seat",
        """
# EXERCISE c03-e3
def fair_door(requests, num_seats):
    all_of_them = [dict(id=i, user=u, at=a, left=n, state="away") for i, u, a, n in requests]
    tokens, steps, joined = {}, [], []
    while any(r["state"] != "done" for r in all_of_them):
        for r in all_of_them:
            if r["state"] == "away" and r["at"] <= len(steps):
                busy = {o["user"] for o in all_of_them if o["state"] in ("waits", "runs")}
                tokens.setdefault(r["user"], 0)
                if r["user"] not in busy and busy:
                    tokens[r["user"]] = max(tokens[r["user"]], min(tokens[u] for u in busy))
                r["state"] = "waits"
        for _ in range(num_seats - len(joined)):
            line = sorted((r for r in all_of_them if r["state"] == "waits"), key=lambda r: tokens[r["user"]])
            for r in line[:1]:
                r["state"] = "runs"
                joined.append(r)
        steps.append([r["id"] for r in joined])
        for r in joined:
            r["left"] -= 1
            tokens[r["user"]] += 1
            if r["left"] == 0:
                r["state"] = "done"
        joined = [r for r in joined if r["state"] == "runs"]
    return steps
""",
    ),
    "b1-new-dicts": (
        "c03-b1",
        "builds new dicts; a list in place of a tuple",
        """
# EXERCISE c03-b1
def boost(now, next_boost, every, jobs):
    if next_boost > now:
        return [jobs, next_boost]
    return [[{**job, "level": 0, "used": 0} for job in jobs], every + now]
""",
    ),
    "b1-in-place": (
        "c03-b1",
        "changes what it is given and the argument itself",
        """
# EXERCISE c03-b1
def boost(now, next_boost, every, jobs):
    if now >= next_boost:
        next_boost = now + every
        for job in jobs:
            job.update(level=0, used=0)
    return tuple(jobs), next_boost
""",
    ),
}
