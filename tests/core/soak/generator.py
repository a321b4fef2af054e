"""Random configurations, requests and disturbances: small and tight. Knows the kinds of scenario; no rule.

Everything is drawn from one `random.Random`, so that a scenario is a function of (kind, seed) alone.
"""

import random

from mini_vllm.config import SchedulerConfig
from mini_vllm.request import Request
from mini_vllm.sampling_params import SamplingParams

# lockstep: beside the clear form of the rules; fast: beside the same scheduler without its fast path.
KINDS = ("plain", "lockstep", "fast", "async", "async2", "drafts", "lora", "window", "window_async", "window_drafts")
SYNCHRONOUS_WITHOUT_DRAFTS = ("plain", "lockstep", "fast", "lora")  # those that the fast path may serve
MOST_ALIVE = 12


def num_steps_ahead(kind: str, rng: random.Random) -> int:
    """How many plans are made before the output of the first comes back."""
    if kind == "async2":
        return 2
    return 1 if "async" in kind or (kind == "lora" and rng.random() < 0.5) else 0


def random_config(kind: str, rng: random.Random) -> SchedulerConfig:
    """Most pools carry one request to its end, and not all that run."""
    coin = rng.random
    has_window = "window" in kind
    max_model_len = rng.choice((16, 24, 32, 48) if has_window else (6, 10, 16, 24, 32))
    chunked = coin() < 0.8
    max_num_seqs = rng.randint(3, 6) if coin() < 0.7 else rng.randint(1, 2)
    drafts = rng.randint(1, 3) if "drafts" in kind else 0
    # The clear form knows no slots for drafting and no lookahead, and the fast path leaves them alone.
    may_draft = kind not in ("lockstep", "fast")
    slots = rng.randint(1, 3) if may_draft and coin() < (0.5 if drafts else 0.2) else 0
    budget = max_num_seqs * (1 + slots) + rng.choice((0, 0, 1, 2, 4, 8, 16, 28))
    budget = max(budget, slots + 1 + drafts, slots + max_model_len if not chunked else 0)
    block_size = rng.randint(1, 5)
    lookahead = rng.choice((0, drafts)) if drafts else rng.randint(1, 3) if may_draft and coin() < 0.1 else 0
    token_budget = rng.randint(1 + drafts, budget) if coin() < 0.4 and chunked else None
    window = rng.randint(1, 12) if has_window else None
    enough = max_model_len + drafts + lookahead
    if window and coin() < 0.7:  # no more than the window and the pieces under way cover, give or take a block
        num_pieces = 2 if "async" in kind else 1
        enough = min(enough, window - 1 + drafts + lookahead + num_pieces * (token_budget or budget))
    num_blocks = -(-enough // block_size) + rng.randint(0, 3)
    with_loras = kind == "lora" or (kind == "fast" and coin() < 0.2)
    return SchedulerConfig(
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=budget,
        max_model_len=max_model_len,
        num_gpu_blocks=num_blocks if coin() < 0.7 else rng.randint(2, 16),
        block_size=block_size,
        max_num_scheduled_tokens=token_budget,
        enable_chunked_prefill=chunked,
        long_prefill_token_threshold=rng.randint(1, 8) if coin() < 0.3 else 0,
        long_prefill_token_threshold_adaptive=coin() < 0.25,
        enable_prefix_caching=coin() < 0.7,
        policy=rng.choice(("fcfs", "priority")),
        watermark=rng.choice((0.0, 0.0, 0.05, 0.1, 0.2, 0.4)),
        reserve_full_isl=coin() < 0.6,
        num_speculative_tokens=drafts,
        num_lookahead_tokens=lookahead,
        max_num_new_slots_for_drafting=slots,
        sliding_window=window,
        max_loras=rng.randint(1, 2) if with_loras else None,
        aging=(None, None, 3.0, 0.5)[num_blocks % 4],  # from what is drawn already, so that a seed keeps its scenario
    )


class Crowd:
    """Those who send the requests of one scenario: how many, how alike, how patient."""

    def __init__(self, kind: str, config: SchedulerConfig, rng: random.Random):
        self.rng, self.config = rng, config
        self.alphabet = rng.choice((2, 3, 4, 8))
        self.texts: list[list[int]] = [
            rng.choices(range(self.alphabet), k=config.max_model_len) for _ in range(rng.randint(1, 3))
        ]
        self.arrival_rate = rng.choice((0.2, 0.5, 0.8))
        self.abort_rate = rng.choice((0.0, 0.02, 0.1))
        self.num_arriving_steps = rng.randint(20, 150)
        self.with_salts = rng.random() < 0.3
        self.num_adapters = rng.randint(1, 4) if config.max_loras else rng.choice((0, 0, 0, 2))
        self.stop_rate = rng.choice((0.0, 0.3))
        self.num_priorities = rng.choice((1, 2, 4))
        self.longest_prompt = rng.choice((2, 6, 99))  # short ones enter together, and outgrow the pool together
        self.num_sent = 0

    def wants_in(self, num_alive: int) -> bool:
        return self.rng.random() < self.arrival_rate and num_alive < MOST_ALIVE

    def heard(self, tokens: list[int]) -> None:
        """Somebody will continue this conversation."""
        if len(self.texts) < 12:
            self.texts.append((tokens * 5)[: self.config.max_model_len])

    def request(self, req_id: str | None, alive: dict[str, Request], step: int) -> Request:
        rng, cfg = self.rng, self.config
        # An id may come again once its owner is gone.
        free_ids = [i for i in range(12) if f"R{i}" not in alive]
        if req_id is None:
            req_id = f"R{rng.choice(free_ids)}" if rng.random() < 0.3 and free_ids else f"N{self.num_sent}"
        self.num_sent += 1
        longest = min(self.longest_prompt, cfg.max_model_len - 1)
        prompt = rng.choice(self.texts)[: rng.randint(1, longest)]
        if rng.random() < 0.5:
            prompt = prompt + rng.choices(range(self.alphabet), k=rng.randint(0, 4))
        params = SamplingParams(
            max_tokens=rng.choice((1, 2, 4, 8, 16, 40)),
            ignore_eos=rng.random() < 0.5,
            stop_token_ids=(rng.randrange(self.alphabet),) if rng.random() < self.stop_rate else (),
        )
        return Request(
            req_id,
            prompt[:longest],
            params,
            arrival_time=float(step // rng.choice((1, 4))),
            eos_token_id=rng.randrange(self.alphabet) if rng.random() < self.stop_rate else None,
            priority=rng.randrange(self.num_priorities),
            cache_salt=rng.choice((None, "s", "t")) if self.with_salts else None,
            adapter=rng.choice((None, *"abcd"[: self.num_adapters])) if self.num_adapters else None,
        )

    def whom_to_abort(self, alive: dict[str, Request]) -> str | None:
        """Those in a rare state first, else they would hardly ever be met. None: somebody whom nobody knows."""
        rng = self.rng
        if not alive or rng.random() < 0.05:
            return None
        ids = list(alive)
        rare = [i for i in ids if alive[i].num_stale_plans or alive[i].status.name == "PREEMPTED"]
        return rng.choice(rare if rare and rng.random() < 0.8 else ids)


def twin_of(request: Request) -> Request:
    """The same request for a second scheduler."""
    return Request(
        request.request_id,
        request.prompt_token_ids,
        request.sampling_params,
        arrival_time=request.arrival_time,
        eos_token_id=request.eos_token_id,
        priority=request.priority,
        cache_salt=request.cache_salt,
        adapter=request.adapter,
    )
