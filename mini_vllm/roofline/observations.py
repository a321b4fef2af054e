"""Measured times, each with what the model says of the same thing: the food of a fit. Knows no fitting. Chapter 12."""

import json
import statistics
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from importlib.resources import files
from typing import Any

from mini_vllm.errors import ConfigError
from mini_vllm.models.config import ModelConfig
from mini_vllm.roofline.arguments import require_instance
from mini_vllm.roofline.costs import ModelCosts
from mini_vllm.roofline.hardware import HardwareSpec, get_hardware
from mini_vllm.roofline.known_models import get_model
from mini_vllm.roofline.samples import StepSample
from mini_vllm.roofline.step_time import StepConstants, StepTimeModel
from mini_vllm.roofline.step_work import StepWork


@dataclass(frozen=True)
class Observation:
    """label: for messages. measured: a time. predict: constants -> the same time, in the same unit."""

    label: str
    measured: float
    predict: Callable[[StepConstants], float]

    def error(self, constants: StepConstants) -> float:
        """Relative error of the prediction: 0.1 is 10 % too slow."""
        return self.predict(constants) / self.measured - 1


@dataclass(frozen=True)
class Accuracy:
    """How far predictions are off. mape: mean of the absolute relative errors. worst: the largest, with its sign."""

    mape: float
    worst: float
    worst_label: str
    count: int

    @classmethod
    def of(cls, observations: Iterable[Observation], constants: StepConstants) -> "Accuracy":
        rows = [(o.error(constants), o.label) for o in observations]
        if not rows:
            raise ConfigError("there are no observations; give at least one measured time")
        worst, label = max(rows, key=lambda row: abs(row[0]))
        return cls(statistics.fmean(abs(error) for error, _ in rows), worst, label, len(rows))


def gpu_times() -> dict[str, Any]:
    """The measured GPU times that come with this package, with sources and licences: layers, attention, steps."""
    return json.loads((files("mini_vllm.roofline") / "data" / "gpu_times.json").read_text(encoding="utf-8"))


def layer_observations(layers: Mapping[str, Any]) -> list[Observation]:
    """Microseconds of one layer without attention; `layers` is one of `gpu_times()["layers"]["sets"]`."""
    model_of = _one_layer_model(layers)
    label = f"{layers['device']} {layers['model']}"

    def observation(tokens: int, measured: float) -> Observation:
        return Observation(f"{label}, {tokens:,} tokens", measured, lambda c: model_of(c).layer_us(tokens))

    return [observation(tokens, matrices + small) for tokens, matrices, small in layers["rows"]]


def attention_observations(attention: Mapping[str, Any]) -> list[Observation]:
    """Microseconds of one layer's attention; `attention` is one of `gpu_times()["attention"]["sets"]`."""
    model_of = _one_layer_model(attention)
    label = f"{attention['device']} {attention['model']} attention"

    def observation(sequences: int, new: int, context: int, measured: float) -> Observation:
        one = StepWork.decode(1, context) if new == 1 else StepWork.prefill(new, context - new)
        work = StepWork.mixed([one] * sequences)
        what = f"{label}, {sequences} × {new} of {context}"
        return Observation(what, measured, lambda c: model_of(c).attention_us(work))

    return [observation(*row) for row in attention["rows"]]


def _one_layer_model(measured: Mapping[str, Any]) -> Callable[[StepConstants], StepTimeModel]:
    """One layer alone: cards were timed with layers of models that do not fit them."""
    config = replace(get_model(measured["model"]), num_hidden_layers=1)
    return _model_of(ModelCosts(config, measured["dtype"]), get_hardware(measured["device"]))


def _model_of(costs: ModelCosts, hardware: HardwareSpec) -> Callable[[StepConstants], StepTimeModel]:
    """constants -> model. A fit asks for one set of constants many times in a row, so the latest model is kept."""
    return lru_cache(maxsize=1)(lambda constants: StepTimeModel(costs, hardware, constants))


def step_observations(
    samples: Iterable[StepSample],
    hardware: Mapping[str, HardwareSpec] | None = None,
    models: Mapping[str, ModelConfig] | None = None,
) -> list[Observation]:
    """Milliseconds of whole steps. hardware, models: what the samples' names mean, where they are not known ones.

    Raises ConfigError for a name that is in neither.
    """
    model_of: dict[tuple[str, str, str], Callable[[StepConstants], StepTimeModel]] = {}

    def observation(sample: StepSample) -> Observation:
        require_instance(sample, StepSample, "sample")
        key = (sample.device, sample.model, sample.dtype)
        if key not in model_of:
            spec = (hardware or {}).get(sample.device) or get_hardware(sample.device)
            config = (models or {}).get(sample.model) or get_model(sample.model)
            model_of[key] = _model_of(ModelCosts(config, sample.dtype), spec)
        model, work = model_of[key], sample.work
        label = f"{sample.device} {sample.model}, {work.n_prefill} + {work.n_decode} tokens, {work.kv_tokens:,} of KV"
        return Observation(label, sample.t_ms, lambda c: model(c).step_ms(work))

    return [observation(sample) for sample in samples]
