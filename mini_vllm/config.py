"""The numbers that a scheduler is built with. Knows no request. Opened in chapter 5."""

from dataclasses import asdict, dataclass

from mini_vllm.errors import ConfigError


@dataclass(frozen=True)
class SchedulerConfig:
    """Limits of one scheduler; field names and meaning as in vLLM's configuration.

    max_num_seqs: requests in `running` at most.
    max_num_batched_tokens: tokens of one step at most (the token budget).
    max_model_len: prompt and output tokens of one request at most.
    num_gpu_blocks: usable KV blocks, numbered 1..num_gpu_blocks (block 0 is the null block, as in vLLM).
    block_size: tokens that one block holds.
    """

    max_num_seqs: int = 8
    max_num_batched_tokens: int = 64
    max_model_len: int = 256
    num_gpu_blocks: int = 64
    block_size: int = 4

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise ConfigError(f"{name}={value!r} must be a whole number of at least 1")
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise ConfigError(
                f"max_num_batched_tokens={self.max_num_batched_tokens} is below max_num_seqs={self.max_num_seqs}: "
                "a full batch could not decode one token each; raise the first or lower the second"
            )

    def blocks_for(self, num_tokens: int) -> int:
        """Blocks that hold `num_tokens` tokens: a started block counts in full."""
        return -(-num_tokens // self.block_size)
