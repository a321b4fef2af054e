"""Wrong answers to c04-e3, one mistake each, and what the learner must be told. Knows no right answer. Chapter 4."""

from tools.mutant_table import Mutant

MUTANTS = {
    "e3-stops": Mutant(
        "c04-e3",
        "lets the head of the line block everybody",
        "nobody behind it is looked at",
        """
# EXERCISE c04-e3
from mini_vllm.stages.ch04_admit_retire import Scheduler as Stage4


class MyScheduler(Stage4):
    held = frozenset()

    def hold(self, request_id):
        self.held |= {request_id}

    def grammar_ready(self, request_id):
        self.held -= {request_id}

    def schedule_waiting(self):
        while len(self.waiting):
            head = self.waiting.peek()
            if head.request_id in self.held:
                return "grammar"
            if reason := self.admit(head):
                return reason
""",
    ),
    "e3-enters": Mutant(
        "c04-e3",
        "does not ask who is held",
        "Who is held enters all the same there",
        """
# EXERCISE c04-e3
from mini_vllm.stages.ch04_admit_retire import Scheduler as Stage4


class MyScheduler(Stage4):
    held = frozenset()

    def hold(self, request_id):
        self.held |= {request_id}

    def grammar_ready(self, request_id):
        self.held -= {request_id}

    def schedule_waiting(self):
        while len(self.waiting):
            if reason := self.admit(self.waiting.peek()):
                return reason
""",
    ),
    "e3-to-the-end": Mutant(
        "c04-e3",
        "sends whoever is passed over to the end of the line",
        "it goes to the end of the line",
        """
# EXERCISE c04-e3
from mini_vllm.stages.ch04_admit_retire import Scheduler as Stage4


class MyScheduler(Stage4):
    held = frozenset()

    def hold(self, request_id):
        self.held |= {request_id}

    def grammar_ready(self, request_id):
        self.held -= {request_id}

    def schedule_waiting(self):
        passed, reason = [], None
        while len(self.waiting) and not reason:
            head = self.waiting.peek()
            if head.request_id in self.held:
                passed.append(self.waiting.pop())
            else:
                reason = self.admit(head)
        for request in passed:
            self.waiting.add(request)
        return reason
""",
    ),
    "e3-turned-round": Mutant(
        "c04-e3",
        "puts several back in the wrong order",
        "put_back puts one in front of all",
        """
# EXERCISE c04-e3
from mini_vllm.stages.ch04_admit_retire import Scheduler as Stage4


class MyScheduler(Stage4):
    held = frozenset()

    def hold(self, request_id):
        self.held |= {request_id}

    def grammar_ready(self, request_id):
        self.held -= {request_id}

    def schedule_waiting(self):
        passed, reason = [], None
        while len(self.waiting) and not reason:
            head = self.waiting.peek()
            if head.request_id in self.held:
                passed.append(self.waiting.pop())
            else:
                reason = self.admit(head)
        for request in passed:
            self.waiting.put_back(request)
        return reason
""",
    ),
    "e3-few-looks": Mutant(
        "c04-e3",
        "looks at as many as there are seats",
        "those who are held use up the looks",
        """
# EXERCISE c04-e3
from mini_vllm.stages.ch04_admit_retire import Scheduler as Stage4


class MyScheduler(Stage4):
    held = frozenset()

    def hold(self, request_id):
        self.held |= {request_id}

    def grammar_ready(self, request_id):
        self.held -= {request_id}

    def schedule_waiting(self):
        passed, reason = [], None
        for _ in range(self.config.max_num_seqs - len(self.running)):
            if not len(self.waiting):
                break
            head = self.waiting.peek()
            if head.request_id in self.held:
                passed.append(self.waiting.pop())
            else:
                reason = self.admit(head)
        for request in reversed(passed):
            self.waiting.put_back(request)
        return reason
""",
    ),
    "e3-lost": Mutant(
        "c04-e3",
        "takes out whoever is held and never puts it back",
        "Who is in no list is never served",
        """
# EXERCISE c04-e3
from mini_vllm.stages.ch04_admit_retire import Scheduler as Stage4


class MyScheduler(Stage4):
    held = frozenset()

    def hold(self, request_id):
        self.held |= {request_id}

    def grammar_ready(self, request_id):
        self.held -= {request_id}

    def schedule_waiting(self):
        while len(self.waiting):
            head = self.waiting.peek()
            if head.request_id in self.held:
                self.waiting.pop()
            elif reason := self.admit(head):
                return reason
""",
    ),
    "e3-seat-for-the-held": Mutant(
        "c04-e3",
        "gives whoever is held a seat",
        "schedules 0 tokens",
        """
# EXERCISE c04-e3
from mini_vllm.stages.ch04_admit_retire import Scheduler as Stage4


class MyScheduler(Stage4):
    held = frozenset()

    def hold(self, request_id):
        self.held |= {request_id}

    def grammar_ready(self, request_id):
        self.held -= {request_id}

    def schedule_waiting(self):
        while len(self.waiting):
            if len(self.running) >= self.config.max_num_seqs:
                return "max_num_seqs"
            request = self.waiting.peek()
            self.start(request)
            if request.request_id in self.held:
                self.give(request, 0, [])
            else:
                self.advance(request, request.num_new_tokens)
""",
    ),
}
