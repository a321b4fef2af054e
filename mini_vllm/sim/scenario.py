"""A server and its users, described in words and numbers: everything that a simulation needs. Runs one. Chapter 12.

    Scenario(model="llama-2-7b", hardware="A100-80GB-SXM", workload="azure-conversation", rate=2.0).measure()

It is plain data, so it can be changed (`scenario.changed(rate=4)`), sent to another process and written into a file.
"""

import difflib
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from mini_vllm.config import SchedulerConfig
from mini_vllm.errors import ConfigError
from mini_vllm.roofline.arguments import require_instance, require_whole
from mini_vllm.roofline.bounds import kv_capacity_tokens
from mini_vllm.roofline.calibration import Calibration, gpu_constants
from mini_vllm.roofline.costs import ModelCosts
from mini_vllm.roofline.hardware import get_hardware
from mini_vllm.roofline.known_models import get_model
from mini_vllm.roofline.step_time import StepTimeModel
from mini_vllm.sim.arrivals import ArrivalProcess, AtOnce, Bursty, Gamma, Poisson, Regular
from mini_vllm.sim.clock import ModelClock
from mini_vllm.sim.closed_workloads import ClosedLoop
from mini_vllm.sim.lengths import Fitted, Independent, Lengths, Lognormal
from mini_vllm.sim.metrics import SLO, Metrics, summarize
from mini_vllm.sim.result import SimResult
from mini_vllm.sim.simulator import Simulator
from mini_vllm.sim.systems import get_system
from mini_vllm.sim.trace_files import TraceWorkload, load_trace
from mini_vllm.sim.workloads import Startable, Workload

ARRIVALS = ("poisson", "gamma", "bursty", "regular", "at-once", "recorded", "closed")
RANDOM = "random"
# vllm serve on cards of less than 70 GiB and on the A100 (0.33.0); more requests and larger steps on larger ones.
SERVER_DEFAULTS = {"max_num_seqs": 256, "max_num_batched_tokens": 2048, "block_size": 16}
LIMITS = tuple(f.name for f in fields(SchedulerConfig))


