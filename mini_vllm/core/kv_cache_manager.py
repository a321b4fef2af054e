"""Which KV blocks belong to which request. Knows tokens and blocks; knows no queue and no budget. Chapters 6 and 7."""

from collections.abc import Sequence

from mini_vllm.config import SchedulerConfig
from mini_vllm.core.block_pool import NULL_BLOCK, BlockPool
from mini_vllm.core.prefix_cache import extend_hashes
from mini_vllm.errors import KVPoolTooSmallError, PromptTooLongError
from mini_vllm.request import PREEMPTED, Request

NO_BLOCKS: list[int] = []  # shared by all who needed none; nobody appends to a plan


class KVCacheManager:
    """Block tables over one `BlockPool`. `None` from `allocate_slots` means "not now", never an error."""

    def __init__(self, config: SchedulerConfig):
        self.config = config
        self.block_pool = BlockPool(config.num_gpu_blocks)
        self.req_to_blocks: dict[str, list[int]] = {}
        self.num_steps_in_flight = 1  # two with the asynchronous scheduler: the window moves on one step later
        self.num_registered: dict[str, int] = {}  # leading blocks of each request that carry their hash

    @property
    def num_free_blocks(self) -> int:
        return self.block_pool.num_free_blocks

    def get_block_ids(self, request_id: str) -> list[int]:
        """The block table of a request: block i holds its tokens i*block_size … (i+1)*block_size - 1."""
        return self.req_to_blocks.get(request_id, NO_BLOCKS)

    @staticmethod
    def refuse_if_never_fits(config: SchedulerConfig, request: Request, num_steps_in_flight: int = 1) -> None:
        """Raise if this request could never run to its end, even alone: PromptTooLongError, KVPoolTooSmallError.

        The KV of the last sampled token is never computed, hence the minus one; drafts need slots of their own.
        """
        if request.num_prompt_tokens >= config.max_model_len:
            raise PromptTooLongError(
                f"request {request.request_id!r} has {request.num_prompt_tokens} prompt tokens; max_model_len is "
                f"{config.max_model_len} and one place must stay for a new token: shorten the prompt to "
                f"{config.max_model_len - 1}, or raise max_model_len as far as the model allows"
            )
        max_tokens = request.sampling_params.max_tokens
        all_tokens = min(request.num_prompt_tokens + max_tokens, config.max_model_len)
        peak_tokens = max(all_tokens - 1, request.num_prompt_tokens)
        ahead = config.num_speculative_tokens + config.num_lookahead_tokens
        if ahead:
            peak_tokens = min(peak_tokens + ahead, max(config.max_model_len, request.num_prompt_tokens))
        need = config.peak_blocks(peak_tokens, num_steps_in_flight)
        if need > config.num_gpu_blocks:
            window = f", of which a window of {config.sliding_window} is kept" if config.sliding_window else ""
            raise KVPoolTooSmallError(
                f"request {request.request_id!r} needs up to {need} KV blocks for {peak_tokens} tokens{window} "
                f"({request.num_prompt_tokens} prompt + {max_tokens} new, max_model_len {config.max_model_len}, "
                f"{config.block_size} a block) but the whole pool has {config.num_gpu_blocks}: lower max_tokens, "
                "shorten the prompt, or raise num_gpu_blocks"
            )

    def get_computed_blocks(self, request: Request) -> list[int]:
        """Cached blocks that hold the start of this request; they are not taken yet.

        At least one token is always left to compute, since its logits are needed: of 8 known tokens in blocks of 4,
        at most the first block is a hit, and 4 tokens are computed anew.
        """
        if not self.config.enable_prefix_caching:
            return NO_BLOCKS
        most = (request.num_tokens - 1) // self.config.block_size
        hits = []
        for block_hash in extend_hashes(request, self.config.block_size, most)[:most]:
            if (block := self.block_pool.find(block_hash)) is None:
                break
            hits.append(block)
        # Of a long hit, nobody looks at what the window has left behind.
        num_unseen = self.config.blocks_out_of_window(len(hits) * self.config.block_size)
        return [NULL_BLOCK] * num_unseen + hits[num_unseen:]

    def allocate_slots(
        self,
        request: Request,
        num_new_tokens: int,
        *,
        num_lookahead_tokens: int = 0,
        hits: Sequence[int] = NO_BLOCKS,
        full_sequence: bool = False,
        watermark_blocks: int = 0,
    ) -> list[int] | None:
        """Blocks for the next `num_new_tokens` tokens of a request: the new block ids, or None if they do not fit.

            | hits or computed |<- num_new_tokens ->|<- lookahead ->|
            | blocks it owns or will share  | new blocks            |

        hits: at admission, the cached blocks it starts with; they are shared, and leave the free queue if idle.
        full_sequence: at admission, *all* known tokens must fit, not only these (vLLM 0.33.0's default).
        watermark_blocks: blocks that must be left free beside.
        A failure changes nothing. A success sets `request.quiet_until`.
        """
        cfg, pool = self.config, self.block_pool
        owned = self.req_to_blocks.get(request.request_id, NO_BLOCKS)
        num_computed = request.num_computed_tokens + len(hits) * cfg.block_size
        last_slot = min(num_computed + num_new_tokens + num_lookahead_tokens, cfg.max_model_len)
        num_blocks = -(-last_slot // cfg.block_size) - len(owned) - len(hits)
        reserved = watermark_blocks + (pool.num_idle(hits) if hits else 0)
        if num_blocks + reserved > pool.num_free_blocks:
            return None
        if full_sequence:
            if self.full_sequence_blocks(request) - len(owned) - len(hits) + reserved > pool.num_free_blocks:
                return None

        if hits:
            pool.touch(hits)
        new_blocks = pool.take(num_blocks) if num_blocks > 0 else NO_BLOCKS
        if not owned:
            owned = self.req_to_blocks[request.request_id] = []
        owned += hits
        owned += new_blocks
        num_known = min(num_computed + num_new_tokens, len(request.token_ids))  # without drafts and placeholders
        if cfg.enable_prefix_caching:
            if hits:
                self.num_registered[request.request_id] = len(hits)
            # At once, before anything is computed: a later request of the same step can already share them.
            self.register_full_blocks(request, num_known)
        request.quiet_until = self.quiet_until(len(owned), num_known, num_lookahead_tokens)
        return new_blocks

    def quiet_until(self, num_blocks: int, num_known: int, num_lookahead_tokens: int = 0) -> int:
        """Up to so many computed tokens, the pieces to come of a request need no block and fill none.

        So the scheduler need not ask. num_blocks: that it has. num_known: known tokens that are computed or planned.
        """
        room = num_blocks * self.config.block_size - num_lookahead_tokens
        if not self.config.enable_prefix_caching:
            return room
        return min(room, (num_known // self.config.block_size + 1) * self.config.block_size - 1)

    def full_sequence_blocks(self, request: Request) -> int:
        """Blocks that all known tokens of a request take, those of a prefix hit among them."""
        return self.config.peak_blocks(min(request.num_tokens, self.config.max_model_len), self.num_steps_in_flight)

    def register_full_blocks(self, request: Request, num_tokens: int) -> None:
        """Give the blocks that hold the first `num_tokens` tokens their hash, as far as they are full."""
        num_full = num_tokens // self.config.block_size
        done = self.num_registered.get(request.request_id, 0)
        if num_full <= done:
            return
        hashes = extend_hashes(request, self.config.block_size, num_full)
        blocks = self.req_to_blocks[request.request_id]
        for i in range(done, num_full):
            if blocks[i] != NULL_BLOCK:
                self.block_pool.register(blocks[i], hashes[i])
        self.num_registered[request.request_id] = num_full

    def register_next_block(self, request: Request) -> None:
        """The same for exactly one block more, as happens in decode."""
        i = self.num_registered.get(request.request_id, 0)
        self.block_pool.register(
            self.req_to_blocks[request.request_id][i], extend_hashes(request, self.config.block_size, i + 1)[i]
        )
        self.num_registered[request.request_id] = i + 1

    def register_settled(self, request: Request) -> None:
        """Register what outputs have filled; also of one that has just ended, before its blocks are freed."""
        if self.config.enable_prefix_caching and request.status != PREEMPTED:
            settled = min(request.num_computed_tokens - request.num_in_flight_tokens, request.num_tokens)
            self.register_full_blocks(request, settled)

    def unpublish(self, request: Request) -> None:
        """Take the hash from blocks that were registered for a piece that will not run after all."""
        first = request.num_computed_tokens // self.config.block_size
        last = self.num_registered.get(request.request_id, 0)
        for block in self.get_block_ids(request.request_id)[first:last]:
            if block != NULL_BLOCK:
                self.block_pool.forget_hash(block)
        if first < last:
            self.num_registered[request.request_id] = first

    def free_out_of_window(self, request: Request) -> None:
        """Sliding window: give back blocks that no token to come will look at; the null block takes their place.

        Counted from what is surely computed: tokens still in flight may look back from where they stand, and drafts
        may be rejected.
        """
        blocks = self.req_to_blocks.get(request.request_id, NO_BLOCKS)
        num_unseen = self.config.blocks_out_of_window(request.num_computed_tokens - request.num_in_flight_tokens)
        gone = [i for i in range(min(num_unseen, len(blocks))) if blocks[i] != NULL_BLOCK]
        if gone:
            self.block_pool.free([blocks[i] for i in reversed(gone)])
            self.req_to_blocks[request.request_id] = [NULL_BLOCK if i in gone else b for i, b in enumerate(blocks)]

    def free(self, request: Request) -> None:
        """Give back all blocks of a request, tail first: the start of a prefix is worth most. Harmless without any."""
        self.block_pool.free(self.req_to_blocks.pop(request.request_id, NO_BLOCKS)[::-1])
        self.num_registered.pop(request.request_id, None)
        request.quiet_until = 0

    def check_integrity(self) -> None:
        """Raise AssertionError unless pool and block tables agree; names what differs."""
        self.block_pool.check_integrity(block for table in self.req_to_blocks.values() for block in table)
        for req_id, num_full in self.num_registered.items():
            table = self.req_to_blocks.get(req_id, NO_BLOCKS)
            bare = [b for b in table[:num_full] if b != NULL_BLOCK and self.block_pool.hash_of[b] is None]
            assert num_full <= len(table) and not bare, f"{req_id}: blocks {bare} are registered without a hash"
