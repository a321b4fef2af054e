"""Which KV blocks belong to which request. Knows tokens and blocks; knows no queue and no budget. Chapter 6."""

from mini_vllm.config import SchedulerConfig
from mini_vllm.core.block_pool import BlockPool
from mini_vllm.errors import KVPoolTooSmallError
from mini_vllm.request import Request


class KVCacheManager:
    """Block tables over one `BlockPool`. `None` from `allocate_slots` means "not now", never an error."""

    def __init__(self, config: SchedulerConfig):
        self.config = config
        self.block_pool = BlockPool(config.num_gpu_blocks)
        self.req_to_blocks: dict[str, list[int]] = {}

    @property
    def num_free_blocks(self) -> int:
        return self.block_pool.num_free_blocks

    def get_block_ids(self, request_id: str) -> list[int]:
        """The block table of a request: block i holds its tokens i*block_size … (i+1)*block_size - 1."""
        return self.req_to_blocks.get(request_id, [])

    @staticmethod
    def refuse_if_never_fits(config: SchedulerConfig, request: Request) -> None:
        """Raise KVPoolTooSmallError if even an empty pool could not carry this request to its last token.

        The KV of the last sampled token is never computed, hence the minus one.
        """
        max_tokens = request.sampling_params.max_tokens
        all_tokens = min(request.num_prompt_tokens + max_tokens, config.max_model_len)
        peak_tokens = max(all_tokens - 1, request.num_prompt_tokens)
        need = config.blocks_for(peak_tokens)
        if need > config.num_gpu_blocks:
            raise KVPoolTooSmallError(
                f"request {request.request_id!r} needs up to {need} KV blocks for {peak_tokens} tokens "
                f"({request.num_prompt_tokens} prompt + {max_tokens} new, max_model_len {config.max_model_len}, "
                f"{config.block_size} a block) but the whole pool has {config.num_gpu_blocks}: lower max_tokens, "
                "shorten the prompt, or raise num_gpu_blocks"
            )

    def allocate_slots(self, request: Request, num_new_tokens: int, *, full_sequence: bool = False) -> list[int] | None:
        """Blocks for the next `num_new_tokens` tokens of a request: the new block ids, or None if they do not fit.

            |<-- num_computed_tokens -->|<-- num_new_tokens -->|
            | blocks it owns      | free slots |  new blocks   |

        full_sequence: at admission, take no block unless *all* known tokens would fit (vLLM 0.33.0's default).
        A failure changes nothing.
        """
        owned = self.req_to_blocks.get(request.request_id, [])
        free = self.block_pool.num_free_blocks
        if full_sequence:
            known = min(request.num_tokens, self.config.max_model_len)
            if self.config.blocks_for(known) - len(owned) > free:
                return None
        num_blocks = self.config.blocks_for(request.num_computed_tokens + num_new_tokens) - len(owned)
        if num_blocks > free:
            return None
        new_blocks = self.block_pool.take(max(num_blocks, 0))
        if new_blocks:
            self.req_to_blocks[request.request_id] = owned + new_blocks
        return new_blocks

    def free(self, request: Request) -> None:
        """Give back all blocks of a request; harmless if it has none."""
        self.block_pool.free(self.req_to_blocks.pop(request.request_id, ()))

    def check_integrity(self) -> None:
        """Raise AssertionError unless every block is either free or owned by exactly one request."""
        owned = [block for table in self.req_to_blocks.values() for block in table]
        everything = sorted([*owned, *self.block_pool.free_queue])
        assert everything == list(range(1, self.config.num_gpu_blocks + 1)), (
            f"free + owned blocks are not the pool: {len(owned)} owned, {self.num_free_blocks} free, "
            f"{self.config.num_gpu_blocks} in the pool"
        )