@dataclass(frozen=True)
class Scenario:
    """One model on one card under one load.

    model, hardware, dtype: names of `roofline`; dtype is that of weights and KV.
    system: a way to serve, of `systems.SYSTEMS`.
    workload: a sample or a file with a trace (`trace_files`), or "random": lengths from `prompt_mean`, `prompt_cv`,
        `output_mean`, `output_cv`. Requests longer than max_model_len are shortened to it.
    arrivals: "poisson", "gamma" (with `cv`), "bursty" (`cv` is its peak rate over the mean), "regular", "at-once",
        "closed" (`users` users who wait for their answers), or "recorded": as in the trace, stretched to `rate` if it
        is given.
    num_requests, seed: how many, and which of the many random workloads of this kind.
    utilization: share of the card's memory that weights and KV cache may fill. limits: fields of `SchedulerConfig` that
        are chosen by hand; num_gpu_blocks follows from the memory if it is not.
    calibration: file of step-time constants (`roofline.Calibration`); without one those of vLLM-like servers.
    warmup_s, until_s: see `Simulator.run`.
    """

    model: str = "llama-2-7b"
    hardware: str = "A100-80GB-SXM"
    dtype: str = "float16"
    system: str = "vllm"
    workload: str = "azure-conversation"
    rate: float | None = 2.0
    arrivals: str = "poisson"
    cv: float = 2.0
    users: int = 32
    prompt_mean: float = 512
    prompt_cv: float = 1.0
    output_mean: float = 128
    output_cv: float = 1.0
    num_requests: int = 1000
    seed: int = 0
    utilization: float = 0.92
    limits: Mapping[str, Any] = field(default_factory=dict)
    calibration: str | None = None
    warmup_s: float = 0.0
    until_s: float = math.inf
    slo: SLO | None = None

    def __post_init__(self) -> None:
        if self.arrivals not in ARRIVALS:
            raise ConfigError(f"arrivals={self.arrivals!r} is not one of {', '.join(ARRIVALS)}")
        if self.slo is not None:
            require_instance(self.slo, SLO, "slo")
        require_instance(self.limits, Mapping, "limits")
        if unknown := [name for name in self.limits if name not in LIMITS]:
            raise ConfigError(f"limits name {unknown[0]!r}; a SchedulerConfig has {', '.join(LIMITS)}")

    def changed(self, **changes: Any) -> "Scenario":
        """This scenario with other values, of its own fields or of `SchedulerConfig`'s, which go into `limits`."""
        own = {f.name for f in fields(self)}
        mine = {name: value for name, value in changes.items() if name in own}
        limits = {name: value for name, value in changes.items() if name not in own}
        for name in limits:
            if name not in LIMITS:
                near = difflib.get_close_matches(name, [*own, *LIMITS], n=1)
                hint = f"; did you mean {near[0]!r}?" if near else ""
                raise ConfigError(f"a scenario has no {name!r}, and neither has SchedulerConfig{hint}")
        base = replace(self, **mine)
        return replace(base, limits={**base.limits, **limits}) if limits else base

    def step_time(self) -> StepTimeModel:
        """How long steps take. Raises ConfigError if the model does not fit the card."""
        constants = Calibration.load(self.calibration).constants if self.calibration else gpu_constants()
        return StepTimeModel(self._costs(), get_hardware(self.hardware), constants)

    def _costs(self) -> ModelCosts:
        return ModelCosts(get_model(self.model), self.dtype)

    def config(self) -> SchedulerConfig:
        """The scheduler's limits: chosen ones, the system's, and what the card holds."""
        known = {"max_model_len": get_model(self.model).max_position_embeddings, **SERVER_DEFAULTS, **self.limits}
        if "num_gpu_blocks" not in known:
            require_whole(known["block_size"], "block_size", least=1)
            tokens = kv_capacity_tokens(self._costs(), get_hardware(self.hardware), self.utilization)
            known["num_gpu_blocks"] = tokens // known["block_size"]
            if not known["num_gpu_blocks"]:
                raise ConfigError(
                    f"{self.hardware} has room for {tokens} tokens of KV beside {self.model}, less than a block of "
                    f"{known['block_size']}: take a larger card, a smaller model or a smaller block_size"
                )
        base = SchedulerConfig(**{name: value for name, value in known.items() if name in _NUMBERS})
        return get_system(self.system).configure(base, **self.limits)

    def requests(self) -> Startable:
        """The workload."""
        most_tokens = self.config().max_model_len
        trace = None if self.workload == RANDOM else load_trace(self.workload).fitted(most_tokens)
        if self.arrivals == "recorded":
            return self._recorded(trace)
        lengths: Lengths
        if trace is not None:
            lengths = trace.lengths
        else:
            prompt, output = Lognormal(self.prompt_mean, self.prompt_cv), Lognormal(self.output_mean, self.output_cv)
            lengths = Fitted(Independent(prompt, output), most_tokens)
        if self.arrivals == "closed":
            return ClosedLoop(self.users, lengths, self.num_requests, seed=self.seed)
        return Workload(self._arrival_process(), lengths, self.num_requests, self.seed)

    def _recorded(self, trace: TraceWorkload | None) -> TraceWorkload:
        if trace is None:
            raise ConfigError('arrivals="recorded" needs a trace as workload; "random" has no times of its own')
        if not trace.has_times:
            raise ConfigError(f'arrivals="recorded": {trace.name} has lengths but no times; choose e.g. "poisson"')
        first = trace.first(self.num_requests)
        return first if self.rate is None else first.at_rate(self.rate)

    def _arrival_process(self) -> ArrivalProcess:
        if self.arrivals == "at-once":
            return AtOnce()
        if self.rate is None:
            raise ConfigError(f"arrivals={self.arrivals!r} need a rate in requests per second")
        if self.arrivals == "gamma":
            return Gamma(self.rate, self.cv)
        if self.arrivals == "bursty":
            return Bursty(self.rate, peak=self.cv)
        return Poisson(self.rate) if self.arrivals == "poisson" else Regular(self.rate)

    def simulator(self, **options: Any) -> Simulator:
        """options: as of `Simulator`."""
        return get_system(self.system).simulator(self.config(), ModelClock(self.step_time()), **options)

    def run(self, **options: Any) -> SimResult:
        """Simulate it. options: as of `Simulator.run`."""
        return self.simulator().run(self.requests(), warmup_s=self.warmup_s, until_s=self.until_s, **options)

    def measure(self, **changes: Any) -> Metrics:
        """Simulate it, with some values changed, and sum it up."""
        scenario = self.changed(**changes)
        return summarize(scenario.run(), scenario.slo)


# What a first configuration needs before a system has its say; the rest may contradict it until then.
_NUMBERS = ("max_num_seqs", "max_num_batched_tokens", "max_model_len", "num_gpu_blocks", "block_size")
