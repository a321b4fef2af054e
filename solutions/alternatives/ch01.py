"""Right answers to chapter 1's exercises by other roads than the solution. Every one must pass. Chapter 1.

ALTERNATIVES: id -> (exercise, what is different, the cell).
"""

ALTERNATIVES = {
    "e1-step-by-step": (
        "c01-e1",
        "walks through all slot-steps and counts; other names",
        """
# EXERCISE c01-e1
def static_waste(lens, B):
    idle = total = 0
    queue = list(lens)
    while queue:
        batch, queue = queue[:B], queue[B:]
        batch += [0] * (B - len(batch))
        for step in range(max(batch)):
            for left in batch:
                total += 1
                idle += left <= step
    return idle / total
""",
    ),
    "e1-fractions": (
        "c01-e1",
        "exact fractions; empties the list that it is given",
        """
# EXERCISE c01-e1
from fractions import Fraction
def static_waste(output_lens, batch_size):
    useful, paid = 0, 0
    while output_lens:
        batch = output_lens[:batch_size]
        del output_lens[:batch_size]
        useful += sum(batch)
        paid += batch_size * max(batch)
    return float(1 - Fraction(useful, paid))
""",
    ),
    "e1-numpy": (
        "c01-e1",
        "numpy; returns a numpy float",
        """
# EXERCISE c01-e1
import numpy as np
def static_waste(output_lens, batch_size):
    padded = np.zeros(-(-len(output_lens) // batch_size) * batch_size)
    padded[:len(output_lens)] = output_lens
    grid = padded.reshape(-1, batch_size)
    return 1 - grid.sum() / (batch_size * grid.max(axis=1).sum())
""",
    ),
    "e2-part-filled-batch-first": (
        "c01-e2",
        "shortest first, with the part-filled batch at the front; a generator of tuples",
        """
# EXERCISE c01-e2
def bucket(output_lens, batch_size):
    order = sorted(range(len(output_lens)), key=output_lens.__getitem__)
    first = len(order) % batch_size
    if first:
        yield tuple(order[:first])
    for start in range(first, len(order), batch_size):
        yield tuple(order[start:start + batch_size])
""",
    ),
    "e2-pick-the-longest": (
        "c01-e2",
        "no sort: takes the longest that is left, again and again",
        """
# EXERCISE c01-e2
def bucket(output_lens, batch_size):
    left, batches = set(range(len(output_lens))), []
    while left:
        batch = []
        while left and len(batch) < batch_size:
            longest = max(left, key=lambda i: (output_lens[i], i))
            left.remove(longest)
            batch.append(longest)
        batches.append(batch)
    return batches
""",
    ),
    "e3-slots-by-number": (
        "c01-e3",
        "computes for each request when it joins and when it ends; no step loop",
        """
# EXERCISE c01-e3
def continuous_schedule(requests, num_slots):
    free_from = [0] * num_slots
    spans = []
    for name, arrival, output_len in requests:
        slot = min(range(num_slots), key=lambda s: free_from[s])
        joins = max(arrival, free_from[slot])
        free_from[slot] = joins + output_len
        spans.append((joins, name, joins + output_len))
    end = max(end for _, _, end in spans)
    spans.sort(key=lambda span: span[0])   # stable: those who join in one step keep the order of arrival
    return [[name for joins, name, done in spans if joins <= step < done] for step in range(end)]
""",
    ),
    "e3-class-and-deque": (
        "c01-e3",
        "a deque, a small class, tuples as steps",
        """
# EXERCISE c01-e3
from collections import deque
class Guest:
    def __init__(self, name, left):
        self.name, self.left = name, left
def continuous_schedule(requests, num_slots):
    door, inside, history, now = deque(requests), [], [], 0
    while door or inside:
        while door and len(inside) < num_slots and door[0][1] <= now:
            name, _, tokens = door.popleft()
            inside.append(Guest(name, tokens))
        history.append(tuple(g.name for g in inside))
        for g in inside:
            g.left -= 1
        inside = [g for g in inside if g.left]
        now += 1
    return history
""",
    ),
    "b1-dict-first": (
        "c01-b1",
        "joins rows and tokens in a dict, then goes through the plan; numpy integers, a defaultdict",
        """
# EXERCISE c01-b1
from collections import defaultdict
import numpy as np
def deliver(plan, rows, sampled, prompt_left):
    of = {name: np.int64(token) for name, token in zip(rows, sampled)}
    sent = defaultdict(int)
    for name in plan:
        if not prompt_left[name]:
            sent[name] = of[name]
    return sent
""",
    ),
    "e3-generator": (
        "c01-e3",
        "a generator of tuples that walks a timeline of events; arrivals as a dict",
        """
# EXERCISE c01-e3
def continuous_schedule(requests, num_slots):
    total = {name: n for name, _, n in requests}
    came = {name: step for name, step, _ in requests}
    age, queue, step = {}, list(total), 0
    while queue or age:
        ready = [name for name in queue if came[name] <= step][: num_slots - len(age)]
        queue = [name for name in queue if name not in ready]
        age.update(dict.fromkeys(ready, 0))
        yield tuple(age)
        for name in list(age):
            age[name] += 1
            if age[name] == total[name]:
                age.pop(name)
        step += 1
""",
    ),
    "b1-by-index": (
        "c01-b1",
        "looks up each request's row",
        """
# EXERCISE c01-b1
def deliver(plan, rows, sampled, prompt_left):
    tokens = {}
    for name in plan:
        if prompt_left[name] > 0:
            continue
        tokens[name] = sampled[rows.index(name)]
    return tokens
""",
    ),
}
