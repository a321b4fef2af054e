"""Wrong answers to c04-e3 that lose somebody, or seat the wrong one. Knows no right answer. Chapter 4."""

from tools.mutant_table import Mutant

HEAD = """
# EXERCISE c04-e3
from mini_vllm.stages.ch04_admit_retire import Scheduler as Stage4


class MyScheduler(Stage4):
    held = frozenset()

    def hold(self, request_id):
        self.held = self.held | {request_id}

    def grammar_ready(self, request_id):
        self.held = self.held - {request_id}

    def schedule_waiting(self):
"""

MUTANTS = {
    "e3-never-back": Mutant(
        "c04-e3",
        "takes out who is held and never puts it back",
        "stand in it again",
        HEAD
        + """
        while len(self.waiting):
            head = self.waiting.peek()
            if head.request_id in self.held:
                self.waiting.pop()
            elif reason := self.admit(head):
                return reason
""",
    ),
    "e3-returns-too-soon": Mutant(
        "c04-e3",
        "returns the reason before it puts back who was passed over",
        "whichever way it returns",
        HEAD
        + """
        aside = []
        while len(self.waiting):
            head = self.waiting.peek()
            if head.request_id in self.held:
                aside.append(self.waiting.pop())
            elif reason := self.admit(head):
                return reason
        for request in aside[::-1]:
            self.waiting.put_back(request)
""",
    ),
    "e3-admits-from-the-middle": Mutant(
        "c04-e3",
        "gives admit somebody who is not the head",
        "seats the *head* of the line",
        HEAD
        + """
        for request in list(self.waiting):
            if request.request_id not in self.held:
                if reason := self.admit(request):
                    return reason
""",
    ),
}
