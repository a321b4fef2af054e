"""Questions about a prefix cache, each from a real KVCacheManager. Knows chains and blocks; no scheduler. Chapter 7."""

import random
from dataclasses import dataclass, field

from mini_vllm.config import SchedulerConfig
from mini_vllm.core.kv_cache_manager import KVCacheManager
from mini_vllm.grading.quizzes.question import Option, Question, multiple_choice
from mini_vllm.request import Request
from mini_vllm.viz.phrases import count

SIZE, NUM_BLOCKS = 4, 9
NOTE = [
    f"A capital is a full block of {SIZE} tokens, a small letter one token; equal letters",
    "are equal tokens. Requests came in this order; who is done was done before the next",
    "one came.",
]


def tokens_of(text: str) -> list[int]:
    return [10 * ord(letter) + i for letter in text for i in range(SIZE if letter.isupper() else 1)]


@dataclass
class Cache:
    """A pool, what came through it, and who is still inside."""

    manager: KVCacheManager
    came: list[tuple[str, str, bool]] = field(default_factory=list)  # name, prompt, still inside
    blocks: dict[int, str] = field(default_factory=dict)  # what each block holds, as letters of its last owner

    def enter(self, name: str, prompt: str, stays: bool) -> None:
        request = Request(name, tokens_of(prompt))
        hits = self.manager.get_computed_blocks(request)
        self.manager.allocate_slots(request, request.num_tokens - SIZE * len(hits), hits=hits)
        for letter, block in zip(_in_blocks(prompt), self.manager.get_block_ids(name), strict=True):
            self.blocks[block] = letter
        if not stays:
            self.manager.free(request)
        self.came.append((name, prompt, stays))

    def found(self, prompt: str) -> int:
        return len(self.manager.get_computed_blocks(Request("?", tokens_of(prompt))))

    def text(self) -> str:
        pool = self.manager.block_pool
        lines = [*NOTE, "", "request   prompt    now"]
        lines += [f"{name:<9} {prompt:<9} {'runs' if stays else 'is done'}" for name, prompt, stays in self.came]
        queue = " ".join(f"{b}({self.blocks[b] if pool.hash_of[b] else '-'})" for b in pool.free_queue())
        return "\n".join([*lines, "", "free queue from its head, with what can be found in each block:", queue])


def _in_blocks(prompt: str) -> list[str]:
    """ "PQyz" -> ["P", "Q", "yz"]."""
    full = [letter for letter in prompt if letter.isupper()]
    rest = prompt[len(full) :]
    return [*full, rest] if rest else full


def draw_cache(rng: random.Random) -> Cache:
    config = SchedulerConfig(block_size=SIZE, num_gpu_blocks=NUM_BLOCKS, enable_prefix_caching=True)
    cache = Cache(KVCacheManager(config))
    start = rng.choice(["P", "PQ", "PQ", "PQR"])
    prompts = [
        start + rng.choice(["", "w", "x", "S"]),
        start + rng.choice(["y", "T", "Tz"]),
        rng.choice(["U", "Uv", "V"]),
    ]
    stays = rng.choice([(False, False, False), (False, True, False), (True, False, False), (False, False, True)])
    for name, prompt, inside in zip("ABC", prompts, stays, strict=True):
        cache.enter(name, prompt, inside)
    return cache


def draw(rng: random.Random) -> Question | None:
    ask = rng.choice([ask_found, ask_again, ask_taken, ask_owners])
    return ask(rng, draw_cache(rng))


def ask_found(rng: random.Random, cache: Cache) -> Question | None:
    known = cache.came[rng.choice([0, 1])][1]
    full = [letter for letter in known if letter.isupper()]
    prompt = "".join(full) + rng.choice(["", "k", "kl", "K"])
    if rng.random() < 0.25 and len(full) > 1:
        prompt = "M" + "".join(full[1:]) + "k"
    right, size = cache.found(prompt), len(tokens_of(prompt))
    alike = sum(letter in cache.blocks.values() for letter in prompt if letter.isupper())
    told = f"from the front it finds {count(right, 'block')}" if right else "it finds none from the front"
    if right * SIZE + SIZE == size and prompt.isupper() and prompt in known:
        told += f"; its last block it must compute, since one of its {size} tokens at least has to be"
    wrong = [
        Option(str(size), "then nothing would be left to compute, and nothing to sample the next token from."),
        Option(str(size - 1), "one token less than all, but a block is shared whole or not at all."),
        Option(str(SIZE * alike), "that counts every block with these letters; what stands before a block counts too."),
        Option(str(right), "that is the number of blocks; asked for are tokens."),
        Option(str(SIZE * right + SIZE), "one block too many: the next one has another name, or must be computed."),
        Option("0", "blocks that nobody owns stand in the free queue, and are found there."),
    ]
    if right > 1:
        wrong.append(Option(str(SIZE * (right - 1)), "one block too few: a token is left to compute as it is."))
    asks = f"D comes with the prompt {prompt}. How many of its {size} tokens does it find in the cache?"
    return multiple_choice(rng, cache.text(), asks, Option(str(SIZE * right), told + "."), wrong)


