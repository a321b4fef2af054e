"""Wrong answers to chapter 1's exercises, one mistake each, and what the learner must be told. Chapter 1.

MUTANTS: id -> exercise, what it teaches, a fragment of the message that names the mistake, and the cell.
"""

from typing import NamedTuple


class Mutant(NamedTuple):
    exercise_id: str
    mistake: str
    says: str
    source: str


MUTANTS = {
    # --- e1 ---------------------------------------------------------------------------------------------------
    "e1-mean-of-wastes": Mutant(
        "c01-e1",
        "averages the wastes of the batches, as if a short batch cost as much as a long one",
        "mean of the batches' wastes",
        """
# EXERCISE c01-e1
def static_waste(output_lens, batch_size):
    wastes = []
    for start in range(0, len(output_lens), batch_size):
        batch = output_lens[start:start + batch_size]
        wastes.append(1 - sum(batch) / (batch_size * max(batch)))
    return sum(wastes) / len(wastes)
""",
    ),
    "e1-empty-slots-forgotten": Mutant(
        "c01-e1",
        "counts only slots with somebody in them, so the last batch looks full",
        "empty slots of the last batch",
        """
# EXERCISE c01-e1
def static_waste(output_lens, batch_size):
    paid = 0
    for start in range(0, len(output_lens), batch_size):
        batch = output_lens[start:start + batch_size]
        paid += len(batch) * max(batch)
    return 1 - sum(output_lens) / paid
""",
    ),
    "e1-longest-of-all": Mutant(
        "c01-e1",
        "lets every batch run as long as the longest request of all",
        "the longest request of all",
        """
# EXERCISE c01-e1
import math
def static_waste(output_lens, batch_size):
    batches = math.ceil(len(output_lens) / batch_size)
    return 1 - sum(output_lens) / (batches * batch_size * max(output_lens))
""",
    ),
    "e1-useful-share": Mutant(
        "c01-e1",
        "returns the share that is used",
        "useful share",
        """
# EXERCISE c01-e1
def static_waste(output_lens, batch_size):
    paid = sum(batch_size * max(output_lens[i:i + batch_size]) for i in range(0, len(output_lens), batch_size))
    return sum(output_lens) / paid
""",
    ),
    "e1-nan": Mutant(
        "c01-e1",
        "returns something that compares as false with everything",
        "no finite number",
        """
# EXERCISE c01-e1
def static_waste(output_lens, batch_size):
    return float("nan")
""",
    ),
    # --- e2 ---------------------------------------------------------------------------------------------------
    "e2-shortest-first": Mutant(
        "c01-e2",
        "sorts from the wrong end: the part-filled batch is the one of the longest requests",
        "shortest first",
        """
# EXERCISE c01-e2
def bucket(output_lens, batch_size):
    order = sorted(range(len(output_lens)), key=lambda i: output_lens[i])
    return [order[i:i + batch_size] for i in range(0, len(order), batch_size)]
""",
    ),
    "e2-arrival-order": Mutant(
        "c01-e2",
        "cuts the list as it is",
        "order of arrival",
        """
# EXERCISE c01-e2
def bucket(output_lens, batch_size):
    order = list(range(len(output_lens)))
    return [order[i:i + batch_size] for i in range(0, len(order), batch_size)]
""",
    ),
    "e2-last-batch-dropped": Mutant(
        "c01-e2",
        "an off-by-one in range drops the batch that is not full",
        "dropped when it is not full",
        """
# EXERCISE c01-e2
def bucket(output_lens, batch_size):
    order = sorted(range(len(output_lens)), key=lambda i: -output_lens[i])
    return [order[i:i + batch_size] for i in range(0, len(order) - batch_size + 1, batch_size)]
""",
    ),
    "e2-lengths-not-indices": Mutant(
        "c01-e2",
        "returns the lengths themselves",
        "stands for no request",
        """
# EXERCISE c01-e2
def bucket(output_lens, batch_size):
    order = sorted(output_lens, reverse=True)
    return [order[i:i + batch_size] for i in range(0, len(order), batch_size)]
""",
    ),
    "e2-one-big-batch": Mutant(
        "c01-e2",
        "ignores the batch size",
        "are allowed",
        """
# EXERCISE c01-e2
def bucket(output_lens, batch_size):
    return [list(range(len(output_lens)))]
""",
    ),
    # --- e3 ---------------------------------------------------------------------------------------------------
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
    # --- b1 ---------------------------------------------------------------------------------------------------
    "b1-rows-only": Mutant(
        "c01-b1",
        "joins by rows, but serves unfinished prompts",
        "whose prompt is not through is sampled too",
        """
# EXERCISE c01-b1
def deliver(plan, rows, sampled, prompt_left):
    return dict(zip(rows, sampled))
""",
    ),
    "b1-prompts-only": Mutant(
        "c01-b1",
        "leaves out unfinished prompts, but joins by the plan",
        "in the plan's order",
        """
# EXERCISE c01-b1
def deliver(plan, rows, sampled, prompt_left):
    return {name: token for name, token in zip(plan, sampled) if not prompt_left[name]}
""",
    ),
    "b1-sorted-ids": Mutant(
        "c01-b1",
        "sorts the ids, which looks right in a log that starts with A B C",
        "Sorted ids look right only",
        """
# EXERCISE c01-b1
def deliver(plan, rows, sampled, prompt_left):
    return {name: token for name, token in zip(sorted(plan), sampled) if not prompt_left[name]}
""",
    ),
    "b1-filtered-before-zip": Mutant(
        "c01-b1",
        "takes unfinished prompts out of the rows first, so that all tokens after them move up",
        "the token from the row of",
        """
# EXERCISE c01-b1
def deliver(plan, rows, sampled, prompt_left):
    ready = [name for name in rows if prompt_left[name] == 0]
    return dict(zip(ready, sampled))
""",
    ),
}
