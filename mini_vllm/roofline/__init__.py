"""Predict a step before you run it: costs, hardware, bounds, step times. Needs only the standard library. Chapter 2.

probe() alone needs torch, and imports it when called.
"""

from mini_vllm.roofline.bounds import RooflineTime, compute_bound_prompt, kv_capacity_tokens, roofline_time
from mini_vllm.roofline.calibration import Calibration, calibrate, fit, gpu_constants, leave_one_out
from mini_vllm.roofline.costs import ModelCosts, StepCost
from mini_vllm.roofline.eviction import recompute_ms, swap_copies, swap_ms
from mini_vllm.roofline.hardware import HardwareSpec, get_hardware, known_hardware
from mini_vllm.roofline.known_models import get_model, known_models
from mini_vllm.roofline.observations import Accuracy, Observation, gpu_times
from mini_vllm.roofline.probe import ProbeResult, probe
from mini_vllm.roofline.samples import StepSample, read_samples, samples_from_trace, write_samples
from mini_vllm.roofline.step_time import StepConstants, StepTimeModel
from mini_vllm.roofline.step_work import StepWork

__all__ = [
    "Accuracy",
    "Calibration",
    "HardwareSpec",
    "ModelCosts",
    "Observation",
    "ProbeResult",
    "RooflineTime",
    "StepConstants",
    "StepCost",
    "StepSample",
    "StepTimeModel",
    "StepWork",
    "calibrate",
    "compute_bound_prompt",
    "fit",
    "get_hardware",
    "get_model",
    "gpu_constants",
    "gpu_times",
    "known_hardware",
    "known_models",
    "kv_capacity_tokens",
    "leave_one_out",
    "probe",
    "read_samples",
    "recompute_ms",
    "roofline_time",
    "samples_from_trace",
    "swap_copies",
    "swap_ms",
    "write_samples",
]
