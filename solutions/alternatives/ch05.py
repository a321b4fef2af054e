"""Right answers to chapter 5's exercises by other roads than the solution. Every one must pass. Chapter 5.

ALTERNATIVES: id -> (exercise, what is different, the cell).
"""

ALTERNATIVES = {
    "e1-computed": (
        "c05-e1",
        "lets a small function work it out",
        """
# EXERCISE c05-e1
runs = [(900, 397), (2300, 197), (120, 985)]
waits = {"D": (2000, 97), "E": (1500, 60), "F": (595, 300), "G": (16, 8)}
def worst(pair):
    return (sum(pair) - 1 + 15) // 16
def one(pool):
    left, reserved, enter = 4096 - len(runs), sum(map(worst, runs)), []
    for name, pair in waits.items():
        if pair[0] > left:
            return dict(enter=enter, tokens_left=left, blocks_reserved=reserved, stopped_by="token_budget")
        if reserved + worst(pair) > pool:
            return dict(enter=enter, tokens_left=left, blocks_reserved=reserved, stopped_by="kv_reservation")
        left, reserved, enter = left - pair[0], reserved + worst(pair), enter + [name]
step = {"tight": one(437), "wide": one(700)}
""",
    ),
    "e2-recursion": (
        "c05-e2",
        "a generator for the plan and a reason found afterwards; math.ceil; lists in place of tuples",
        """
# EXERCISE c05-e2
import math
def plan_step(running, waiting, limits):
    blocks = lambda r: math.ceil((r[1] + r[2] - 1) / limits["block_size"])
    entered = []
    def why(request):
        everybody = [*running, *entered, request]
        tokens = len(running) + sum(r[1] for r in [*entered, request])
        inputs = tokens + limits["draft_slots"] * len(everybody)
        if len(everybody) > limits["max_num_seqs"]:
            return "max_num_seqs"
        if tokens > limits["token_budget"] or inputs > limits["input_budget"]:
            return "token_budget"
        if sum(map(blocks, everybody)) > limits["num_blocks"]:
            return "kv_reservation"
    reason = None
    for request in waiting:
        reason = why(request)
        if reason:
            break
        entered.append(request)
    return [[r[0], 1] for r in running] + [[r[0], r[1]] for r in entered], reason
""",
    ),
    "e2-limits-count-down": (
        "c05-e2",
        "takes away from the limits as it goes, and pops the line",
        """
# EXERCISE c05-e2
def plan_step(running, waiting, limits):
    left = dict(limits)
    def take(prompt, most, tokens):
        left["max_num_seqs"] -= 1
        left["token_budget"] -= tokens
        left["input_budget"] -= tokens + left["draft_slots"]
        left["num_blocks"] -= (prompt + most - 1 + left["block_size"] - 1) // left["block_size"]
    plan = []
    for name, prompt, most in running:
        take(prompt, most, 1)
        plan.append((name, 1))
    while waiting:
        name, prompt, most = waiting[0]
        before = dict(left)
        take(prompt, most, prompt)
        if left["max_num_seqs"] < 0:
            return plan, "max_num_seqs"
        if left["token_budget"] < 0 or left["input_budget"] < 0:
            return plan, "token_budget"
        if left["num_blocks"] < 0:
            return plan, "kv_reservation"
        plan.append((waiting.pop(0)[0], prompt))
    return plan, None
""",
    ),
    "e3-copy-of-the-line": (
        "c05-e3",
        "walks a copy of the line, and starts whoever stands anywhere in it",
        """
# EXERCISE c05-e3
from collections import Counter
from mini_vllm.grading import my_stage
class MyScheduler(my_stage("ch04")):
    most_passed = 0
    def __init__(self, config):
        super().__init__(config)
        self.counts = Counter()
    def schedule(self):
        self.left = self.config.token_budget
        return super().schedule()
    def give(self, request, n, blocks):
        self.left -= n
        super().give(request, n, blocks)
    def start(self, request):
        self.waiting.remove(request)
        self.waiting.put_back(request)
        super().start(request)
    def why_not(self, request):
        most = self.config.max_model_len
        need = [self.config.blocks_for(min(r.longest, most) - 1) for r in [*self.running, request]]
        if len(self.running) == self.config.max_num_seqs:
            return "max_num_seqs"
        if request.num_prompt_tokens > self.left:
            return "token_budget"
        return "kv_reservation" if sum(need) > self.config.num_gpu_blocks else None
    def schedule_waiting(self):
        head = first = None
        for request in list(self.waiting):
            if head and self.counts[head] >= self.most_passed:
                break
            reason = self.why_not(request)
            first = first or reason
            if reason == "max_num_seqs":
                break
            if reason:
                head = head or request
            else:
                self.counts[head] += head is not None
                self.admit(request)
        return first
""",
    ),
    "e3-from-nothing": (
        "c05-e3",
        "extends nobody: four methods of its own, a list as line, blocks in a dict",
        """
# EXERCISE c05-e3
from mini_vllm.core.output import NewRequestData, RequestOutput, SchedulerOutput
class MyScheduler:
    most_passed = 0
    def __init__(self, config):
        self.config, self.line, self.runs = config, [], []
        self.free, self.tables, self.passes = list(range(1, config.num_gpu_blocks + 1)), {}, {}
    def add_request(self, request):
        self.line.append(request)
    def has_unfinished_requests(self):
        return bool(self.line or self.runs)
    def last(self, request):
        return min(request.longest, self.config.max_model_len)
    def worst(self, request):
        return -(-(self.last(request) - 1) // self.config.block_size)
    def blocks(self, request, tokens):
        table = self.tables.setdefault(request.request_id, [])
        more = -(-tokens // self.config.block_size) - len(table)
        new, self.free = self.free[:more], self.free[more:]
        table += new
        return new
    def schedule(self):
        plan, left = SchedulerOutput(), self.config.token_budget - len(self.runs)
        reserved = sum(map(self.worst, self.runs))
        for r in self.runs:
            done = r.num_computed_tokens
            plan.scheduled_cached_reqs.add(r.request_id, done, self.blocks(r, done + 1))
            plan.num_scheduled_tokens[r.request_id] = 1
        waits = []
        for r in self.line:
            head = waits[0] if waits else None
            shut = plan.blocked_reason == "max_num_seqs" or (head and self.passes.get(head, 0) >= self.most_passed)
            reason = None
            if shut or len(self.runs) >= self.config.max_num_seqs:
                reason = "max_num_seqs"
            elif r.num_tokens > left:
                reason = "token_budget"
            elif reserved + self.worst(r) > self.config.num_gpu_blocks:
                reason = "kv_reservation"
            if reason:
                waits.append(r)
                plan.blocked_reason = plan.blocked_reason or reason
                full = len(self.runs) >= self.config.max_num_seqs
                if full:
                    waits += [other for other in self.line if other not in waits and other not in self.runs]
                    break
                continue
            if head:
                self.passes[head] = self.passes.get(head, 0) + 1
            left, reserved = left - r.num_tokens, reserved + self.worst(r)
            new = self.blocks(r, r.num_tokens)
            data = NewRequestData(r.request_id, r.prompt_token_ids, r.sampling_params, new, 0)
            plan.scheduled_new_reqs.append(data)
            plan.num_scheduled_tokens[r.request_id] = r.num_tokens
            self.runs.append(r)
        self.line = waits
        for r in self.runs:
            r.num_computed_tokens += plan.num_scheduled_tokens[r.request_id]
        return plan
    def update_from_output(self, plan, output):
        news = []
        for r in list(self.runs):
            r.token_ids += output.sampled_token_ids[r.request_id]
            done = r.num_tokens == self.last(r)
            if done:
                self.runs.remove(r)
                self.free = self.tables.pop(r.request_id) + self.free
            news.append(RequestOutput(r.request_id, output.sampled_token_ids[r.request_id], "length" if done else None))
        return news
""",
    ),
    "b1-collected-first": (
        "c05-b1",
        "two passes: first who stays and what they get, then the plan is written once",
        """
# EXERCISE c05-b1
def plan_running(running, budget, free, block_size):
    line, gone, given, taken = list(running), [], {}, {}
    seen = set()
    while True:
        left = budget - sum(given.values())
        turn = [r for r in line if r["id"] not in seen]
        if not turn or left <= 0:
            break
        request = turn[0]
        seen.add(request["id"])
        n = min(request["known"] - request["computed"], left)
        if not n:
            continue
        need = max(0, -(-(request["computed"] + n) // block_size) - request["blocks"])
        while need > free and request in line:
            worst = max(r["priority"] for r in line)
            victim = [r for r in line if r["priority"] == worst][0]
            line.remove(victim)
            gone.append(victim["id"])
            free += victim["blocks"] + taken.pop(victim["id"], 0)
            given.pop(victim["id"], None)
        if request in line:
            given[request["id"]], taken[request["id"]] = n, need
            free -= need
    return given, budget - sum(given.values()), gone
""",
    ),
    "b1-by-identity": (
        "c05-b1",
        "finds its place again by the request itself instead of moving the index",
        """
# EXERCISE c05-b1
def plan_running(running, budget, free, block_size):
    plan, evicted = {}, []
    request = running[0] if running else None
    while request is not None and budget > 0:
        following = running[running.index(request) + 1:]
        n = min(request["known"] - request["computed"], budget)
        if n > 0:
            need = (request["computed"] + n + block_size - 1) // block_size - request["blocks"]
            while need > free and request in running:
                victim = sorted(running, key=lambda r: -r["priority"])[0]
                running.remove(victim)
                if victim in following:
                    following.remove(victim)
                free += victim["blocks"]
                budget += plan.pop(victim["id"], 0)
                evicted.append(victim["id"])
            if request in running:
                plan[request["id"]] = n
                request["blocks"] += need
                free -= need
                budget -= n
        request = following[0] if following else None
    return [plan, budget, evicted]
""",
    ),
}
