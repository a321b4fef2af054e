"""Wrong answers to c04-e2, one mistake each, and what the learner must be told. Knows no right answer. Chapter 4."""

from tools.mutant_table import Mutant

MUTANTS = {
    "e2-left-out-waits": Mutant(
        "c04-e2",
        "calls whoever is left out of a step waiting",
        "left out of a step waits there",
        """
# EXERCISE c04-e2
def lives(records):
    out = {}
    def put(name, step, state):
        life = out.setdefault(name, [])
        if not life or life[-1][1] != state:
            life.append([step, state])
    for r in records:
        step = r["step"]
        for name in r["arrivals"]:
            put(name, step, "waiting")
        for name in r["aborted"]:
            put(name, step, "finished")
        for name in r["preempted"]:
            put(name, step, "preempted")
        for name in r["scheduled"]:
            put(name, step, "running")
        for name in r["finished"]:
            put(name, step, "finished")
        for name in out:
            if out[name][-1][1] == "running" and name not in r["scheduled"]:
                put(name, step, "waiting")
    return out
""",
    ),
    "e2-evicted-waits": Mutant(
        "c04-e2",
        "calls the evicted ones waiting",
        'It is "preempted"',
        """
# EXERCISE c04-e2
def lives(records):
    out = {}
    names = {"arrivals": "waiting", "aborted": "finished", "preempted": "waiting",
             "scheduled": "running", "finished": "finished"}
    for r in records:
        for event, state in names.items():
            for name in r[event]:
                life = out.setdefault(name, [])
                if not life or life[-1][1] != state:
                    life.append([r["step"], state])
    return out
""",
    ),
    "e2-no-evictions": Mutant(
        "c04-e2",
        "passes over evictions",
        "Evictions are missing",
        """
# EXERCISE c04-e2
def lives(records):
    out = {}
    names = {"arrivals": "waiting", "aborted": "finished", "scheduled": "running", "finished": "finished"}
    for r in records:
        for event, state in names.items():
            for name in r[event]:
                life = out.setdefault(name, [])
                if not life or life[-1][1] != state:
                    life.append([r["step"], state])
    return out
""",
    ),
    "e2-no-aborts": Mutant(
        "c04-e2",
        "passes over aborts",
        "Aborts are missing",
        """
# EXERCISE c04-e2
def lives(records):
    out = {}
    names = {"arrivals": "waiting", "preempted": "preempted", "scheduled": "running", "finished": "finished"}
    for r in records:
        for event, state in names.items():
            for name in r[event]:
                life = out.setdefault(name, [])
                if not life or life[-1][1] != state:
                    life.append([r["step"], state])
    return out
""",
    ),
    "e2-every-step": Mutant(
        "c04-e2",
        "writes down every step in which somebody is scheduled",
        "Write only when the state changes",
        """
# EXERCISE c04-e2
def lives(records):
    out = {}
    names = {"arrivals": "waiting", "aborted": "finished", "preempted": "preempted",
             "scheduled": "running", "finished": "finished"}
    for r in records:
        for event, state in names.items():
            for name in r[event]:
                out.setdefault(name, []).append([r["step"], state])
    return out
""",
    ),
    "e2-never-again": Mutant(
        "c04-e2",
        "lets nobody run a second time",
        "is never running again there",
        """
# EXERCISE c04-e2
def lives(records):
    out, started = {}, set()
    for r in records:
        step = r["step"]
        for name in r["arrivals"]:
            out[name] = [[step, "waiting"]]
        for name in r["aborted"]:
            out[name].append([step, "finished"])
        for name in r["preempted"]:
            if [s for _, s in out[name]].count("preempted") == 0:
                out[name].append([step, "preempted"])
        for name in r["scheduled"]:
            if name not in started:
                started.add(name)
                out[name].append([step, "running"])
        for name in r["finished"]:
            out[name].append([step, "finished"])
    return out
""",
    ),
    "e2-finished-late": Mutant(
        "c04-e2",
        "lets everybody finish one step late",
        "one step late there",
        """
# EXERCISE c04-e2
def lives(records):
    out = {}
    names = {"arrivals": "waiting", "aborted": "finished", "preempted": "preempted",
             "scheduled": "running", "finished": "finished"}
    for r in records:
        for event, state in names.items():
            for name in r[event]:
                life = out.setdefault(name, [])
                if not life or life[-1][1] != state:
                    life.append([r["step"] + (event == "finished"), state])
    return out
""",
    ),
    "e2-number-of-the-record": Mutant(
        "c04-e2",
        "counts records instead of taking their step",
        "expected [[3, 'waiting'], [3, 'finished']], got [[0, 'waiting'], [0, 'finished']]",
        """
# EXERCISE c04-e2
def lives(records):
    out = {}
    names = {"arrivals": "waiting", "aborted": "finished", "preempted": "preempted",
             "scheduled": "running", "finished": "finished"}
    for number, r in enumerate(records):
        for event, state in names.items():
            for name in r[event]:
                life = out.setdefault(name, [])
                if not life or life[-1][1] != state:
                    life.append([number, state])
    return out
""",
    ),
}
