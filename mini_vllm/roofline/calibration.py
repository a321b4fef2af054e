"""Fits the constants of a step-time model to measured times, and says how well. Knows no scheduler. Chapter 12."""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from importlib.resources import files
from os import PathLike
from pathlib import Path

from mini_vllm.errors import ConfigError
from mini_vllm.models.config import ModelConfig
from mini_vllm.roofline.arguments import require_instance
from mini_vllm.roofline.hardware import HardwareSpec
from mini_vllm.roofline.least_squares import least_squares
from mini_vllm.roofline.observations import Accuracy, Observation, step_observations
from mini_vllm.roofline.samples import StepSample
from mini_vllm.roofline.step_time import StepConstants

# Where a fit begins: round numbers, no claim.
START = StepConstants(
    flop_eff=0.7,
    mem_eff=0.8,
    layer_us=20.0,
    attn_flop_eff=0.5,
    kv_eff=0.8,
    attn_us=5.0,
    seq_us=1.0,
    prefill_us=5.0,
    step_us=1000.0,
)
LAYER_CONSTANTS = ("flop_eff", "mem_eff", "layer_us")
ATTENTION_CONSTANTS = ("attn_flop_eff", "kv_eff", "attn_us", "seq_us", "prefill_us")
# For whole steps of one model: its layer_us, attn_us and step_us are one constant, so only the last is fitted.
STEP_CONSTANTS = ("flop_eff", "mem_eff", "attn_flop_eff", "kv_eff", "seq_us", "step_us")


@dataclass(frozen=True)
class Calibration:
    """Constants, and where they are from.

    fitted: those that were fitted; the others are the start's. accuracy: on the data of the fit itself, so a lower
    bound on the error elsewhere. about: device, date, versions, sources, whatever the one who fitted wants known.
    """

    constants: StepConstants
    fitted: tuple[str, ...]
    accuracy: Accuracy
    about: Mapping[str, str]

    def save(self, path: str | PathLike) -> None:
        """Write it as JSON."""
        Path(path).write_text(json.dumps(asdict(self), indent=1) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, path: str | PathLike) -> "Calibration":
        """Read what `save` wrote. Raises ConfigError that names the file and what is wrong in it."""
        return cls._from_json(Path(path).read_bytes(), str(path))

    @classmethod
    def _from_json(cls, text: str | bytes, source: str) -> "Calibration":
        try:
            stored = json.loads(text)
            return cls(
                StepConstants.from_dict(stored["constants"]),
                tuple(stored["fitted"]),
                Accuracy(**stored["accuracy"]),
                stored["about"],
            )
        except (ValueError, TypeError, KeyError, ConfigError) as error:
            raise ConfigError(f"{source} is no calibration: {error!r}; write one with Calibration.save()") from error


def fit(observations: Sequence[Observation], free: Sequence[str], start: StepConstants = START) -> StepConstants:
    """The constants with the smallest sum of squared log errors; those not in `free` stay as in `start`.

    Logarithms on both sides: half as long and twice as long are equally wrong, a short step counts as much as a long
    one, and no constant turns negative. Efficiencies stay between 0.0001 and 1.
    Raises ConfigError for an unknown constant or fewer observations than constants.
    """
    unknown = sorted(set(free) - set(asdict(start)))
    if unknown or not free:
        raise ConfigError(f"free={list(free)} must name constants, among {', '.join(asdict(start))}")
    if len(observations) < len(free):
        raise ConfigError(
            f"{len(observations)} observations cannot fit {len(free)} constants ({', '.join(free)}); measure more "
            "steps or free fewer constants"
        )

    def constants(x: list[float]) -> StepConstants:
        return replace(start, **{name: math.exp(value) for name, value in zip(free, x, strict=True)})

    def residuals(x: list[float]) -> list[float]:
        here = constants(x)
        return [math.log(o.predict(here) / o.measured) for o in observations]

    first = [math.log(max(getattr(start, name), 1e-3)) for name in free]
    limits = [(1e-4, 1.0) if name.endswith("_eff") else (1e-3, 1e9) for name in free]
    lower, upper = zip(*(map(math.log, pair) for pair in limits), strict=True)
    return constants(least_squares(residuals, first, lower, upper))


def leave_one_out(
    groups: Mapping[str, Sequence[Observation]], free: Sequence[str], start: StepConstants = START
) -> dict[str, tuple[StepConstants, Accuracy]]:
    """For each group: constants fitted on all the others, and their accuracy on this one, which the fit never saw."""
    if len(groups) < 2:
        raise ConfigError(f"{len(groups)} group cannot be left out of itself; give at least 2")
    found = {}
    for held_out, observations in groups.items():
        others = [o for name, group in groups.items() if name != held_out for o in group]
        constants = fit(others, free, start)
        found[held_out] = (constants, Accuracy.of(observations, constants))
    return found


def calibrate(
    samples: Iterable[StepSample],
    *,
    free: Sequence[str] = STEP_CONSTANTS,
    start: StepConstants | None = None,
    hardware: Mapping[str, HardwareSpec] | None = None,
    models: Mapping[str, ModelConfig] | None = None,
    about: Mapping[str, str] | None = None,
) -> Calibration:
    """Fit to measured steps. start: by default the constants that come with this package (`gpu_constants`).

    hardware, models: see `step_observations`; a measured machine is given as {"its name": probe().spec}.
    """
    start = gpu_constants() if start is None else start
    require_instance(start, StepConstants, "start")
    observations = step_observations(samples, hardware, models)
    constants = fit(observations, free, start)
    return Calibration(constants, tuple(free), Accuracy.of(observations, constants), dict(about or {}))


@cache
def gpu_constants() -> StepConstants:
    """Constants of vLLM-like serving on NVIDIA GPUs, fitted to `gpu_times()` by benchmarks/step_time.py.

    Good for shapes and rough sizes. For a server of your own calibrate on its steps: the fixed times depend on its
    CPU and its software, and no data sheet has them.
    """
    text = (files("mini_vllm.roofline") / "data" / "gpu_constants.json").read_text(encoding="utf-8")
    return Calibration._from_json(text, "gpu_constants.json").constants
