"""Questions about block tables, each from a real KVCacheManager. Knows blocks and slots; no queue. Chapter 6."""

import random
from dataclasses import dataclass

from mini_vllm.config import SchedulerConfig
from mini_vllm.core.kv_cache_manager import KVCacheManager
from mini_vllm.grading.quizzes.question import Option, Question, multiple_choice
from mini_vllm.request import Request


@dataclass
class Pool:
    """Three requests that took blocks in turns, so that no table is one piece."""

    config: SchedulerConfig
    manager: KVCacheManager
    requests: dict[str, Request]

    def table(self, name: str) -> list[int]:
        return list(self.manager.get_block_ids(name))

    def text(self) -> str:
        size = self.config.block_size
        lines = [f"Blocks of {size} tokens. Block b is the slots from b × {size} on; block 0 is not used.", ""]
        lines += ["request   tokens computed   block table"]
        lines += [f"{n:<9} {r.num_computed_tokens:>15}   {self.table(n)}" for n, r in self.requests.items()]
        return "\n".join([*lines, "", f"free queue: {self.manager.block_pool.free_queue()}"])


def draw_pool(rng: random.Random) -> Pool:
    size = rng.choice([4, 8, 16])
    config = SchedulerConfig(block_size=size, num_gpu_blocks=rng.randint(12, 16), max_model_len=20 * size)
    pool = Pool(config, KVCacheManager(config), {name: Request(name, [1]) for name in "ABC"})
    for _ in range(rng.randint(2, 3)):
        for request in pool.requests.values():
            grow(pool, request, rng.randint(1, int(1.3 * size)))
    return pool


def grow(pool: Pool, request: Request, num_tokens: int) -> int:
    """Compute `num_tokens` more tokens; returns how many blocks that took, which is none if they do not fit."""
    new = pool.manager.allocate_slots(request, num_tokens)
    if new is None:
        return 0
    request.num_computed_tokens += num_tokens
    return len(new)


def draw(rng: random.Random) -> Question | None:
    ask = rng.choice([ask_slot, ask_new_blocks, ask_next_block, ask_unused])
    return ask(rng, draw_pool(rng))


def ask_slot(rng: random.Random, pool: Pool) -> Question | None:
    name = rng.choice("ABC")
    size, table, request = pool.config.block_size, pool.table(name), pool.requests[name]
    token = rng.randrange(size, request.num_computed_tokens) if request.num_computed_tokens > size else 0
    index, offset = divmod(token, size)
    other = next(n for n in "BCA" if n != name)
    right = Option(
        str(table[index] * size + offset),
        f"token {token} is entry {token} // {size} = {index} of the table, at offset {token} % {size} = {offset}; "
        f"the entry is block {table[index]}, and {table[index]} × {size} + {offset} = {table[index] * size + offset}.",
    )
    wrong = [
        Option(str(token), "that is the token's own number: it would be its slot if there were no block table."),
        Option(
            str(table[0] * size + token),
            f"that counts on from the first block, {table[0]}: it holds only if the blocks lie side by side.",
        ),
        Option(str((table[index] - 1) * size + offset), "that counts blocks from 1, but block 0 has slots too."),
        Option(str(table[index] + offset), "that adds the offset to the block's number: a block is many slots."),
    ]
    if index + 1 < len(table):
        wrong.append(
            Option(str(table[index + 1] * size + offset), f"that takes entry {index + 1}: entries count from 0.")
        )
    if index < len(pool.table(other)):
        wrong.append(
            Option(str(pool.table(other)[index] * size + offset), f"that looks into the block table of {other}.")
        )
    asks = f"Which slot holds the KV of token {token} of {name}? (Tokens and table entries count from 0.)"
    return multiple_choice(rng, pool.text(), asks, right, wrong)


def ask_new_blocks(rng: random.Random, pool: Pool) -> Question | None:
    name = rng.choice("ABC")
    size, request = pool.config.block_size, pool.requests[name]
    situation, owned, before = pool.text(), len(pool.table(name)), request.num_computed_tokens
    num_tokens = rng.randint(2, 2 * size)
    end = before + num_tokens
    taken = grow(pool, request, num_tokens)
    if request.num_computed_tokens == before:
        return None
    right = Option(
        str(taken),
        f"{before} + {num_tokens} = {end} tokens need {pool.config.blocks_for(end)} blocks of {size}, a started one "
        f"counts in full; {name} has {owned} of them.",
    )
    wrong = [
        Option(
            str(pool.config.blocks_for(num_tokens)),
            f"that is {num_tokens} / {size}, rounded up, as if the last block of {name} were full.",
        ),
        Option(str(num_tokens // size), "that rounds down: the tokens that are left over need a block too."),
        Option(str(pool.config.blocks_for(end)), f"that is all blocks of {name}; {owned} of them it has already."),
        Option(str(taken + 1), "one too many: nothing is kept in reserve for the tokens after these."),
        Option(str(num_tokens), "that is a block for every token."),
    ]
    asks = f"{name} computes {num_tokens} more tokens. How many new blocks does it take?"
    return multiple_choice(rng, situation, asks, right, wrong)


def ask_next_block(rng: random.Random, pool: Pool) -> Question | None:
    name = rng.choice("ABC")
    table, queue, situation = pool.table(name), pool.manager.block_pool.free_queue(), pool.text()
    if len(table) < 2 or len(queue) < 2:
        return None
    pool.manager.free(pool.requests[name])
    newcomer = Request("D", [1])
    grow(pool, newcomer, 1)
    taken = pool.table("D")[0]
    right = Option(
        f"block {taken}",
        f"{name} gives its blocks back tail first, {table[::-1]}, and blocks in which nothing is cached go to the head "
        "of the free queue.",
    )
    wrong = [
        Option(f"block {table[0]}", f"that is the first block of {name}; the tail comes first, since the start of a "
               "prompt is what others may share."),
        Option(f"block {queue[0]}", "that was the head of the queue before; blocks without cached tokens go in front."),
        Option(f"block {queue[-1]}", "that is the tail of the queue, which is taken last."),
        Option(f"block {min(queue)}", "that is the lowest number; the queue knows an order, not numbers."),
        Option(f"block {min([*queue, *table])}", "that is the lowest number; the queue knows an order, not numbers."),
    ]  # fmt: skip
    asks = f"Prefix caching is off. {name} finishes and gives its blocks back; then D comes and needs one. Which?"
    return multiple_choice(rng, situation, asks, right, wrong)


def ask_unused(rng: random.Random, pool: Pool) -> Question | None:
    size = pool.config.block_size
    rows = [(n, len(pool.table(n)), r.num_computed_tokens) for n, r in pool.requests.items()]
    owned, used = sum(blocks for _, blocks, _ in rows), sum(tokens for _, _, tokens in rows)
    right = Option(
        str(owned * size - used),
        f"{owned} blocks are {owned * size} slots, {used} hold a token: only last blocks are part-filled.",
    )
    free = pool.manager.num_free_blocks * size
    left = [tokens % size for _, _, tokens in rows]
    wrong = [
        Option(str(sum(left)), "that is how many slots of the last blocks are taken, not how many are empty."),
        Option(str(free), "those are the slots of free blocks, which nobody owns."),
        Option(str(free + owned * size - used), "that counts the slots of free blocks too; nobody owns those."),
        Option(str(3 * (size - 1)), "that is the most that three requests can leave empty, not what these do."),
        Option("0", "that would need every last block to be full."),
    ]
    asks = "How many slots belong to a request and hold no token yet?"
    return multiple_choice(rng, pool.text(), asks, right, wrong)
