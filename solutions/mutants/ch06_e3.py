"""Wrong answers to c06-e3, one mistake each, and what the learner must be told. Knows no right answer. Chapter 6."""

from tools.mutant_table import Mutant

HEAD = """
# EXERCISE c06-e3
from mini_vllm.stages.ch06_blocks import Scheduler as Stage6


class Scheduler(Stage6):
    def admit(self, request):
        n = request.num_new_tokens
        if len(self.running) >= self.config.max_num_seqs:
            return "max_num_seqs"
        if n > self.budget:
            return "token_budget"
        if self.peak(EVERYBODY) > self.config.num_gpu_blocks:
            return "REASON"
        self.start(request)
        self.advance(request, n)
        return None
"""
PEAK = """
    def peak(self, everybody):
        size = self.config.block_size
        end = {r: END for r in everybody}
        sums = [0]
        for k in range(STEPS):
            sums.append(SUM)
        return max(sums)
"""
ADDED = """
    def peak(self, everybody):
        ends = [min(r.longest, self.config.max_model_len) - 1 for r in everybody]
        return sum(map(self.config.blocks_for, ends))
"""
PASSES_OVER = """
    def schedule_waiting(self):
        reason, passed = None, []
        while len(self.waiting):
            why = self.admit(self.waiting.peek())
            if why:
                reason = reason or why
                passed.append(self.waiting.pop())
        for request in reversed(passed):
            self.waiting.put_back(request)
        return reason
"""
USUAL = {
    "EVERYBODY": "[*self.running, request]",
    "REASON": "kv_reservation",
    "END": "min(r.longest, self.config.max_model_len)",
    "STEPS": "max(end.values(), default=0)",
    "SUM": "sum(-(-(r.num_tokens + k) // size) for r in everybody if r.num_tokens + k < end[r])",
}


def admit(peak: str = PEAK, more: str = "", **changes: str) -> str:
    """The cell, with what is changed in it."""
    cell = HEAD + peak + more
    for name, text in {**USUAL, **changes}.items():
        cell = cell.replace(name, text)
    return cell


def mutant(mistake: str, says: str, source: str) -> Mutant:
    return Mutant("c06-e3", mistake, says, source)


MUTANTS = {
    "e3-worst-cases-added": mutant(
        "adds the worst cases of everybody", "as if all were at their longest at once", admit(ADDED)
    ),
    "e3-only-now": mutant("looks at this step only", "does not fit at the peak", admit(STEPS="1")),
    "e3-last-token-too": mutant(
        "counts the last token as well",
        "Its KV is never computed",
        admit(STEPS="max(end.values()) + 1", SUM=USUAL["SUM"].replace("k < end", "k <= end")),
    ),
    "e3-model-length-forgotten": mutant("forgets max_model_len", "an output ends with it too", admit(END="r.longest")),
    "e3-tokens-not-blocks": mutant(
        "adds tokens and rounds once",
        "does not fit at the peak",
        admit(SUM="-(-sum(r.num_tokens + k for r in everybody if r.num_tokens + k < end[r]) // size)"),
    ),
    "e3-newcomer-forgotten": mutant(
        "counts only those who run", "does not fit at the peak", admit(EVERYBODY="self.running")
    ),
    "e3-computed-not-known": mutant(
        "counts from num_computed_tokens",
        "does not fit at the peak",
        admit(SUM=USUAL["SUM"].replace("num_tokens", "num_computed_tokens")),
    ),
    "e3-prompt-only": mutant(
        "counts from num_prompt_tokens",
        "begin with r.num_tokens",
        admit(SUM=USUAL["SUM"].replace("num_tokens", "num_prompt_tokens")),
    ),
    "e3-every-other-step": mutant(
        "looks at every other step", "does not fit at the peak", admit(STEPS="0, max(end.values()), 2")
    ),
    "e3-other-word": mutant("gives another reason", "blocked_reason: expected", admit(REASON="kv_peak")),
    "e3-passes-over": mutant("lets those behind the head in", "The head blocks the line", admit(more=PASSES_OVER)),
}
