"""Wrong answers to c05-e3: whose count, whose reason, what order. Knows no right answer. Chapter 5."""

from tools.mutant_table import Mutant

MUTANTS = {
    "e3-count-goes-on": Mutant(
        "c05-e3",
        "has one count for all heads",
        "Every request has a count of its own",
        """
# EXERCISE c05-e3
from mini_vllm.grading import my_stage


class MyScheduler(my_stage("ch04", to_extend=True)):
    most_passed = 0
    passed = None

    def schedule(self):
        self.budget, self.passed = self.config.token_budget, self.passed or {}
        return super().schedule()

    def give(self, request, n, blocks):
        super().give(request, n, blocks)
        self.budget -= n

    def reserve(self, request):
        return self.config.blocks_for(min(request.longest, self.config.max_model_len) - 1)

    def admit(self, request):
        if len(self.running) >= self.config.max_num_seqs:
            return "max_num_seqs"
        if request.num_new_tokens > self.budget:
            return "token_budget"
        if sum(map(self.reserve, [*self.running, request])) > self.config.num_gpu_blocks:
            return "kv_reservation"
        return super().admit(request)

    def schedule_waiting(self):
        aside, why, head = [], None, None
        while len(self.waiting) and (head is None or self.passed.get(head, 0) < self.most_passed):
            reason = self.admit(self.waiting.peek())
            if reason is None:
                if head:
                    self.passed[head] = self.passed.get(head, 0) + 1
                continue
            why = why or reason
            if reason == "max_num_seqs":
                break
            aside.append(self.waiting.pop())
            head = "the head"
        for request in aside[::-1]:
            self.waiting.put_back(request)
        return why
""",
    ),
    "e3-only-tokens": Mutant(
        "c05-e3",
        "lets nobody pass a head that lacks KV",
        "Whoever lacks KV stops the walk",
        """
# EXERCISE c05-e3
from mini_vllm.grading import my_stage


class MyScheduler(my_stage("ch04", to_extend=True)):
    most_passed = 0
    passed = None

    def schedule(self):
        self.budget, self.passed = self.config.token_budget, self.passed or {}
        return super().schedule()

    def give(self, request, n, blocks):
        super().give(request, n, blocks)
        self.budget -= n

    def reserve(self, request):
        return self.config.blocks_for(min(request.longest, self.config.max_model_len) - 1)

    def admit(self, request):
        if len(self.running) >= self.config.max_num_seqs:
            return "max_num_seqs"
        if request.num_new_tokens > self.budget:
            return "token_budget"
        if sum(map(self.reserve, [*self.running, request])) > self.config.num_gpu_blocks:
            return "kv_reservation"
        return super().admit(request)

    def schedule_waiting(self):
        aside, why, head = [], None, None
        while len(self.waiting) and (head is None or self.passed.get(head, 0) < self.most_passed):
            reason = self.admit(self.waiting.peek())
            if reason is None:
                if head:
                    self.passed[head] = self.passed.get(head, 0) + 1
                continue
            why = why or reason
            if reason != "token_budget":
                break
            aside.append(self.waiting.pop())
            head = aside[0].request_id
        for request in aside[::-1]:
            self.waiting.put_back(request)
        return why
""",
    ),
    "e3-last-reason": Mutant(
        "c05-e3",
        "gives the reason of the last one asked",
        "Give the reason of the head",
        """
# EXERCISE c05-e3
from mini_vllm.grading import my_stage


class MyScheduler(my_stage("ch04", to_extend=True)):
    most_passed = 0
    passed = None

    def schedule(self):
        self.budget, self.passed = self.config.token_budget, self.passed or {}
        return super().schedule()

    def give(self, request, n, blocks):
        super().give(request, n, blocks)
        self.budget -= n

    def reserve(self, request):
        return self.config.blocks_for(min(request.longest, self.config.max_model_len) - 1)

    def admit(self, request):
        if len(self.running) >= self.config.max_num_seqs:
            return "max_num_seqs"
        if request.num_new_tokens > self.budget:
            return "token_budget"
        if sum(map(self.reserve, [*self.running, request])) > self.config.num_gpu_blocks:
            return "kv_reservation"
        return super().admit(request)

    def schedule_waiting(self):
        aside, why, head = [], None, None
        while len(self.waiting) and (head is None or self.passed.get(head, 0) < self.most_passed):
            reason = self.admit(self.waiting.peek())
            if reason is None:
                if head:
                    self.passed[head] = self.passed.get(head, 0) + 1
                continue
            why = reason
            if reason == "max_num_seqs":
                break
            aside.append(self.waiting.pop())
            head = aside[0].request_id
        for request in aside[::-1]:
            self.waiting.put_back(request)
        return why
""",
    ),
    "e3-order-lost": Mutant(
        "c05-e3",
        "puts those who wait back in the wrong order",
        "go back in the wrong order",
        """
# EXERCISE c05-e3
from mini_vllm.grading import my_stage


class MyScheduler(my_stage("ch04", to_extend=True)):
    most_passed = 0
    passed = None

    def schedule(self):
        self.budget, self.passed = self.config.token_budget, self.passed or {}
        return super().schedule()

    def give(self, request, n, blocks):
        super().give(request, n, blocks)
        self.budget -= n

    def reserve(self, request):
        return self.config.blocks_for(min(request.longest, self.config.max_model_len) - 1)

    def admit(self, request):
        if len(self.running) >= self.config.max_num_seqs:
            return "max_num_seqs"
        if request.num_new_tokens > self.budget:
            return "token_budget"
        if sum(map(self.reserve, [*self.running, request])) > self.config.num_gpu_blocks:
            return "kv_reservation"
        return super().admit(request)

    def schedule_waiting(self):
        aside, why, head = [], None, None
        while len(self.waiting) and (head is None or self.passed.get(head, 0) < self.most_passed):
            reason = self.admit(self.waiting.peek())
            if reason is None:
                if head:
                    self.passed[head] = self.passed.get(head, 0) + 1
                continue
            why = why or reason
            if reason == "max_num_seqs":
                break
            aside.append(self.waiting.pop())
            head = aside[0].request_id
        for request in aside:
            self.waiting.put_back(request)
        return why
""",
    ),
}
