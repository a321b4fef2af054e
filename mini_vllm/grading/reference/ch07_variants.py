"""Chapter 7's answers with switches for a mistake. Knows no message. Chapter 7."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from mini_vllm.config import SchedulerConfig
from mini_vllm.core.kv_cache_manager import KVCacheManager
from mini_vllm.grading.bank.ch07 import ASKED, BOARD
from mini_vllm.request import RUNNING, Request
from mini_vllm.stages.ch07_prefix_cache import Scheduler as Stage7

# --- e1 -------------------------------------------------------------------------------------------------------


def tokens_of(text: str) -> list[int]:
    """Four tokens for a capital, one for a small letter."""
    return [10 * ord(letter) + i for letter in text for i in range(4 if letter.isupper() else 1)]


def found_with(
    *,
    most: Callable[[int], int] = lambda num_tokens: (num_tokens - 1) // 4,
    head_first: bool = False,
    unnamed_last: bool = False,
    caching: bool = True,
) -> dict:
    """Seven requests through the real pool, one at a time; by default without a mistake.

    most: blocks that may be found of so many tokens.
    """
    config = SchedulerConfig(block_size=4, num_gpu_blocks=5, enable_prefix_caching=True, refuse_unfittable=False)
    manager = KVCacheManager(config)
    pool, hits, tables = manager.block_pool, {}, {}
    for name, text in BOARD.items():
        request = Request(name, tokens_of(text))
        # One token more at its end, so that a full hit can be asked for; then it is cut to what `most` allows.
        longer = Request(name, [*request.token_ids, 0])
        blocks = manager.get_computed_blocks(longer)[: most(request.num_tokens)] if caching else []
        hits[name] = 4 * len(blocks)
        manager.allocate_slots(request, request.num_tokens - hits[name], hits=blocks)
        tables[name] = list(manager.get_block_ids(name))
        if head_first:
            manager.req_to_blocks[name].reverse()
        unnamed = [block for block in manager.get_block_ids(name) if pool.hash_of[block] is None]
        for block in unnamed if unnamed_last else []:
            pool.register(block, bytes([block]))  # so that it goes where those with a name go
        manager.free(request)
        for block in unnamed if unnamed_last else []:
            pool.forget_hash(block)
    return {"hits": {name: hits[name] for name in ASKED}, "blocks_of_D": tables["D"]}


# --- e2 -------------------------------------------------------------------------------------------------------


def names_with(
    requests: list[tuple],
    block_size: int,
    *,
    root: Callable[[Any, Any], Any] = lambda salt, adapter: (salt, adapter),
    before: Callable[[list], Any] = lambda blocks: blocks[:-1],
    shown: Callable[[str], Any] = lambda image: ("image", image),
    pictures: Callable[[list, int, int], Any] | None = None,
    written: Callable[[Any], Any] = lambda block: block,
    own_names: bool = False,
    all_images: bool = False,
    partial: bool = False,
    whole_prompt: bool = False,
) -> list[list[int]]:
    """The place where each block's name came first, block by block; by default without a mistake.

    root: what a chain starts from. before: of the blocks up to this one, those that its name depends on beside it.
    shown: what stands in place of an image. written: what of a block goes into the name.
    pictures: in place of `shown`, what a block with k pictures has beside its tokens: of (all, those before it, k).
    """
    numbers: dict[str, int] = {}
    named: list[list[int]] = []
    for tokens, salt, adapter, images in requests:
        line = iter(images)
        seen = [token if token or pictures else shown(next(line)) for token in tokens]
        end = len(seen) if partial else len(seen) // block_size * block_size
        blocks = [seen[i : i + block_size] for i in range(0, end, block_size)]
        if pictures:
            starts = [tokens[: i * block_size].count(0) for i in range(len(blocks))]
            blocks = [[*b, pictures(images, k, b.count(0))] for b, k in zip(blocks, starts, strict=True)]
        blocks = [written(block) for block in blocks]
        extra = (images if all_images else None, len(seen) if whole_prompt else None, len(named) if own_names else None)
        names = [repr((root(salt, adapter), before(blocks[: i + 1]), block, extra)) for i, block in enumerate(blocks)]
        named.append([numbers.setdefault(name, len(numbers)) for name in names])
    return named


# --- e3 -------------------------------------------------------------------------------------------------------


class WarmFirst(Stage7):
    """Who finds most goes first; but whoever stands at the head and has waited long enough is next."""

    patience = 0
    last_of_equals = looks_once = skips = counts_from_one = counts_tries = beyond = False
    sorts_once = no_watermark = whole_prompt = False

    def __init__(self, config):
        super().__init__(replace(config, watermark=0.0) if self.no_watermark else config)
        self.steps_waited: dict[str, int] = {}

    def count(self):
        for request in self.waiting:
            first = 1 if self.counts_from_one else 0
            self.steps_waited[request.request_id] = self.steps_waited.get(request.request_id, first - 1) + 1

    def admit(self, request):
        has_seat = len(self.running) < self.config.max_num_seqs
        if self.whole_prompt and has_seat and request.num_tokens > self.budget:
            return "token_budget"
        return super().admit(request)

    def schedule_waiting(self):
        if not self.counts_tries:
            self.count()
        if self.sorts_once:
            return self.try_everybody()
        found = {request: self.found(request) for request in self.waiting}
        head_reason, passed = None, set()
        while line := [request for request in self.waiting if request not in passed]:
            if self.counts_tries:
                self.count()
            if not self.looks_once:
                found = {request: self.found(request) for request in line}
            request = self.choose(line, found)
            if reason := self.admit(request):
                head_reason = head_reason or reason
                if not self.skips:
                    return reason
                passed.add(request)
        return head_reason

    def try_everybody(self):
        head = next(iter(self.waiting), None)
        first = head and self.is_old(head)
        line = sorted(self.waiting, key=lambda r: (not (first and r is head), -self.found(r)))
        return next(filter(None, [self.admit(request) for request in line]), None)

    def found(self, request):
        return len(self.kv_cache_manager.get_computed_blocks(request))

    def worth(self, found, request):
        return found

    def choose(self, line, found):
        if self.is_old(line[0]):
            return line[0]
        return max(line[:: -1 if self.last_of_equals else 1], key=lambda r: self.worth(found[r], r))

    def is_old(self, request):
        return self.steps_waited[request.request_id] >= self.patience + self.beyond

    def start(self, request):
        self.waiting.remove(request)
        request.transition_to(RUNNING)
        self.running.append(request)


def warm_first_with(patience: int, **mistakes: Any) -> type:
    """The class with these attributes in place of its own; patience 0 is its own."""
    changed = {"patience": patience} if patience else {}
    return type("Scheduler", (WarmFirst,), {**changed, **mistakes})


# --- b1 -------------------------------------------------------------------------------------------------------


def entries_with(
    prompts: list[list[int]],
    block_size: int,
    *,
    most: Callable[[int, int, int], int] = lambda found, known, size: min(found, (known - 1) // size),
    start: Callable[[int, int], int] = lambda start, known: start,
    num_new: Callable[[int, int], int] = lambda start, known: known - start,
    cached: Callable[[int, int], int] = lambda known, size: known // size,
    cached_first: bool = False,
) -> list[list[int]]:
    """[start, num_new] of each prompt in turn, through one cache; by default without a mistake.

    most: blocks that are used of those found. cached: leading blocks that can be found from then on.
    """
    cache: set[tuple] = set()
    entries = []
    for tokens in prompts:
        known = len(tokens)
        names = [tuple(tokens[:end]) for end in range(block_size, known + 1, block_size)]
        if cached_first:
            cache.update(names)
        found = next((i for i, name in enumerate(names) if name not in cache), len(names))
        cache.update(names[: cached(known, block_size)])
        begin = start(most(found, known, block_size) * block_size, known)
        entries.append([begin, num_new(begin, known)])
    return entries
