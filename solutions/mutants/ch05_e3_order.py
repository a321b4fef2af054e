"""Wrong answers to c05-e3: reservations, the order of tests and of the line. Knows no right answer. Chapter 5."""

from tools.mutant_table import Mutant

CELL = """
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
        aside, why, head, before = [], None, None, 0
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
        for request in aside[::-1]:
            self.waiting.put_back(request)
        return why
"""


def cell_with(*changes: tuple[str, str]) -> str:
    """The cell with texts replaced, each of which stands in it once."""
    source = CELL
    for old, new in changes:
        assert source.count(old) == 1, old
        source = source.replace(old, new)
    return source


TOKENS_TEST = """        if request.num_new_tokens > self.budget:
            return "token_budget"
"""
BLOCKS_TEST = """        if sum(map(self.reserve, [*self.running, request])) > self.config.num_gpu_blocks:
            return "kv_reservation"
"""
COUNTED = "self.passed[head] = self.passed.get(head, 0) + 1\n"

MUTANTS = {
    "e3-put-back-in-order": Mutant(
        "c05-e3",
        "puts those who were asked back in the order in which they came out",
        "go back in the wrong order",
        cell_with(("aside[::-1]", "aside")),
    ),
    "e3-tested-once-a-step": Mutant(
        "c05-e3",
        "tests most_passed when it finds the head, and not again in that step",
        "is tested once a step",
        cell_with(
            ("self.passed.get(head, 0) < self.most_passed", "before < self.most_passed"),
            ("            head = aside[0].request_id\n",
             "            head = aside[0].request_id\n"
             "            before = before if aside[1:] else self.passed.get(head, 0)\n"),
        ),
    ),
    "e3-one-a-step": Mutant(
        "c05-e3",
        "lets one pass in each step",
        "One passes in each step",
        cell_with((COUNTED, COUNTED + "                    break\n")),
    ),
    "e3-blocks-first": Mutant(
        "c05-e3",
        "tests the blocks before the tokens",
        "Blocks are looked at before tokens",
        cell_with((TOKENS_TEST, ""), (BLOCKS_TEST, BLOCKS_TEST + TOKENS_TEST)),
    ),
    "e3-reserves-the-last-token": Mutant(
        "c05-e3",
        "reserves room for the KV of the last token",
        "Reserved is a token too much",
        cell_with(("self.config.max_model_len) - 1)", "self.config.max_model_len))")),
    ),
    "e3-no-longest-model": Mutant(
        "c05-e3",
        "reserves max_tokens where max_model_len ends the answer sooner",
        "max_model_len is missing",
        cell_with(("min(request.longest, self.config.max_model_len) - 1", "request.longest - 1")),
    ),
    "e3-free-blocks": Mutant(
        "c05-e3",
        "looks at the blocks that are free now, not at those that are reserved",
        "Add up reservations, not blocks in use",
        cell_with(
            ("sum(map(self.reserve, [*self.running, request])) > self.config.num_gpu_blocks",
             "self.reserve(request) > self.kv_cache_manager.num_free_blocks"),
        ),
    ),
}  # fmt: skip
