"""Right answers to chapter 7's exercises by other roads than the solution. Every one must pass. Chapter 7.

ALTERNATIVES: id -> (exercise, what is different, the cell).
"""

ALTERNATIVES = {
    "e1-tuple-and-floats": (
        "c07-e1",
        "a tuple for the list, floats, the keys in the other order",
        """
# EXERCISE c07-e1
found = dict(blocks_of_D=(5, 4, 3), hits=dict(G=4.0, F=0.0, E=8.0, C=12.0))
""",
    ),
    "e1-simulated": (
        "c07-e1",
        "works it out with a queue and a dictionary",
        """
# EXERCISE c07-e1
queue, holds = [1, 2, 3, 4, 5], {}
hits, taken = {}, {}
for name, prompt in dict(A="PQR", B="Sx", C="PQRy", D="TUv", E="PQRz", F="Sw", G="PQ").items():
    full = [prompt[: i + 1] for i, letter in enumerate(prompt) if letter.isupper()]
    most = len(full) - (len(full) == len(prompt))
    table = []
    for text in full[:most]:
        at = next((block for block, held in holds.items() if held == text), None)
        if at is None:
            break
        table.append(at)
        queue.remove(at)
    hits[name] = 4 * len(table)
    taken[name] = [queue.pop(0) for _ in range(len(prompt) - len(table))]
    for block in taken[name]:
        holds.pop(block, None)
    table += taken[name]
    for block, text in zip(table, full):
        holds.setdefault(block, text)
    for block in reversed(table):
        queue.insert(len(queue) if block in holds else 0, block)
found = {"hits": {name: hits[name] for name in "CEFG"}, "blocks_of_D": taken["D"]}
""",
    ),
    "e2-everything-before": (
        "c07-e2",
        "the whole prefix as one nested tuple, no chain; pictures as tuples",
        """
# EXERCISE c07-e2
def block_names(requests, block_size):
    out = []
    for tokens, salt, adapter, images in requests:
        left = list(images)[::-1]
        seen = tuple(("picture", left.pop()) if t == 0 else t for t in tokens)
        out.append([(("salt", salt), ("adapter", adapter), seen[:end])
                    for end in range(block_size, len(seen) + 1, block_size)])
    return out
""",
    ),
    "e2-hashed": (
        "c07-e2",
        "a chain of SHA-256 over JSON, as hexadecimal text",
        """
# EXERCISE c07-e2
import hashlib, json
def block_names(requests, block_size):
    def digest(*parts):
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()
    for tokens, salt, adapter, images in requests:
        parent, names, pictures = digest("root", salt, adapter), [], 0
        for i in range(len(tokens) // block_size):
            block = tokens[i * block_size : (i + 1) * block_size]
            zeros = sum(token == 0 for token in block)
            parent = digest(parent, block, images[pictures : pictures + zeros])
            pictures += zeros
            names.append(parent)
        yield names
""",
    ),
    "e2-numbers": (
        "c07-e2",
        "a number for every new name, counted up in a dictionary",
        """
# EXERCISE c07-e2
def block_names(requests, block_size):
    numbers = {}
    def number(*what):
        return numbers.setdefault(what, len(numbers))
    answer = []
    for tokens, salt, adapter, images in requests:
        at, node, names, k = 0, number("root", salt, adapter), [], 0
        for at, token in enumerate(tokens, start=1):
            if token == 0:
                node, k = number(node, "image", images[k]), k + 1
            else:
                node = number(node, token)
            if at % block_size == 0:
                names.append(node)
        answer.append(names)
    return answer
""",
    ),
    "e3-key": (
        "c07-e3",
        "one key for head, hits and place; the step of arrival in place of a count; no super().__init__",
        """
# EXERCISE c07-e3
from mini_vllm.grading import my_stage
from mini_vllm.request import RUNNING

class Scheduler(my_stage("ch06")):
    patience, now, came = 0, -1, None

    def schedule_waiting(self):
        self.now += 1
        self.came = {r: (self.came or {}).get(r, self.now) for r in self.waiting}
        reason = None
        while self.waiting and not reason:
            place = {r: i for i, r in enumerate(self.waiting)}
            reason = self.admit(min(place, key=lambda r: self.rank(r, place[r])))
        return reason

    def rank(self, request, place):
        patient = place > 0 or self.now - self.came[request] < self.patience
        return patient, -len(self.kv_cache_manager.get_computed_blocks(request)), place

    def start(self, request):
        self.waiting.remove(request)
        request.transition_to(RUNNING)
        self.running.append(request)

    def admit(self, request):
        if len(self.running) == self.config.max_num_seqs:
            return "max_num_seqs"
        found = self.kv_cache_manager.get_computed_blocks(request)
        request.num_computed_tokens = 0
        n = request.num_new_tokens - len(found) * self.config.block_size
        if n > self.budget:
            return "token_budget"
        spare = self.config.watermark_blocks * bool(self.running)
        new = self.kv_cache_manager.allocate_slots(
            request, n, hits=found, full_sequence=True, watermark_blocks=spare
        )
        if new is None:
            return "kv_full_sequence"
        self.start(request)
        request.num_computed_tokens = self.config.block_size * len(found)
        self.give(request, n, found + new)
""",
    ),
    "e3-front": (
        "c07-e3",
        "takes the chosen one out, puts it in front, and puts it back into its place if it must wait",
        """
# EXERCISE c07-e3
from mini_vllm.grading import my_stage

class Scheduler(my_stage("ch06", to_extend=True)):
    patience = 0

    def __init__(self, config):
        super().__init__(config)
        self.waited = {}

    def add_request(self, request):
        super().add_request(request)
        self.waited[request.request_id] = 0

    def schedule(self):
        plan = super().schedule()
        for request in self.waiting:
            self.waited[request.request_id] += 1
        return plan

    def schedule_waiting(self):
        while self.waiting:
            line = list(self.waiting)
            chosen = line[0]
            if self.waited[chosen.request_id] < self.patience:
                best = -1
                for request in line:
                    hits = len(self.kv_cache_manager.get_computed_blocks(request))
                    if hits > best:
                        best, chosen = hits, request
            self.waiting.remove(chosen)
            self.waiting.put_back(chosen)
            reason = self.admit(chosen)
            if reason:
                for request in line:
                    self.waiting.remove(request)
                    self.waiting.add(request)
                return reason

    def admit(self, request):
        if len(self.running) >= self.config.max_num_seqs:
            return "max_num_seqs"
        hits = self.kv_cache_manager.get_computed_blocks(request)
        start = len(hits) * self.config.block_size
        if request.num_tokens - start > self.budget:
            return "token_budget"
        blocks = self.kv_cache_manager.allocate_slots(
            request,
            request.num_tokens - start,
            hits=hits,
            watermark_blocks=self.config.watermark_blocks if len(self.running) > 0 else 0,
        )
        if blocks is None:
            return "kv_chunk"
        self.start(request)
        request.num_computed_tokens = start
        self.give(request, request.num_tokens - start, list(hits) + list(blocks))
""",
    ),
    "b1-recursive-and-list": (
        "c07-b1",
        "counts with itertools; returns a list",
        """
# EXERCISE c07-b1
from itertools import takewhile
def enter(token_ids, cache, block_size):
    n = len(token_ids)
    names = [tuple(token_ids[:end]) for end in range(block_size, n + 1, block_size)]
    usable = names[: -1] if n % block_size == 0 else names
    start = block_size * len(list(takewhile(cache.__contains__, usable)))
    cache |= set(names)
    return [start, n - start]
""",
    ),
    "b1-back-off": (
        "c07-b1",
        "looks as before and gives one block back after a full hit; its own names",
        """
# EXERCISE c07-b1
def enter(token_ids, cache, block_size):
    start, mine = 0, []
    for i in range(len(token_ids) // block_size):
        mine.append(repr(token_ids[: (i + 1) * block_size]))
    for i, name in enumerate(mine):
        if name not in cache:
            break
        start = (i + 1) * block_size
    if start == len(token_ids):
        start -= block_size
    for name in mine:
        cache.add(name)
    return start, len(token_ids) - start
""",
    ),
}
