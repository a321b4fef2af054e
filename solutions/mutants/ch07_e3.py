"""Wrong answers to c07-e3, one mistake each, and what the learner must be told. Knows no right answer. Chapter 7."""

from tools.mutant_table import Mutant

MUTANTS = {
    "e3-first-come": Mutant(
        "c07-e3",
        "keeps the order of arrival",
        "the page's scheduler as it is",
        """
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
        blocks = manager.allocate_slots(request, n, hits=hits, full_sequence=cfg.reserve_full_isl)
        if blocks is None:
            return "kv"
        self.start(request)
        request.num_computed_tokens = start
        self.give(request, n, [*hits, *blocks])
    def start(self, request):
        self.waiting.remove(request)
        request.transition_to(RUNNING)
        self.running.append(request)
    def schedule_waiting(self):
        self.age = getattr(self, "age", {})
        for r in self.waiting:
            self.age[r.request_id] = self.age.get(r.request_id, -1) + 1
        while len(self.waiting):
            line = list(self.waiting)
            turn = line[0]
            reason = self.admit(turn)
            if reason:
                return reason
""",
    ),
    "e3-last-of-equals": Mutant(
        "c07-e3",
        "takes the last of equals",
        "Of those who find equally much, the last in the line",
        """
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
        blocks = manager.allocate_slots(request, n, hits=hits, full_sequence=cfg.reserve_full_isl)
        if blocks is None:
            return "kv"
        self.start(request)
        request.num_computed_tokens = start
        self.give(request, n, [*hits, *blocks])
    def start(self, request):
        self.waiting.remove(request)
        request.transition_to(RUNNING)
        self.running.append(request)
    def schedule_waiting(self):
        self.age = getattr(self, "age", {})
        for r in self.waiting:
            self.age[r.request_id] = self.age.get(r.request_id, -1) + 1
        while len(self.waiting):
            line = list(self.waiting)
            turn = line[0]
            if self.age[turn.request_id] < self.patience:
                turn = max(line[::-1], key=lambda r: len(self.kv_cache_manager.get_computed_blocks(r)))
            reason = self.admit(turn)
            if reason:
                return reason
""",
    ),
    "e3-least-left": Mutant(
        "c07-e3",
        "takes who has least left to compute",
        "Those who have least left to compute go first",
        """
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
        blocks = manager.allocate_slots(request, n, hits=hits, full_sequence=cfg.reserve_full_isl)
        if blocks is None:
            return "kv"
        self.start(request)
        request.num_computed_tokens = start
        self.give(request, n, [*hits, *blocks])
    def start(self, request):
        self.waiting.remove(request)
        request.transition_to(RUNNING)
        self.running.append(request)
    def schedule_waiting(self):
        self.age = getattr(self, "age", {})
        for r in self.waiting:
            self.age[r.request_id] = self.age.get(r.request_id, -1) + 1
        while len(self.waiting):
            line = list(self.waiting)
            turn = line[0]
            if self.age[turn.request_id] < self.patience:
                turn = min(line, key=lambda r: r.num_tokens - 4 * len(self.kv_cache_manager.get_computed_blocks(r)))
            reason = self.admit(turn)
            if reason:
                return reason
""",
    ),
    "e3-looks-once": Mutant(
        "c07-e3",
        "looks up the line once a step",
        "What each of them finds is looked up once a step",
        """
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
        blocks = manager.allocate_slots(request, n, hits=hits, full_sequence=cfg.reserve_full_isl)
        if blocks is None:
            return "kv"
        self.start(request)
        request.num_computed_tokens = start
        self.give(request, n, [*hits, *blocks])
    def start(self, request):
        self.waiting.remove(request)
        request.transition_to(RUNNING)
        self.running.append(request)
    def schedule_waiting(self):
        self.age = getattr(self, "age", {})
        for r in self.waiting:
            self.age[r.request_id] = self.age.get(r.request_id, -1) + 1
        found = {r.request_id: len(self.kv_cache_manager.get_computed_blocks(r)) for r in self.waiting}
        while len(self.waiting):
            line = list(self.waiting)
            turn = line[0]
            if self.age[turn.request_id] < self.patience:
                turn = max(line, key=lambda r: found[r.request_id])
            reason = self.admit(turn)
            if reason:
                return reason
""",
    ),
    "e3-no-patience": Mutant(
        "c07-e3",
        "never gives the head its turn",
        "Nobody's patience ever ends there",
        """
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
        blocks = manager.allocate_slots(request, n, hits=hits, full_sequence=cfg.reserve_full_isl)
        if blocks is None:
            return "kv"
        self.start(request)
        request.num_computed_tokens = start
        self.give(request, n, [*hits, *blocks])
    def start(self, request):
        self.waiting.remove(request)
        request.transition_to(RUNNING)
        self.running.append(request)
    def schedule_waiting(self):
        self.age = getattr(self, "age", {})
        for r in self.waiting:
            self.age[r.request_id] = self.age.get(r.request_id, -1) + 1
        while len(self.waiting):
            line = list(self.waiting)
            turn = line[0]
            if True:
                turn = max(line, key=lambda r: len(self.kv_cache_manager.get_computed_blocks(r)))
            reason = self.admit(turn)
            if reason:
                return reason
""",
    ),
    "e3-waits-from-one": Mutant(
        "c07-e3",
        "counts the step of arrival as waiting",
        "One step of waiting too few",
        """
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
        blocks = manager.allocate_slots(request, n, hits=hits, full_sequence=cfg.reserve_full_isl)
        if blocks is None:
            return "kv"
        self.start(request)
        request.num_computed_tokens = start
        self.give(request, n, [*hits, *blocks])
    def start(self, request):
        self.waiting.remove(request)
        request.transition_to(RUNNING)
        self.running.append(request)
    def schedule_waiting(self):
        self.age = getattr(self, "age", {})
        for r in self.waiting:
            self.age[r.request_id] = self.age.get(r.request_id, 0) + 1
        while len(self.waiting):
            line = list(self.waiting)
            turn = line[0]
            if self.age[turn.request_id] < self.patience:
                turn = max(line, key=lambda r: len(self.kv_cache_manager.get_computed_blocks(r)))
            reason = self.admit(turn)
            if reason:
                return reason
""",
    ),
    "e3-one-step-late": Mutant(
        "c07-e3",
        "waits until patience is exceeded",
        "One step of waiting too many",
        """
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
        blocks = manager.allocate_slots(request, n, hits=hits, full_sequence=cfg.reserve_full_isl)
        if blocks is None:
            return "kv"
        self.start(request)
        request.num_computed_tokens = start
        self.give(request, n, [*hits, *blocks])
    def start(self, request):
        self.waiting.remove(request)
        request.transition_to(RUNNING)
        self.running.append(request)
    def schedule_waiting(self):
        self.age = getattr(self, "age", {})
        for r in self.waiting:
            self.age[r.request_id] = self.age.get(r.request_id, -1) + 1
        while len(self.waiting):
            line = list(self.waiting)
            turn = line[0]
            if self.age[turn.request_id] <= self.patience:
                turn = max(line, key=lambda r: len(self.kv_cache_manager.get_computed_blocks(r)))
            reason = self.admit(turn)
            if reason:
                return reason
""",
    ),
    "e3-skips": Mutant(
        "c07-e3",
        "tries others when the chosen one must wait",
        "others are tried there",
        """
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
        blocks = manager.allocate_slots(request, n, hits=hits, full_sequence=cfg.reserve_full_isl)
        if blocks is None:
            return "kv"
        self.start(request)
        request.num_computed_tokens = start
        self.give(request, n, [*hits, *blocks])
    def start(self, request):
        self.waiting.remove(request)
        request.transition_to(RUNNING)
        self.running.append(request)
    def schedule_waiting(self):
        self.age = getattr(self, "age", {})
        for r in self.waiting:
            self.age[r.request_id] = self.age.get(r.request_id, -1) + 1
        reasons, passed = [None], []
        while line := [r for r in self.waiting if r not in passed]:
            turn = line[0]
            if self.age[turn.request_id] < self.patience:
                turn = max(line, key=lambda r: len(self.kv_cache_manager.get_computed_blocks(r)))
            reason = self.admit(turn)
            if reason:
                reasons.append(reason)
                passed.append(turn)
        return reasons[-1]
""",
    ),
    "e3-stale-count": Mutant(
        "c07-e3",
        "counts the tokens to compute before the lookup",
        "raised",
        """
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
        n = request.num_tokens
        if n > self.budget:
            return "token_budget"
        blocks = manager.allocate_slots(request, n, hits=hits, full_sequence=cfg.reserve_full_isl)
        if blocks is None:
            return "kv"
        self.start(request)
        request.num_computed_tokens = start
        self.give(request, n, [*hits, *blocks])
    def start(self, request):
        self.waiting.remove(request)
        request.transition_to(RUNNING)
        self.running.append(request)
    def schedule_waiting(self):
        self.age = getattr(self, "age", {})
        for r in self.waiting:
            self.age[r.request_id] = self.age.get(r.request_id, -1) + 1
        while len(self.waiting):
            line = list(self.waiting)
            turn = line[0]
            if self.age[turn.request_id] < self.patience:
                turn = max(line, key=lambda r: len(self.kv_cache_manager.get_computed_blocks(r)))
            reason = self.admit(turn)
            if reason:
                return reason
""",
    ),
    "e3-not-behind-the-hit": Mutant(
        "c07-e3",
        "shares blocks and starts at the first token all the same",
        "raised",
        """
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
        blocks = manager.allocate_slots(request, n, hits=hits, full_sequence=cfg.reserve_full_isl)
        if blocks is None:
            return "kv"
        self.start(request)
        self.give(request, n, [*hits, *blocks])
    def start(self, request):
        self.waiting.remove(request)
        request.transition_to(RUNNING)
        self.running.append(request)
    def schedule_waiting(self):
        self.age = getattr(self, "age", {})
        for r in self.waiting:
            self.age[r.request_id] = self.age.get(r.request_id, -1) + 1
        while len(self.waiting):
            line = list(self.waiting)
            turn = line[0]
            if self.age[turn.request_id] < self.patience:
                turn = max(line, key=lambda r: len(self.kv_cache_manager.get_computed_blocks(r)))
            reason = self.admit(turn)
            if reason:
                return reason
""",
    ),
    "e3-hits-not-in-the-plan": Mutant(
        "c07-e3",
        "leaves the shared blocks out of the plan",
        "raised",
        """
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
        blocks = manager.allocate_slots(request, n, hits=hits, full_sequence=cfg.reserve_full_isl)
        if blocks is None:
            return "kv"
        self.start(request)
        request.num_computed_tokens = start
        self.give(request, n, blocks)
    def start(self, request):
        self.waiting.remove(request)
        request.transition_to(RUNNING)
        self.running.append(request)
    def schedule_waiting(self):
        self.age = getattr(self, "age", {})
        for r in self.waiting:
            self.age[r.request_id] = self.age.get(r.request_id, -1) + 1
        while len(self.waiting):
            line = list(self.waiting)
            turn = line[0]
            if self.age[turn.request_id] < self.patience:
                turn = max(line, key=lambda r: len(self.kv_cache_manager.get_computed_blocks(r)))
            reason = self.admit(turn)
            if reason:
                return reason
""",
    ),
}
