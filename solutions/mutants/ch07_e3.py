"""Wrong answers to c07-e3: one text, and what each changes in it. Knows which mistake is which. Chapter 7."""

from tools.mutant_table import Mutant

GOOD = """
# EXERCISE c07-e3
from mini_vllm.grading import my_stage
from mini_vllm.request import RUNNING
class Scheduler(my_stage("ch06")):
    patience = 0
    def admit(self, request):
        manager, cfg = self.kv_cache_manager, self.config
        if len(self.running) >= cfg.max_num_seqs:
            return "max_num_seqs"
        hits = manager.get_computed_blocks(request)
        start = len(hits) * cfg.block_size
        n = request.num_tokens - start
        if n > self.budget:
            return "token_budget"
        watermark = cfg.watermark_blocks if self.running else 0
        blocks = manager.allocate_slots(
            request, n, hits=hits, full_sequence=cfg.reserve_full_isl, watermark_blocks=watermark
        )
        if blocks is None:
            return "kv"
        self.start(request)
        request.num_computed_tokens = start
        self.give(request, n, [*hits, *blocks])
    def start(self, request):
        self.waiting.remove(request)
        request.transition_to(RUNNING)
        self.running.append(request)
    def found(self, request):
        return len(self.kv_cache_manager.get_computed_blocks(request))
    def schedule_waiting(self):
        self.age = getattr(self, "age", {})
        for r in self.waiting:
            self.age[r.request_id] = self.age.get(r.request_id, -1) + 1
        while len(self.waiting):
            line = list(self.waiting)
            turn = line[0]
            if self.age[turn.request_id] < self.patience:
                turn = max(line, key=self.found)
            reason = self.admit(turn)
            if reason:
                return reason
"""
COUNT = """\
        for r in self.waiting:
            self.age[r.request_id] = self.age.get(r.request_id, -1) + 1
"""
WALK = GOOD[GOOD.index("        while len") :]
TURN = "turn = max(line, key=self.found)"


def mutant(mistake: str, says: str, *changes: tuple[str, str]) -> Mutant:
    """The good text with each (old, new) replaced; every old one stands in it once."""
    source = GOOD
    for old, new in changes:
        assert source.count(old) == 1, old
        source = source.replace(old, new)
    return Mutant("c07-e3", mistake, says, source)


BUDGET = ("if n > self.budget", "if request.num_tokens > self.budget")
NO_WATERMARK = (", watermark_blocks=watermark", "")
MUTANTS = {
    "e3-first-come": mutant("keeps the order of arrival", "the page's scheduler as it is", (TURN, "turn = line[0]")),
    "e3-last-of-equals": mutant(
        "takes the last of equals",
        "Of those who find equally much, the last in the line",
        (TURN, "turn = max(line[::-1], key=self.found)"),
    ),
    "e3-least-left": mutant(
        "takes who has least left to compute",
        "Those who have least left to compute go first",
        (TURN, "turn = min(line, key=lambda r: r.num_tokens - 4 * self.found(r))"),
    ),
    "e3-looks-once": mutant(
        "looks up the line once a step",
        "What each of them finds is looked up once a step",
        ("        while len", "        found = {r: self.found(r) for r in self.waiting}\n        while len"),
        (TURN, "turn = max(line, key=found.get)"),
    ),
    "e3-no-patience": mutant(
        "never gives the head its turn",
        "Nobody's patience ever ends there",
        ("if self.age[turn.request_id] < self.patience:", "if True:"),
    ),
    "e3-waits-from-one": mutant(
        "counts the step of arrival as waiting",
        "One step of waiting too few",
        ("(r.request_id, -1)", "(r.request_id, 0)"),
    ),
    "e3-one-step-late": mutant(
        "waits until patience is exceeded", "One step of waiting too many", ("< self.patience", "<= self.patience")
    ),
    "e3-counts-tries": mutant(
        "counts waiting before every admission",
        "Count at the beginning of schedule_waiting",
        (COUNT, ""),
        (
            "            line = list",
            COUNT.replace("        for", "            for").replace("    self", "        self")
            + "            line = list",
        ),
    ),
    "e3-skips": mutant(
        "tries others when the chosen one must wait",
        "others are tried there",
        (
            "        while len(self.waiting):\n            line = list(self.waiting)",
            "        passed = []\n        while line := [r for r in self.waiting if r not in passed]:",
        ),
        ("                return reason\n", "                passed.append(turn)\n"),
    ),
    "e3-sorted-once": mutant(
        "sorts the line once a step and tries everybody",
        "others are tried there",
        (WALK, "        for r in sorted(self.waiting, key=self.found, reverse=True):\n            self.admit(r)\n"),
    ),
    "e3-sorted-behind-the-head": mutant(
        "tries a patient head, then everybody in the order of the step's beginning",
        "others are tried there",
        (
            WALK,
            """\
        line = sorted(self.waiting, key=self.found, reverse=True)
        head = next(iter(self.waiting), None)
        if head and self.age[head.request_id] >= self.patience:
            line.remove(head)
            line.insert(0, head)
        for r in line:
            self.admit(r)
""",
        ),
    ),
    "e3-budget-for-all": mutant(
        "asks the token budget for the found tokens, too", "The token budget is asked for all known tokens", BUDGET
    ),
    "e3-no-watermark": mutant("forgets the watermark", "The watermark is missing", NO_WATERMARK),
    "e3-no-watermark-full": mutant(
        "forgets the watermark and always asks for the full sequence",
        "The watermark is missing",
        NO_WATERMARK,
        ("full_sequence=cfg.reserve_full_isl", "full_sequence=True"),
    ),
    "e3-neither": mutant(
        "forgets the watermark and the full sequence",
        "The watermark is missing",
        NO_WATERMARK,
        (", full_sequence=cfg.reserve_full_isl", ""),
    ),
    "e3-budget-for-all-no-watermark": mutant(
        "asks the token budget for the found tokens, too, and forgets the watermark",
        "The token budget is asked for all known tokens, and the watermark is missing",
        BUDGET,
        NO_WATERMARK,
    ),
    "e3-watermark-alone": mutant(
        "asks for the watermark although nobody runs",
        "The watermark is asked for only while others run",
        ("cfg.watermark_blocks if self.running else 0", "cfg.watermark_blocks"),
    ),
    "e3-takes-the-head": mutant(
        "takes the head out of the line in place of the chosen one",
        "Did `start` take out the head?",
        ("self.waiting.remove(request)", "self.waiting.pop()"),
    ),
    "e3-stale-count": mutant(
        "counts the tokens to compute before the lookup",
        "Count what is left to compute behind the hit",
        ("request.num_tokens - start", "request.num_tokens"),
    ),
    "e3-not-behind-the-hit": mutant(
        "shares blocks and starts at the first token all the same",
        "num_computed_tokens says how far they reach",
        ("        request.num_computed_tokens = start\n", ""),
    ),
    "e3-hits-not-in-the-plan": mutant(
        "leaves the shared blocks out of the plan",
        "the found ones first: give it [*hits, *blocks]",
        ("[*hits, *blocks]", "blocks"),
    ),
}
