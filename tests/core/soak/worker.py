"""A model runner without a model: real slots, written and read through the block tables. Knows only what plans say."""

import random
from collections import Counter

from mini_vllm.config import SchedulerConfig
from mini_vllm.core.output import ModelRunnerOutput, SchedulerOutput
from tests.core.soak.broken import need
from tests.core.soak.truth import Truth, next_token, slot_value

PADDING = -1  # a draft that only gives a row its width


class Worker:
    """Knows only what the plans say. All rows of a step are written before any is read."""

    def __init__(self, config: SchedulerConfig, alphabet: int, rng: random.Random, stats: Counter):
        self.block_size, self.window = config.block_size, config.sliding_window
        self.alphabet, self.rng, self.stats = alphabet, rng, stats
        self.num_drafts = config.num_speculative_tokens
        self.accept = rng.choice((0.1, 0.5, 0.8, 1.0))
        size = config.num_gpu_blocks + 1
        self.slots = [[0] * config.block_size for _ in range(size)]
        self.deep = [[0] * config.block_size for _ in range(size)]
        self.written: set[int] = set()  # blocks written since the last look
        self.tokens: dict[str, list[int]] = {}
        self.tables: dict[str, list[int]] = {}
        self.computed: dict[str, int] = {}
        self.truths: dict[str, Truth] = {}  # of those that are to come; read for the tag and for drafts
        self.of: dict[str, Truth] = {}

    def execute(self, plan: SchedulerOutput) -> ModelRunnerOutput:
        tokens_of, tables, computed_of = self.tokens, self.tables, self.computed
        for req_id in plan.finished_req_ids:
            # One that left before it was ever planned was never known here.
            if tokens_of.pop(req_id, None) is not None:
                del tables[req_id], computed_of[req_id], self.of[req_id]
        for new in plan.scheduled_new_reqs:
            req_id = new.req_id
            need(req_id not in tokens_of, req_id, "is new, and was never reported as finished")
            tokens_of[req_id] = list(new.prompt_token_ids)
            tables[req_id] = list(new.block_ids)
            computed_of[req_id] = new.num_computed_tokens
            self.of[req_id] = self.truths[req_id]
        cached = plan.scheduled_cached_reqs
        for req_id, num_computed in zip(cached.req_ids, cached.num_computed_tokens, strict=True):
            if req_id in cached.resumed_req_ids:
                tables[req_id] = list(cached.new_block_ids[req_id])
            else:
                tables[req_id] += cached.new_block_ids.get(req_id, ())
                need(computed_of[req_id] == num_computed, req_id, "computed", computed_of[req_id], "told", num_computed)
            computed_of[req_id] = num_computed
        pieces = plan.num_scheduled_tokens
        drafts = plan.scheduled_spec_decode_tokens
        for req_id, n in pieces.items():
            tokens = tokens_of[req_id]
            if req_id in drafts:
                tokens = tokens + drafts[req_id]
            start = computed_of[req_id]
            need(len(tokens) >= start + n, req_id, "is to compute", start, "+", n, "and has", len(tokens), "tokens")
            need(0 <= start, req_id, "has computed", start)
            (self._write if self.window is None else self._write_shallow)(req_id, start, tokens[start : start + n])
        if self.window is not None:
            for req_id, n in pieces.items():
                self._write_deep(req_id, computed_of[req_id], n)
        sampled = {req_id: self._sample(req_id, n, drafts.get(req_id)) for req_id, n in pieces.items()}
        proposals = {}
        if self.num_drafts:
            proposals = {req_id: self._propose(req_id) for req_id in pieces if self.rng.random() < 0.9}
        return ModelRunnerOutput(sampled, proposals)

    def _write(self, req_id: str, start: int, tokens: list[int]) -> None:
        """Each value from the one before it, which is read back from its slot."""
        slots, table, size = self.slots, self.tables[req_id], self.block_size
        before = slots[table[(start - 1) // size]][(start - 1) % size] if start else self.of[req_id].tag
        for position, token in enumerate(tokens, start):
            block = table[position // size]
            before = (before * 1_000_003 + token * 7_919 + 12_345) & 0xFFFFFFFFFFF  # slot_value, written out for speed
            slots[block][position % size] = before
        self.written.update(table[start // size : (start + len(tokens) - 1) // size + 1])

    def _write_shallow(self, req_id: str, start: int, tokens: list[int]) -> None:
        slots, table, size, root = self.slots, self.tables[req_id], self.block_size, self.of[req_id].tag
        for position, token in enumerate(tokens, start):
            slots[table[position // size]][position % size] = slot_value(root, token)
        self.written.update(table[start // size : (start + len(tokens) - 1) // size + 1])

    def _write_deep(self, req_id: str, start: int, n: int) -> None:
        """Every row of the piece looks back over its own window."""
        table, size = self.tables[req_id], self.block_size
        first = max(0, start - self.window + 1)
        seen = self._read(self.slots, req_id, first, start + n)
        for position in range(start, start + n):
            window = seen[max(first, position - self.window + 1) - first : position + 1 - first]
            self.deep[table[position // size]][position % size] = hash(tuple(window))

    def _read(self, slots: list[list[int]], req_id: str, first: int, end: int) -> list[int]:
        """Slots first … end - 1, through the block table."""
        table, size = self.tables[req_id], self.block_size
        first_block = first // size
        values: list[int] = []
        for block in table[first_block : (end - 1) // size + 1]:
            values += slots[block]
        return values[first - first_block * size : end - first_block * size]

    def _next(self, req_id: str, end: int) -> int:
        if self.window is None:
            return next_token(self._read(self.slots, req_id, 0, end), self.alphabet)
        return next_token(self._read(self.deep, req_id, max(0, end - self.window), end), self.alphabet)

    def _sample(self, req_id: str, n: int, drafts: list[int] | None) -> list[int]:
        tokens, end = self.tokens[req_id], self.computed[req_id] + n
        known = len(tokens)
        self.computed[req_id] = min(end, known)
        if end < known:
            return []
        sampled = [self._next(req_id, known)]
        for draft in drafts or ():
            if draft != sampled[-1]:
                break
            sampled.append(self._next(req_id, known + len(sampled)))
        if drafts:
            self.stats["drafts accepted"] += len(sampled) - 1
            if drafts[0] != PADDING:
                self.stats["drafts rejected"] += len(drafts) + 1 - len(sampled)
        self.computed[req_id] = known + len(sampled) - 1
        tokens += sampled
        return sampled

    def _propose(self, req_id: str) -> list[int]:
        done, truth, rng = len(self.tokens[req_id]), self.of[req_id].tokens, self.rng
        true = truth[done : done + rng.randint(0, self.num_drafts)]
        return [t if rng.random() < self.accept else rng.randrange(self.alphabet) for t in true]
