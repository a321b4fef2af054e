"""Chapter 6's answers as plain code, each with switches for a mistake. Knows no message. Chapter 6."""

from mini_vllm.stages.ch06_blocks import Scheduler as Stage6


def allocate_with(
    free_queue: list[int],
    num_owned: int,
    num_computed: int,
    num_new: int,
    block_size: int,
    num_known: int | None,
    watermark: int,
    *,
    full: bool = True,
    takes_all: bool = False,
    rounds_down: bool = False,
    own_room: bool = True,
    counts_owned: bool = True,
    head_room: str = "all",
    strict: bool = False,
    from_tail: bool = False,
    takes_what_is_there: bool = False,
    needs_a_block: bool = False,
    takes_watermark: bool = False,
) -> list:
    """[blocks or None, the queue]; by default without a mistake. head_room: beside "all", the "piece" or "none"."""

    def blocks(num_tokens: int) -> int:
        return num_tokens // block_size if rounds_down else -(-num_tokens // block_size)

    take = blocks(num_computed + num_new) - (num_owned if counts_owned else 0)
    if not own_room:
        take = blocks(num_new)
    whole = blocks(num_known) if num_known is not None and full else take
    asked = [take + (watermark if head_room != "none" else 0), whole + (watermark if head_room == "all" else 0)]
    free = len(free_queue)
    if max(asked) > free or (strict and max(asked) == free) or (needs_a_block and not free):
        return [list(free_queue), []] if takes_what_is_there else [None, free_queue]
    take = whole if takes_all else take
    take += watermark if takes_watermark else 0
    if from_tail:
        return [free_queue[::-1][:take], free_queue[: free - take]]
    return [free_queue[:take], free_queue[take:]]


class Peak(Stage6):
    """Admits whoever will find its blocks to the end, if everybody writes as much as they may."""

    def admit(self, request):
        if len(self.running) >= self.config.max_num_seqs:
            return "max_num_seqs"
        if request.num_new_tokens > self.budget:
            return "token_budget"
        if self.peak_blocks([*self.running, request]) > self.config.num_gpu_blocks:
            return "kv_reservation"
        self.start(request)
        self.advance(request, request.num_new_tokens)
        return None

    def peak_blocks(self, requests):
        steps = range(max(self.end(r) - r.num_tokens for r in requests))
        return max((sum(self.blocks_after(r, k) for r in requests) for k in steps), default=0)

    def end(self, request):
        return min(request.longest, self.config.max_model_len)

    def blocks_after(self, request, k):
        num_tokens = request.num_tokens + k
        return self.config.blocks_for(num_tokens) if num_tokens < self.end(request) else 0


class LastTokenToo(Peak):
    def peak_blocks(self, requests):
        steps = range(max(self.end(r) - r.num_tokens for r in requests) + 1)
        return max(sum(self.blocks_after(r, k) for r in requests) for k in steps)

    def blocks_after(self, request, k):
        num_tokens = request.num_tokens + k
        return self.config.blocks_for(num_tokens) if num_tokens <= self.end(request) else 0


class ModelLengthForgotten(Peak):
    def end(self, request):
        return request.longest


class PassesOver(Peak):
    """Looks behind a head that does not fit."""

    def schedule_waiting(self):
        reason = None
        for request in list(self.waiting):
            self.waiting.remove(request)
            self.waiting.put_back(request)  # it is the head now, for admit and start
            why = self.admit(request)
            reason = reason or why
        order = sorted(self.waiting, key=lambda r: (r.arrival_time, r.request_id))
        for request in order:
            self.waiting.remove(request)
        for request in order:
            self.waiting.add(request)
        return reason


class Tables:
    """Block tables of answers that share blocks; `rules` of the mistakes, or none.

    fork: which blocks get one look more, "held" (right), "entries" or "table". end: which are dropped, "held" (right),
    "table" or "nothing". at_copy: the block that was copied is dropped (right), or not.
    """

    def __init__(self, num_blocks: int, window: int, fork: str = "held", end: str = "held", at_copy: bool = True):
        self.window, self.rules, self.at_copy = window, {"fork": fork, "end": end}, at_copy
        self.free = list(range(1, num_blocks + 1))
        self.refs = [0] * (num_blocks + 1)
        self.tables: dict[str, list[int]] = {}

    def _blocks(self, name, what):
        table = self.tables[name]
        return {
            "held": sorted(set(table[-self.window :])),
            "table": sorted(set(table)),
            "entries": table,
            "nothing": [],
        }[self.rules[what]]

    def take(self):
        block = min(self.free)
        self.free.remove(block)
        self.refs[block] = 1
        return block

    def drop(self, block):
        self.refs[block] -= 1
        if self.refs[block] == 0:
            self.free.append(block)

    def start(self, name):
        self.tables[name] = []

    def grow(self, name):
        table = self.tables[name]
        if len(table) < self.window:
            table.append(self.take())
            return
        oldest = table[-self.window]
        if self.refs[oldest] == 1:
            table.append(oldest)
            return
        table.append(self.take())
        if self.at_copy:
            self.drop(oldest)

    def fork(self, parent, child):
        for block in self._blocks(parent, "fork"):
            self.refs[block] += 1
        self.tables[child] = list(self.tables[parent])

    def end(self, name):
        for block in self._blocks(name, "end"):
            self.drop(block)
        del self.tables[name]
