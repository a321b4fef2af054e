"""An engine without files, served with token ids, and what each of its steps had to move. Knows no peer. Chapter 13."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from benchmarks.gpu_parts.bench import Bench, OutOfTimeError
from mini_vllm import Request, SamplingParams, SchedulerConfig
from mini_vllm.core.output import NewRequestData, SchedulerOutput
from mini_vllm.engine.attention.backend import AttentionBackend
from mini_vllm.engine.attention.torch import TorchPagedAttention
from mini_vllm.engine.engine_core import EngineCore
from mini_vllm.models.llama import LlamaForCausalLM
from mini_vllm.roofline import ModelCosts, StepWork

Workload = Sequence[tuple[list[int], int]]  # (prompt ids, output tokens)


def blocks_that_fit(bench: Bench, model: LlamaForCausalLM, block_size: int, wanted_tokens: int) -> int:
    """Blocks for `wanted_tokens`, or as many as 80 % of the free memory hold."""
    wanted = -(-wanted_tokens // block_size)
    block_bytes = block_size * model.config.kv_bytes_per_token(model.dtype)
    return max(1, min(wanted, int(0.8 * bench.free_bytes() // block_bytes)))


def build_engine(
    bench: Bench,
    model: LlamaForCausalLM,
    config: SchedulerConfig,
    backend: str = "triton",
    *,
    graphs: bool = True,
    overlap: bool = False,
) -> EngineCore:
    """graphs: decode from CUDA graphs. overlap: plan a step while the one before runs."""
    attention = attention_of(bench, model, backend)
    return EngineCore(
        model, config, attn_backend=attention, enforce_eager=not graphs or bench.smoke, async_scheduling=overlap
    )


def attention_of(bench: Bench, model: LlamaForCausalLM, name: str) -> AttentionBackend:
    """ "triton" or "torch", and nothing else: a quiet way round the kernels would make every comparison hold."""
    config = model.config
    if name == "torch":
        return TorchPagedAttention(config.sliding_window)
    from mini_vllm.engine.attention.triton import TritonPagedAttention

    heads = (config.num_attention_heads, config.num_key_value_heads, config.head_dim)
    backend = TritonPagedAttention(*heads, model.dtype, bench.device, config.sliding_window)
    known = [entry["what"] for entry in bench.report.data["skipped"]]
    for what, reason in backend.routed.items():
        if (line := f"our kernel for {what}, {str(model.dtype).removeprefix('torch.')}") not in known:
            bench.report.skip(line, f"routed to torch: {reason}")
    return backend


def num_replays(core: EngineCore) -> int:
    """Steps that were replayed from CUDA graphs since the engine was made."""
    return sum(core.runner.graphs.num_replays.values()) if core.runner.graphs else 0


@dataclass
class Served:
    """One run: seconds, the tokens of each request, each step's work, and the scheduler's own seconds."""

    seconds: float
    tokens: list[list[int]]
    steps: list[StepWork]
    scheduler_s: float
    preemptions: int
    is_complete: bool

    @property
    def num_tokens(self) -> int:
        return sum(map(len, self.tokens))

    def bytes_moved(self, costs: ModelCosts) -> int:
        """Weights and KV that the steps had to read and write, each step's own."""
        return sum(costs.step(work).bytes for work in self.steps)


@dataclass
class _Watch:
    """Stands between loop and scheduler: keeps the plans, and times both calls."""

    scheduler: object
    seconds: float = 0.0
    plans: list[SchedulerOutput] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._schedule, self._update = self.scheduler.schedule, self.scheduler.update_from_output
        self.scheduler.schedule, self.scheduler.update_from_output = self.schedule, self.update_from_output

    def schedule(self) -> SchedulerOutput:
        start = time.perf_counter()
        plan = self._schedule()
        self.seconds += time.perf_counter() - start
        self.plans.append(plan)
        return plan

    def update_from_output(self, plan, output):
        start = time.perf_counter()
        news = self._update(plan, output)
        self.seconds += time.perf_counter() - start
        return news


