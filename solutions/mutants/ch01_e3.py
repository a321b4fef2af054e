"""Wrong answers to c01-e3, one mistake each, and what the learner must be told. Knows no right answer. Chapter 1."""

from tools.mutant_table import Mutant

MUTANTS = {
    "e3-slot-one-step-late": Mutant(
        "c01-e3",
        "takes leavers out after the free slots of the next step were counted",
        "stays empty in step k+1",
        """
# EXERCISE c01-e3
def continuous_schedule(requests, num_slots):
    to_come, running, schedule, step = list(requests), [], [], 0
    while to_come or any(left for _, left in running):
        free = num_slots - len(running)                       # counts those who are done as well
        running = [[name, left] for name, left in running if left]
        while free > 0 and to_come and to_come[0][1] <= step:
            name, _, output_len = to_come.pop(0)
            running.append([name, output_len])
            free -= 1
        schedule.append([name for name, _ in running])
        for entry in running:
            entry[1] -= 1
        step += 1
    return schedule
""",
    ),
    "e3-static-door": Mutant(
        "c01-e3",
        "lets nobody in until the batch is empty",
        "That is static batching",
        """
# EXERCISE c01-e3
def continuous_schedule(requests, num_slots):
    to_come, running, schedule = list(requests), {}, []
    while to_come or running:
        if not running:
            while len(running) < num_slots and to_come and to_come[0][1] <= len(schedule):
                name, _, output_len = to_come.pop(0)
                running[name] = output_len
        schedule.append(list(running))
        running = {name: left - 1 for name, left in running.items() if left > 1}
    return schedule
""",
    ),
    "e3-stops-at-gap": Mutant(
        "c01-e3",
        "ends the loop in the first idle step",
        "somebody is still to come",
        """
# EXERCISE c01-e3
def continuous_schedule(requests, num_slots):
    to_come, running, schedule = list(requests), {}, []
    while to_come and to_come[0][1] > len(schedule):
        schedule.append([])
    while True:
        while len(running) < num_slots and to_come and to_come[0][1] <= len(schedule):
            name, _, output_len = to_come.pop(0)
            running[name] = output_len
        if not running:
            return schedule
        schedule.append(list(running))
        running = {name: left - 1 for name, left in running.items() if left > 1}
""",
    ),
    "e3-arrival-ignored": Mutant(
        "c01-e3",
        "never looks at arrival_step",
        "before they have arrived",
        """
# EXERCISE c01-e3
def continuous_schedule(requests, num_slots):
    waiting, running, schedule = list(requests), {}, []
    while waiting or running:
        while len(running) < num_slots and waiting:
            name, _, output_len = waiting.pop(0)
            running[name] = output_len
        schedule.append(list(running))
        running = {name: left - 1 for name, left in running.items() if left > 1}
    return schedule
""",
    ),
    "e3-newest-first": Mutant(
        "c01-e3",
        "takes from the wrong end of the waiting line",
        "newest of those waiting",
        """
# EXERCISE c01-e3
def continuous_schedule(requests, num_slots):
    to_come, waiting, running, schedule = list(requests), [], {}, []
    while to_come or waiting or running:
        while to_come and to_come[0][1] <= len(schedule):
            waiting.append(to_come.pop(0))
        while len(running) < num_slots and waiting:
            name, _, output_len = waiting.pop()
            running[name] = output_len
        schedule.append(list(running))
        running = {name: left - 1 for name, left in running.items() if left > 1}
    return schedule
""",
    ),
    "e3-live-list": Mutant(
        "c01-e3",
        "writes down the running list itself, which goes on changing, instead of a copy",
        "Every step shows how it was at the end",
        """
# EXERCISE c01-e3
def continuous_schedule(requests, num_slots):
    to_come, running, left, schedule = list(requests), [], {}, []
    while to_come or running:
        while len(running) < num_slots and to_come and to_come[0][1] <= len(schedule):
            name, _, output_len = to_come.pop(0)
            running.append(name)
            left[name] = output_len
        schedule.append(running)
        for name in list(running):
            left[name] -= 1
            if left[name] == 0:
                running.remove(name)
    return schedule
""",
    ),
    "e3-sorted-by-name": Mutant(
        "c01-e3",
        "writes the ids of a step in alphabetical order",
        "sorted by name",
        """
# EXERCISE c01-e3
def continuous_schedule(requests, num_slots):
    to_come, running, schedule = list(requests), {}, []
    while to_come or running:
        while len(running) < num_slots and to_come and to_come[0][1] <= len(schedule):
            name, _, output_len = to_come.pop(0)
            running[name] = output_len
        schedule.append(sorted(running))
        running = {name: left - 1 for name, left in running.items() if left > 1}
    return schedule
""",
    ),
    "e3-one-a-step": Mutant(
        "c01-e3",
        "lets one request join in a step, with an if where a while is meant",
        "One request joins in each step",
        """
# EXERCISE c01-e3
def continuous_schedule(requests, num_slots):
    to_come, running, schedule = list(requests), {}, []
    while to_come or running:
        if len(running) < num_slots and to_come and to_come[0][1] <= len(schedule):
            name, _, output_len = to_come.pop(0)
            running[name] = output_len
        schedule.append(list(running))
        running = {name: left - 1 for name, left in running.items() if left > 1}
    return schedule
""",
    ),
    "e3-one-step-too-many": Mutant(
        "c01-e3",
        "takes out those who are done at the start of the next step, and so needs a step more",
        "All is right but the end",
        """
# EXERCISE c01-e3
def continuous_schedule(requests, num_slots):
    to_come, running, schedule = list(requests), {}, []
    while to_come or running:
        running = {name: left for name, left in running.items() if left}
        while len(running) < num_slots and to_come and to_come[0][1] <= len(schedule):
            name, _, output_len = to_come.pop(0)
            running[name] = output_len
        schedule.append(list(running))
        for name in running:
            running[name] -= 1
    return schedule
""",
    ),
    "e3-stops-when-idle": Mutant(
        "c01-e3",
        "returns in the first step in which nobody runs",
        "even before the first request has come",
        """
# EXERCISE c01-e3
def continuous_schedule(requests, num_slots):
    to_come, waiting, running, schedule = list(requests), [], {}, []
    while to_come or waiting or running:
        while to_come and to_come[0][1] <= len(schedule):
            waiting.append(to_come.pop(0))
        while waiting and len(running) < num_slots:
            name, _, output_len = waiting.pop(0)
            running[name] = output_len
        if not running:
            return schedule
        schedule.append(list(running))
        running = {name: left - 1 for name, left in running.items() if left > 1}
    return schedule
""",
    ),
    "e3-arrives-late": Mutant(
        "c01-e3",
        "tests arrival_step < k",
        "Everybody joins a step late",
        """
# EXERCISE c01-e3
def continuous_schedule(requests, num_slots):
    to_come, waiting, running, schedule = list(requests), [], {}, []
    while to_come or waiting or running:
        while to_come and to_come[0][1] < len(schedule):
            waiting.append(to_come.pop(0))
        while waiting and len(running) < num_slots:
            name, _, output_len = waiting.pop(0)
            running[name] = output_len
        schedule.append(list(running))
        running = {name: left - 1 for name, left in running.items() if left > 1}
    return schedule
""",
    ),
    "e3-prefill-extra": Mutant(
        "c01-e3",
        "takes the step of joining for the prompt and advances output_len times after it",
        "advances once more than its output_len",
        """
# EXERCISE c01-e3
def continuous_schedule(requests, num_slots):
    to_come, waiting, running, schedule = list(requests), [], {}, []
    while to_come or waiting or running:
        while to_come and to_come[0][1] <= len(schedule):
            waiting.append(to_come.pop(0))
        while waiting and len(running) < num_slots:
            name, _, output_len = waiting.pop(0)
            running[name] = output_len + 1
        schedule.append(list(running))
        running = {name: left - 1 for name, left in running.items() if left > 1}
    return schedule
""",
    ),
}
