"""The numbers that a scheduler is built with. Knows no request. Opened in chapter 5."""

import math
from dataclasses import dataclass, fields

from mini_vllm.errors import ConfigError

POLICIES = ("fcfs", "priority")


@dataclass(frozen=True)
class SchedulerConfig:
    """Limits and switches of one scheduler; field names and meaning as in vLLM 0.33.0's configuration.

    max_num_seqs: requests in `running` at most.
    max_num_batched_tokens: tokens of one step at most that the model's input holds (the input budget). A drafter that
        puts slots of its own beside them takes its share first: max_num_new_slots_for_drafting.
    max_model_len: prompt and output tokens of one request at most.
    num_gpu_blocks: usable KV blocks, numbered 1..num_gpu_blocks (block 0 is the null block, as in vLLM).
    block_size: tokens that one block holds.
    max_num_scheduled_tokens: tokens of one step at most that are handed out (the token budget); None means
        max_num_batched_tokens.
    enable_chunked_prefill: a prompt may enter in pieces; else whole or not at all (but a long-prefill threshold cuts
        it all the same, as in vLLM 0.33.0).
    long_prefill_token_threshold: longest piece of one request while others are there; 0 is off.
    long_prefill_token_threshold_adaptive: raise the threshold to an equal share of the budget.
    enable_prefix_caching: reuse the KV of full blocks (chapter 7).
    policy: "fcfs" or "priority". With "priority", requests of equal priority and arrival_time can evict each other in
        turn for ever if reserve_full_isl is off and two of them do not fit together (as in vLLM 0.33.0).
    aging: with "priority", the time after which a request counts as one level more urgent, in the unit of arrival_time;
        None is never, as in vLLM. With it nobody starves: a request of priority p is overtaken only by those of
        priority q that arrive less than (p - q) * aging after it.
    watermark: share of the pool that an admission must leave free while others run.
    reserve_full_isl: at admission, all known tokens must fit, not only the next piece.
    num_speculative_tokens: draft tokens verified with each decode; num_lookahead_tokens: slots kept for them.
    max_num_new_slots_for_drafting: slots of the input budget that the drafter adds for each scheduled request; 0 for
        n-gram drafts, which need no model.
    sliding_window: tokens that attention looks back; None is all. Blocks out of sight are freed.
    max_loras: different adapters among the running requests at most; None is no limit.
    unpublish_given_back: when a request is evicted in the step that planned it, the blocks of that piece lose their
        hash again, since nobody will compute them. vLLM 0.33.0 leaves it (public report: vllm-project/vllm#43569), and
        a later hit on them gives wrong tokens; off only to replay recordings of it.
    refuse_unfittable: refuse a request at once that even an empty pool could not carry; off to replay recordings of
        the bare vLLM scheduler, which lets it block the queue.
    """

    max_num_seqs: int = 8
    max_num_batched_tokens: int = 64
    max_model_len: int = 256
    num_gpu_blocks: int = 64
    block_size: int = 4
    max_num_scheduled_tokens: int | None = None
    enable_chunked_prefill: bool = True
    long_prefill_token_threshold: int = 0
    long_prefill_token_threshold_adaptive: bool = False
    enable_prefix_caching: bool = False
    policy: str = "fcfs"
    aging: float | None = None
    watermark: float = 0.0
    reserve_full_isl: bool = True
    num_speculative_tokens: int = 0
    num_lookahead_tokens: int = 0
    max_num_new_slots_for_drafting: int = 0
    sliding_window: int | None = None
    max_loras: int | None = None
    unpublish_given_back: bool = True
    refuse_unfittable: bool = True

    def __post_init__(self) -> None:
        self._check_ranges()
        if self.max_num_batched_tokens < self.max_num_seqs * (1 + self.max_num_new_slots_for_drafting):
            slots = self.max_num_new_slots_for_drafting
            times = f" times 1 + max_num_new_slots_for_drafting={slots}" if slots else ""
            raise ConfigError(
                f"max_num_batched_tokens={self.max_num_batched_tokens} is below max_num_seqs={self.max_num_seqs}{times}"
                ": a full batch could not decode one token each; raise the first or lower the second"
            )
        widest = self.room(self.token_budget, num_planned=0)
        budget = f"the token budget of {widest}"
        if widest < self.token_budget:
            budget += f" (of {self.max_num_batched_tokens}, less {self.max_num_new_slots_for_drafting} for drafting)"
        if not self.enable_chunked_prefill and widest < self.max_model_len:
            raise ConfigError(
                f"{budget} is below max_model_len={self.max_model_len} and chunked prefill is off: a long prompt "
                "could never enter; raise max_num_batched_tokens (and max_num_scheduled_tokens, if it is set), or "
                "allow chunks"
            )
        if self.num_speculative_tokens and widest < 1 + self.num_speculative_tokens:
            raise ConfigError(
                f"{budget} is below 1 + num_speculative_tokens = {1 + self.num_speculative_tokens}: a decode with its "
                "drafts could never be scheduled; raise it"
            )
        if self.policy not in POLICIES:
            raise ConfigError(f"policy={self.policy!r} is not one of {', '.join(POLICIES)}")

    def _check_ranges(self) -> None:
        """Every number in its range; the message names value, limit and field."""
        may_be_zero = {
            "long_prefill_token_threshold",
            "num_speculative_tokens",
            "num_lookahead_tokens",
            "max_num_new_slots_for_drafting",
        }
        for f in fields(self):
            value = getattr(self, f.name)
            if f.name == "watermark":
                if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value < 1:
                    raise ConfigError(f"watermark={value!r} must be a share of the pool, at least 0 and below 1")
            elif f.name == "aging":
                if value is not None and (not isinstance(value, int | float) or not 0 < value < math.inf):
                    raise ConfigError(f"aging={value!r} must be a time above 0, or None")
            elif f.type == "bool" or f.type is bool:
                if not isinstance(value, bool):
                    raise ConfigError(f"{f.name}={value!r} must be True or False")
            elif f.name != "policy" and not (value is None and f.default is None):
                least = 0 if f.name in may_be_zero else 1
                if not isinstance(value, int) or isinstance(value, bool) or value < least:
                    raise ConfigError(f"{f.name}={value!r} must be a whole number of at least {least}")

    @property
    def token_budget(self) -> int:
        """Tokens that one step may hand out."""
        return min(self.max_num_scheduled_tokens or self.max_num_batched_tokens, self.max_num_batched_tokens)

    def room(self, budget: int, num_planned: int) -> int:
        """Tokens that one request more may get, when `budget` is left of the token budget.

        In the input budget each of the `num_planned` requests, and this one, also takes its slots for drafting.
        """
        spare_input = self.max_num_batched_tokens - self.token_budget
        return min(budget, budget + spare_input - self.max_num_new_slots_for_drafting * (num_planned + 1))

    @property
    def watermark_blocks(self) -> int:
        """Blocks that an admission leaves free while others run. The null block counts, as in vLLM."""
        return int(self.watermark * (self.num_gpu_blocks + 1))

    def blocks_for(self, num_tokens: int) -> int:
        """Blocks that hold `num_tokens` tokens: a started block counts in full."""
        return -(-num_tokens // self.block_size)

    def peak_blocks(self, num_tokens: int, num_steps_in_flight: int = 1) -> int:
        """Blocks that a request of `num_tokens` tokens holds at once at most.

        With a sliding window these are what the window covers and the pieces under way, however long the request:

            |  given back  |<- window - 1 ->|<- drafts ->|<- pieces under way ->|<- lookahead ->|
        """
        blocks = self.blocks_for(num_tokens)
        if self.sliding_window is None:
            return blocks
        pieces = num_steps_in_flight * self.room(self.token_budget, num_planned=0) + self.num_lookahead_tokens
        in_sight = self.sliding_window - 1 + self.num_speculative_tokens + pieces
        return min(blocks, self.blocks_for(in_sight) + 1)  # plus one: neither end lies on a block boundary

    def blocks_out_of_window(self, num_settled_tokens: int) -> int:
        """Leading blocks of a request that no token to come will look at (sliding window), when the KV of its first
        `num_settled_tokens` tokens is there. Drafts may be rejected, so their KV is not counted as there.
        """
        if self.sliding_window is None:
            return 0
        # The next token, at position `settled`, sees positions settled - window + 1 … settled.
        settled = num_settled_tokens - self.num_speculative_tokens
        return max(0, settled - self.sliding_window + 1) // self.block_size