def serve(bench: Bench, core: EngineCore, workload: Workload, name: str, limit_s: float | None = None) -> Served:
    """All requests at once, greedy, each to its full length. `limit_s`: break off then; the part's end breaks off, too.

    Raises OutOfTimeError only if not a single token came.
    """
    params = [SamplingParams(temperature=0.0, max_tokens=tokens, ignore_eos=True) for _, tokens in workload]
    requests = [
        Request(f"{name}-{i}", list(prompt), each)
        for i, ((prompt, _), each) in enumerate(zip(workload, params, strict=True))
    ]
    tokens: dict[str, list[int]] = {request.request_id: [] for request in requests}
    for request in requests:
        core.add_request(request)
    watch = _Watch(core.loop.scheduler)
    start = time.perf_counter()
    ends = start + min(bench.clock.left(), float("inf") if limit_s is None else limit_s)
    while core.has_unfinished_requests() and time.perf_counter() < ends:
        for news in core.step():
            tokens[news.request_id] += news.new_token_ids
    seconds = time.perf_counter() - start
    is_complete = [len(got) for got in tokens.values()] == [count for _, count in workload]
    if not is_complete:
        core.abort(list(tokens))
        core.reset()
    if not any(tokens.values()):
        raise OutOfTimeError(name)
    prompt_lens = {request.request_id: len(request.prompt_token_ids) for request in requests}
    steps = [work_of(plan, prompt_lens) for plan in watch.plans]
    preemptions = sum(len(plan.preempted_req_ids) for plan in watch.plans)
    return Served(
        seconds,
        list(tokens.values()),
        [work for work in steps if work.new_tokens],
        watch.seconds,
        preemptions,
        is_complete,
    )


def work_of(plan: SchedulerOutput, prompt_lens: dict[str, int]) -> StepWork:
    """What a plan without drafts has to compute."""
    computed = {new.req_id: new.num_computed_tokens for new in plan.scheduled_new_reqs}
    cached = plan.scheduled_cached_reqs
    computed |= dict(zip(cached.req_ids, cached.num_computed_tokens, strict=True))
    prefills, decodes, seen = [], 0, 0
    for req_id, new in plan.num_scheduled_tokens.items():
        old = computed[req_id]
        if new == 1 and old >= prompt_lens[req_id]:
            decodes, seen = decodes + 1, seen + old + 1
        else:
            prefills.append(StepWork.prefill(new, old, old + new >= prompt_lens[req_id]))
    return StepWork.mixed([*prefills, StepWork(0, decodes, seen, seen, decodes, decodes)])


def warm_up(bench: Bench, core: EngineCore) -> None:
    """Every width of a piece, without history and after some: else a kernel would be compiled in mid-run."""
    for new in bench.size((1, 2, 4, 8, 200), (1, 2, 4, 8, 200), (2,)):
        for old in bench.size((0, 1000), (0, 1000), (0,)):
            core.runner.execute(plan_of([(new, old)], core.config.block_size, "warm-up-"))
            core.runner.execute(SchedulerOutput(finished_req_ids=["warm-up-0"]))


def plan_of(pieces: Sequence[tuple[int, int]], block_size: int, name: str = "s", spare: int = 0) -> SchedulerOutput:
    """A plan for the runner alone: each piece is (new tokens, computed before), as if the prefix cache had the latter.

    spare: tokens of each request that are to follow; their blocks are given, too.
    """
    plan, next_block = SchedulerOutput(), 1
    for i, (new, computed) in enumerate(pieces):
        count = -(-(computed + new + spare) // block_size)
        blocks = list(range(next_block, next_block + count))
        next_block += count
        prompt = [(7 * p + i) % 61 for p in range(computed + new)]
        params = SamplingParams(temperature=0.0, ignore_eos=True)
        plan.scheduled_new_reqs.append(NewRequestData(f"{name}{i}", prompt, params, blocks, computed))
        plan.num_scheduled_tokens[f"{name}{i}"] = new
    return plan