def ask_again(rng: random.Random, cache: Cache) -> Question | None:
    name, prompt, _ = rng.choice(cache.came)
    size = len(tokens_of(prompt))
    computes = size - SIZE * cache.found(prompt)
    right = Option(
        str(computes),
        f"at most {size - 1} // {SIZE} = {(size - 1) // SIZE} blocks may be found, and so many are there: "
        f"{size} − {size - computes} tokens are left.",
    )
    wrong = [
        Option("0", "then there would be no result to sample the next token from."),
        Option("1", "one token would be enough to sample from, but blocks are shared whole."),
        Option(str(size), "its blocks still have their names, in use or in the free queue."),
        Option(str(SIZE), "a whole block, which it would be after a full hit; here a tail is left."),
        Option(str(size - 1), "that computes all but one, and what is found is not computed again."),
    ]
    if computes != size - SIZE * ((size - 1) // SIZE):
        return None
    asks = f"The prompt of {name}, {prompt}, is sent once more. How many of its {size} tokens are computed?"
    return multiple_choice(rng, cache.text(), asks, right, wrong)


def ask_taken(rng: random.Random, cache: Cache) -> Question | None:
    queue = cache.manager.block_pool.free_queue()
    situation, number = cache.text(), rng.randint(2, 3)
    cache.enter("D", "KLMN"[:number], True)
    taken = list(cache.manager.get_block_ids("D"))
    right = Option(_listed(taken), "new blocks come from the head of the free queue; cached ones lose their name then.")
    wrong = [
        Option(_listed(queue[-number:]), "those are the last of the queue, which are taken last."),
        Option(_listed(queue[::-1][:number]), "that reads the queue from its tail: the head is taken first."),
        Option(
            _listed(sorted(queue)[:number]), "those have the lowest numbers; the queue knows an order, not numbers."
        ),
        Option(_listed(taken[::-1]), "the right blocks, but the head of the queue is taken first."),
        Option(_listed(queue[1 : number + 1]), "that leaves out the head of the queue."),
    ]
    asks = (
        f"D comes with {number * SIZE} tokens that nobody has sent before. Which blocks does it take, in which order?"
    )
    return multiple_choice(rng, situation, asks, right, wrong)


def ask_owners(rng: random.Random, cache: Cache) -> Question | None:
    inside = [prompt for _, prompt, stays in cache.came if stays]
    prompt = rng.choice([p for _, p, _ in cache.came])
    situation = cache.text()
    cache.enter("D", prompt + "k", True)
    [block, *_] = cache.manager.get_block_ids("D")
    right = cache.manager.block_pool.ref_count[block]
    sent = sum(other[0] == prompt[0] for _, other, _ in cache.came)
    right_why = "one block table is D's" + (
        ", one is that of the request that still runs." if right > 1 else ", no other."
    )
    wrong = [
        Option(str(sent), "that counts all who ever sent this beginning; those who are done have given it back."),
        Option(str(right - 1), "that leaves out D itself."),
        Option(str(right + 1), "the cache does not count as an owner: only block tables do."),
        Option(str(len(inside) + 1), "that counts everybody who runs, also those who begin otherwise."),
        Option("0", "a block in use has at least one owner."),
    ]
    asks = f"D comes with the prompt {prompt}k and enters. What is the reference count of its first block then?"
    return multiple_choice(rng, situation, asks, Option(str(right), right_why), wrong)


def _listed(blocks: list[int]) -> str:
    return ", ".join(map(str, blocks))
