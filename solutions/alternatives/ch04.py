"""Right answers to chapter 4's exercises by other roads than the solution. Every one must pass. Chapter 4.

ALTERNATIVES: id -> (exercise, what is different, the cell).
"""

ALTERNATIVES = {
    "e1-other-order": (
        "c04-e1",
        "the requests of a step in another order; tuples and floats",
        """
# EXERCISE c04-e1
plans = (
    dict(C=1, B=2, A=3), dict(C=4, B=1, A=1), dict(C=1, B=1, A=1),
    *[dict(B=1.0, A=1.0)] * 3,
    dict(C=5, B=1), dict(D=4, C=2), dict(D=1, C=1),
)
""",
    ),
    "e1-computed": (
        "c04-e1",
        "lets a small simulation of its own work it out",
        """
# EXERCISE c04-e1
known, total, computed, own = {}, {}, {}, {}
for name, prompt, output in [("A", 3, 6), ("B", 2, 7), ("C", 6, 3), ("D", 4, 2)]:
    known[name], total[name], computed[name], own[name] = prompt, prompt + output, 0, 0
line, seated, plans = list(known), [], []
need = lambda name, tokens: -(-tokens // 4) - own[name]
free = lambda: 5 - sum(own.values())
while line or seated:
    plan, evicted = {}, False
    for name in list(seated):
        if name not in seated:
            continue
        n = min(known[name] - computed[name], 6 - sum(plan.values()))
        while n and name in seated and need(name, computed[name] + n) > free():
            last = seated.pop()
            line.insert(0, last)
            computed[last], own[last], evicted = 0, 0, True
        if n and name in seated:
            own[name] += need(name, computed[name] + n)
            plan[name] = n
    while line and not evicted and sum(plan.values()) < 6 and need(line[0], known[line[0]]) <= free():
        name = line.pop(0)
        seated.append(name)
        plan[name] = min(known[name], 6 - sum(plan.values()))
        own[name] = need(name, plan[name])
    for name, n in plan.items():
        computed[name] += n
        known[name] += computed[name] == known[name]
        if known[name] == total[name]:
            seated.remove(name)
            own[name] = 0
    plans.append(plan)
""",
    ),
    "e2-states-in-a-dict": (
        "c04-e2",
        "keeps the states apart from the lives; one branch for each event; tuples",
        """
# EXERCISE c04-e2
def lives(records):
    state, life = {}, {}
    for r in records:
        before = dict(state)
        now = []
        for name in r["arrivals"]:
            now.append((name, "waiting"))
        now += [(name, "finished") for name in r["aborted"]]
        now += [(name, "preempted") for name in r["preempted"]]
        now += [(name, "running") for name in r["scheduled"] if before.get(name) != "running"]
        now += [(name, "finished") for name in r["finished"]]
        for name, new in now:
            state[name] = new
            life.setdefault(name, []).append((r["step"], new))
    return life
""",
    ),
    "e2-one-request-at-a-time": (
        "c04-e2",
        "goes through the whole log once for each request; takes repeats out afterwards",
        """
# EXERCISE c04-e2
from itertools import groupby
def lives(records):
    words = dict(arrivals="waiting", aborted="finished", preempted="preempted", scheduled="running",
                 finished="finished")
    names = {name: None for r in records for name in r["arrivals"]}
    def life(name):
        everything = [(r["step"], word) for r in records for event, word in words.items() if name in r[event]]
        return [list(next(group)) for _, group in groupby(everything, key=lambda pair: pair[1])]
    return {name: life(name) for name in names}
""",
    ),
    "e3-rebuilds-the-line": (
        "c04-e3",
        "takes everybody out, then puts back who did not enter, the last one first",
        """
# EXERCISE c04-e3
from mini_vllm.stages.ch04_admit_retire import Scheduler as Stage4

class MyScheduler(Stage4):
    def __init__(self, config):
        super().__init__(config)
        self.held = []

    def hold(self, request_id):
        self.held.append(request_id)

    def grammar_ready(self, request_id):
        self.held = [other for other in self.held if other != request_id]

    def schedule_waiting(self):
        line = [self.waiting.pop() for _ in range(len(self.waiting))]
        left, reason = [], None
        for request in line:
            if request.request_id in self.held or reason:
                left.append(request)
                continue
            self.waiting.put_back(request)
            reason = self.admit(request)
            if reason:
                left.append(self.waiting.pop())
        while left:
            self.waiting.put_back(left.pop())
        return reason
""",
    ),
    "e3-two-lines": (
        "c04-e3",
        "counts the seats itself, removes who enters from the middle of the line, needs no base's admit",
        """
# EXERCISE c04-e3
from mini_vllm.request import RUNNING
from mini_vllm.stages.ch04_admit_retire import Scheduler as Stage4

class MyScheduler(Stage4):
    held = frozenset()

    def hold(self, request_id):
        self.held = self.held | {request_id}

    def grammar_ready(self, request_id):
        self.held = self.held - {request_id}

    def schedule_waiting(self):
        ready = [request for request in self.waiting if request.request_id not in self.held]
        seats = self.config.max_num_seqs - len(self.running)
        for request in ready[:seats]:
            self.waiting.remove(request)
            request.transition_to(RUNNING)
            self.running.append(request)
            self.advance(request, request.num_new_tokens)
        return "max_num_seqs" if len(ready) > seats else None
""",
    ),
    "b1-new-lists": (
        "c04-b1",
        "builds new lists; adds up what the gone ones held",
        """
# EXERCISE c04-b1
def abort(gone, waiting, running, blocks, num_free):
    back = sum(n for name, n in blocks.items() if name in gone)
    keep = lambda names: [name for name in names if name not in gone]
    return keep(waiting), keep(running), {n: b for n, b in blocks.items() if n not in gone}, num_free + back
""",
    ),
    "b1-in-place": (
        "c04-b1",
        "changes what it is given; tries both lists",
        """
# EXERCISE c04-b1
def abort(gone, waiting, running, blocks, num_free):
    for name in dict.fromkeys(gone):
        for line in (waiting, running):
            while name in line:
                line.remove(name)
        if name in blocks:
            num_free = num_free + blocks[name]
            del blocks[name]
    return [waiting, running, blocks, num_free]
""",
    ),
}
