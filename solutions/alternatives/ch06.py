"""Right answers to chapter 6's exercises by other roads than the solution. Every one must pass. Chapter 6.

ALTERNATIVES: id -> (exercise, what is different, the cell).
"""

ALTERNATIVES = {
    "e1-in-another-order": (
        "c06-e1",
        "the three values in another order, built up step by step",
        """
# EXERCISE c06-e1
queue, tables = [1, 2, 3, 4, 5, 6, 7, 8], {}
for name, total in (("A", 6), ("B", 3), ("C", 5), ("A", 9), ("B", 4), ("A", 0), ("B", 5), ("D", 10), ("C", 0)):
    table = tables.setdefault(name, [])
    while total and 4 * len(table) < total:
        table.append(queue.pop(0))
    if not total:
        queue = tables.pop(name)[::-1] + queue
pool = {"slot_of_token_9_of_D": tables["D"][2] * 4 + 1}
pool.update(free_queue=queue, table_of_D=tables["D"])
""",
    ),
    "e2-loop": (
        "c06-e2",
        "takes block by block from a copy; divides with math.ceil",
        """
# EXERCISE c06-e2
import math
def allocate(free_queue, num_owned, num_computed, num_new, block_size, num_known, watermark):
    end = num_computed + num_new
    needs = [math.ceil(tokens / block_size) - num_owned for tokens in (end, num_known or end)]
    if len(free_queue) - max(needs) < watermark:
        return [None, list(free_queue)]
    left, blocks = list(free_queue), []
    while (num_owned + len(blocks)) * block_size < end:
        blocks.append(left.pop(0))
    return [blocks, left]
""",
    ),
    "e2-two-tests": (
        "c06-e2",
        "two tests in the order of vLLM, first the whole, then the piece; returns a generator's list",
        """
# EXERCISE c06-e2
def allocate(free_queue, num_owned, num_computed, num_new, block_size, num_known, watermark):
    def lacks(tokens):
        return (tokens + block_size - 1) // block_size - num_owned
    if num_known is not None and lacks(num_known) + watermark > len(free_queue):
        return None, free_queue
    n = lacks(num_computed + num_new)
    if n + watermark > len(free_queue):
        return None, free_queue
    return list(free_queue[i] for i in range(n)), free_queue[n:]
""",
    ),
    "e3-only-where-somebody-ends": (
        "c06-e3",
        "looks only at the last step of each request: the sum can only fall after it",
        """
# EXERCISE c06-e3
from mini_vllm.stages.ch06_blocks import Scheduler as Stage6

class Scheduler(Stage6):
    def admit(self, request):
        if len(self.running) >= self.config.max_num_seqs:
            return "max_num_seqs"
        if request.num_new_tokens > self.budget:
            return "token_budget"
        inside = [*self.running, request]
        left = [min(r.longest, self.config.max_model_len) - r.num_tokens for r in inside]
        for k in {n - 1 for n in left}:
            need = sum(self.config.blocks_for(r.num_tokens + k) for r, n in zip(inside, left) if k < n)
            if need > self.config.num_gpu_blocks:
                return "kv_reservation"
        self.start(request)
        self.advance(request, request.num_new_tokens)
""",
    ),
    "e3-a-table-of-steps": (
        "c06-e3",
        "adds everybody's blocks into one row of steps, then looks at the largest",
        """
# EXERCISE c06-e3
from collections import Counter
from mini_vllm.stages.ch06_blocks import Scheduler as Stage6

class Scheduler(Stage6):
    def admit(self, request):
        reason = self.why_not(request)
        if reason is None:
            n = request.num_new_tokens
            blocks = self.kv_cache_manager.allocate_slots(request, n)
            self.start(request)
            self.give(request, n, blocks)
        return reason

    def why_not(self, request):
        cfg = self.config
        if cfg.max_num_seqs <= len(self.running):
            return "max_num_seqs"
        if self.budget < request.num_new_tokens:
            return "token_budget"
        row = Counter()
        for r in self.running + [request]:
            for k, tokens in enumerate(range(r.num_tokens, min(r.longest, cfg.max_model_len))):
                row[k] += (tokens + cfg.block_size - 1) // cfg.block_size
        if row and max(row.values()) > cfg.num_gpu_blocks:
            return "kv_reservation"
        return None
""",
    ),
    "b1-slices": (
        "c06-b1",
        "no set: the last entries of a table are different blocks",
        """
# EXERCISE c06-b1
class Tables:
    def __init__(self, num_blocks, window):
        self.window, self.tables = window, {}
        self.free, self.refs = list(range(1, num_blocks + 1)), [0] * (num_blocks + 1)
    def take(self):
        block = min(self.free)
        self.free.remove(block)
        self.refs[block] = 1
        return block
    def drop(self, block):
        self.refs[block] -= 1
        if self.refs[block] == 0:
            self.free.append(block)
    def start(self, name):
        self.tables[name] = []
    def grow(self, name):
        table = self.tables[name]
        if len(table) < self.window:
            table.append(self.take())
            return
        oldest = table[-self.window]
        if self.refs[oldest] == 1:
            table.append(oldest)
        else:
            table.append(self.take())
            self.drop(oldest)
    def fork(self, parent, child):
        self.tables[child] = self.tables[parent][:]
        for block in self.tables[child][-self.window:]:
            self.refs[block] += 1
    def end(self, name):
        for block in self.tables.pop(name)[-self.window:]:
            self.drop(block)
""",
    ),
    "b1-counts-anew": (
        "c06-b1",
        "counts all windows anew after every operation, and keeps no count in between",
        """
# EXERCISE c06-b1
class Tables:
    def __init__(self, num_blocks, window):
        self.window = window
        self.num_blocks = num_blocks
        self.tables = {}
        self.count()
    def count(self):
        self.refs = [0] * (self.num_blocks + 1)
        for table in self.tables.values():
            for block in table[-self.window:]:
                self.refs[block] += 1
        self.free = [b for b in range(1, self.num_blocks + 1) if not self.refs[b]]
    def start(self, name):
        self.tables[name] = []
    def grow(self, name):
        table = self.tables[name]
        alone = len(table) >= self.window and self.refs[table[-self.window]] == 1
        table.append(table[-self.window] if alone else self.free[0])
        self.count()
    def fork(self, parent, child):
        self.tables[child] = list(self.tables[parent])
        self.count()
    def end(self, name):
        del self.tables[name]
        self.count()
""",
    ),
}
