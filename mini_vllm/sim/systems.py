"""Ways to serve, as settings of one simulator, from static batching to today's vLLM. Knows no clock. Chapter 12.

name        who may enter                       a prompt enters      KV memory
static      all at once, when all have left     whole                grows
padded      the same, as one rectangle          padded to longest    grows
bucketed    as static, of similar length        whole                grows
continuous  in every step, into a free slot     whole                grows
orca        in every step                       whole                longest possible request, reserved
vllm-v0     in every step, before any decode    whole                grows in blocks, 1 % kept free
sarathi     in every step, after the decodes    in chunks of 512     grows in blocks
vllm        in every step, after the decodes    in chunks            grows in blocks; prompt must fit at once
reserve     as vllm                             in chunks            prompt and whole output, reserved
lpm         as vllm, best cache hit first       in chunks            as vllm, with prefix caching
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from mini_vllm.batching.bucketed import BucketedBatcher
from mini_vllm.batching.continuous import ContinuousBatcher
from mini_vllm.batching.padded import PaddedBatcher
from mini_vllm.batching.static import StaticBatcher
from mini_vllm.config import SchedulerConfig
from mini_vllm.core.kv_cache_manager import KVCacheManager
from mini_vllm.core.output import SchedulerOutput
from mini_vllm.core.scheduler import Scheduler
from mini_vllm.errors import ConfigError
from mini_vllm.request import Request
from mini_vllm.sim.clock import Clock, StepLoad
from mini_vllm.sim.simulator import Simulator


class _ReservingScheduler(Scheduler):
    """Nobody enters unless the KV it may ever need is free for it: there are no evictions, and much stays empty."""

    def __init__(self, config: SchedulerConfig):
        super().__init__(config)
        self.gates.append(self._kv_reservation)

    def most_tokens(self, request: Request) -> int:
        raise NotImplementedError

    def _blocks(self, request: Request) -> int:
        return self.config.blocks_for(self.most_tokens(request))

    def _kv_reservation(self, request: Request, running: Sequence[Request]) -> str | None:
        reserved = sum(map(self._blocks, running))
        return "kv_reservation" if reserved + self._blocks(request) > self.config.num_gpu_blocks else None


class ReservingScheduler(_ReservingScheduler):
    """Reserves prompt and output, as if every user said exactly how much they want."""

    def most_tokens(self, request: Request) -> int:
        return min(request.longest, self.config.max_model_len) - 1  # the KV of the last token is never computed


class OrcaScheduler(_ReservingScheduler):
    """Iteration-level scheduling as in Orca (OSDI '22): the longest request that the model allows is reserved.

    Without paging a request needs one piece of memory, as large as it may ever become.
    """

    def __init__(self, config: SchedulerConfig):
        super().__init__(config)
        if (need := config.blocks_for(config.max_model_len)) > config.num_gpu_blocks:
            raise ConfigError(
                f"orca reserves max_model_len={config.max_model_len} tokens for everybody, {need} KV blocks; the pool "
                f"has {config.num_gpu_blocks}: lower max_model_len or raise num_gpu_blocks"
            )

    def most_tokens(self, request: Request) -> int:
        return self.config.max_model_len


class PrefillFirstScheduler(Scheduler):
    """vLLM before version 1: as long as somebody can enter, a step is prompts only and those who decode stand still."""

    def __init__(self, config: SchedulerConfig):
        super().__init__(config)
        self._decoding: list[Request] = []  # stand still in this step
        self.gates.insert(0, self._seats)

    def _seats(self, request: Request, running: Sequence[Request]) -> str | None:
        return "max_num_seqs" if len(running) + len(self._decoding) >= self.config.max_num_seqs else None

    def schedule(self) -> SchedulerOutput:
        if not self.waiting or not self.running:
            return super().schedule()
        all_decode, self.all_decode = self.all_decode, False
        self._decoding, self.running = self.running, []
        plan = super().schedule()
        entered, self.running, self._decoding = self.running, [*self._decoding, *self.running], []
        if entered:
            return plan
        self.finished_req_ids = plan.finished_req_ids  # nobody has been told yet
        self.all_decode = all_decode
        return super().schedule()

    def _allocate_admission(self, request: Request, num_new_tokens: int, hits: list[int]) -> list[int] | None:
        cfg = self.config
        return self.kv_cache_manager.allocate_slots(
            request,
            num_new_tokens,
            num_lookahead_tokens=cfg.num_lookahead_tokens,
            hits=hits,
            full_sequence=cfg.reserve_full_isl,
            watermark_blocks=cfg.watermark_blocks if self.running or self._decoding else 0,
        )


class LongestPrefixQueue:
    """Whoever has the most tokens in the prefix cache goes first; of equals, who came first. Nobody's age counts."""

    def __init__(self, manager: KVCacheManager):
        self._manager = manager
        self._line: list[Request] = []
        self._head: Request
        self.add = self._line.append

    def put_back(self, request: Request) -> None:
        self._line.insert(0, request)

    def peek(self) -> Request:
        self._head = max(self._line, key=lambda r: len(self._manager.get_computed_blocks(r)))
        return self._head

    def pop(self) -> Request:
        # Whom the scheduler has looked at: by now others may have a better hit, in the blocks that it was given.
        self._line.remove(self._head)
        return self._head

    def remove(self, request: Request) -> None:
        self._line.remove(request)

    def __len__(self) -> int:
        return len(self._line)

    def __iter__(self) -> Iterator[Request]:
        return iter(self._line)


class LongestPrefixScheduler(Scheduler):
    """Longest prefix first, as SGLang's `lpm` policy."""

    def __init__(self, config: SchedulerConfig):
        super().__init__(config)
        self.waiting = LongestPrefixQueue(self.kv_cache_manager)


class PaddedCharge:
    """What a padded batch costs: every row as long as the longest prompt, and all rows until the last one is done."""

    def __init__(self) -> None:
        self.rows = self.width = 0

    def __call__(self, plan: SchedulerOutput, own: StepLoad) -> StepLoad:
        if not own.n_seqs:
            return own
        if plan.scheduled_new_reqs:
            self.rows = len(plan.scheduled_new_reqs)
            self.width = max(len(new.prompt_token_ids) for new in plan.scheduled_new_reqs)
            pairs = self.rows * self.width * (self.width + 1) // 2
            return StepLoad(self.rows * self.width, 0, self.rows * self.width, pairs, self.rows, self.rows)
        self.width += 1
        slots = self.rows * self.width
        return StepLoad(0, self.rows, slots, slots, self.rows, self.rows)


def _whole_prompts(base: SchedulerConfig) -> dict[str, Any]:
    """A prompt that must enter whole needs a budget as long as the longest one."""
    budget = max(base.max_num_batched_tokens, base.max_model_len)
    return {"enable_chunked_prefill": False, "max_num_batched_tokens": budget}


def _paged_whole_prompts(base: SchedulerConfig) -> dict[str, Any]:
    return _whole_prompts(base) | {"watermark": 0.01}


def _fixed_batch(base: SchedulerConfig) -> dict[str, Any]:
    """A batch that nobody can be evicted from: as many rows as fit if all of them become as long as they may."""
    rows = max(1, min(base.max_num_seqs, base.num_gpu_blocks // base.blocks_for(base.max_model_len)))
    budget = rows * base.max_model_len
    return {"enable_chunked_prefill": False, "max_num_seqs": rows, "max_num_batched_tokens": budget}


def _small_chunks(base: SchedulerConfig) -> dict[str, Any]:
    budget = max(512, base.max_num_seqs)
    return {"max_num_batched_tokens": budget, "reserve_full_isl": False, "watermark": 0.01}


def _as_given(base: SchedulerConfig) -> dict[str, Any]:
    return {}


def _caching(base: SchedulerConfig) -> dict[str, Any]:
    return {"enable_prefix_caching": True}


@dataclass(frozen=True)
class System:
    """A way to serve. settings: what it changes in a configuration, where the user has not chosen otherwise."""

    name: str
    scheduler_cls: type
    settings: Callable[[SchedulerConfig], dict[str, Any]] = _as_given
    make_charge: Callable[[], Any] | None = None

    def configure(self, base: SchedulerConfig, **chosen: Any) -> SchedulerConfig:
        """`base` with what the user has chosen, and for the rest with this system's settings."""
        wanted = replace(base, **chosen)
        return replace(wanted, **{**self.settings(wanted), **chosen})

    def simulator(self, config: SchedulerConfig, clock: Clock, **options: Any) -> Simulator:
        """options: as of `Simulator`."""
        return Simulator(config, clock, scheduler_cls=self.scheduler_cls, make_charge=self.make_charge, **options)


SYSTEMS = {
    system.name: system
    for system in (
        System("static", StaticBatcher, _fixed_batch),
        System("padded", PaddedBatcher, _fixed_batch, PaddedCharge),
        System("bucketed", BucketedBatcher, _fixed_batch),
        System("continuous", ContinuousBatcher, _fixed_batch),
        System("orca", OrcaScheduler, _whole_prompts),
        System("vllm-v0", PrefillFirstScheduler, _paged_whole_prompts),
        System("sarathi", Scheduler, _small_chunks),
        System("vllm", Scheduler),
        System("reserve", ReservingScheduler),
        System("lpm", LongestPrefixScheduler, _caching),
    )
}


def get_system(name: str) -> System:
    """A system by name. Raises ConfigError that lists the names."""
    if name not in SYSTEMS:
        raise ConfigError(f"system {name!r} is not one of {', '.join(SYSTEMS)}")
    return SYSTEMS[name]
