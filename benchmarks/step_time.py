"""How far the step-time model is off, on cards and steps that the fit never saw.

    python benchmarks/step_time.py [--engine] [--json FILE] [--write-constants]

1. Measured layer times of three GPUs: constants chosen on two, error reported on the third, all three ways.
2. A fourth set, another model on a card that was left out, and published step times: limits of the model, not a target.
3. --engine: steps of our CPU engine, calibrated on one run and judged on another (about two minutes, needs the model).
--write-constants stores the constants that `gpu_constants()` returns, fitted to all of these GPU times.
"""

import argparse
import json
import os
import platform
import random
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from datetime import date
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from mini_vllm.roofline import (
    Accuracy,
    Calibration,
    ModelCosts,
    Observation,
    StepConstants,
    StepSample,
    StepWork,
    calibrate,
    fit,
    get_hardware,
    get_model,
    gpu_times,
    leave_one_out,
    probe,
    roofline_time,
    samples_from_trace,
)
from mini_vllm.roofline.calibration import ATTENTION_CONSTANTS, LAYER_CONSTANTS, START
from mini_vllm.roofline.observations import attention_observations, layer_observations, step_observations

HERE = Path(__file__).resolve().parent
CONSTANTS = HERE.parent / "mini_vllm" / "roofline" / "data" / "gpu_constants.json"
MEAN_TARGET, WORST_TARGET = 0.07, 0.11  # of the three ways; stretch 5 and 8 %


def naive_error(layers: dict) -> float:
    """Mean absolute error of max(bytes / bandwidth, FLOPs / peak) on one set of layer times."""
    costs = ModelCosts(replace(get_model(layers["model"]), num_hidden_layers=1), layers["dtype"])
    card = get_hardware(layers["device"])

    def one(tokens: int, matrices: float, small: float) -> Observation:
        # A step that samples nothing and whose queries look at themselves alone: the layer, and next to no attention.
        cost = costs.step(StepWork(tokens, 0, tokens, tokens, 1, 0))
        us = 1e3 * roofline_time(cost, card, costs.dtype).ms
        return Observation(f"{tokens} tokens", matrices + small, lambda _: us)

    return Accuracy.of([one(*row) for row in layers["rows"]], START).mape


def show_constants(constants: StepConstants, names: Sequence[str]) -> str:
    return ", ".join(f"{name} {getattr(constants, name):.3g}" for name in names)


def three_ways(sets: list[dict]) -> dict:
    groups = {s["device"]: layer_observations(s) for s in sets}
    rows = []
    print("Layer times without attention, Llama-2-7B, 1 to 4,096 tokens. Fitted on two cards, reported on the third:")
    print(f"  {'held out':15} {'naive roofline':>14} {'model':>7}   worst point")
    for layers, (card, (constants, accuracy)) in zip(sets, leave_one_out(groups, LAYER_CONSTANTS).items(), strict=True):
        naive = naive_error(layers)
        print(
            f"  {card:15} {naive:14.1%} {accuracy.mape:7.1%}   {accuracy.worst:+.1%} at {accuracy.worst_label}"
            f"   ({show_constants(constants, LAYER_CONSTANTS)})"
        )
        rows.append({"held_out": card, "naive_mape": naive, **asdict(accuracy), "constants": asdict(constants)})
    mean, worst = sum(row["mape"] for row in rows) / len(rows), max(row["mape"] for row in rows)
    verdict = "reached" if mean <= MEAN_TARGET and worst <= WORST_TARGET else "NOT REACHED"
    print(
        f"  mean of the sets {mean:.1%} (target {MEAN_TARGET:.0%}), worst {worst:.1%} ({WORST_TARGET:.0%}): {verdict}"
    )
    return {"sets": rows, "mean_of_sets": mean, "worst_set": worst, "target_reached": verdict == "reached"}


def limits(sets: list[dict], others: list[dict]) -> list[dict]:
    """Sets of another model: constants from Llama-2-7B, without the card in question."""
    found = []
    for layers in others:
        seen = [o for s in sets if s["device"] != layers["device"] for o in layer_observations(s)]
        accuracy = Accuracy.of(layer_observations(layers), fit(seen, LAYER_CONSTANTS))
        what = f"{layers['model']} on {layers['device']}, both unseen"
        print(f"  {what}: {accuracy.mape:.1%}, worst {accuracy.worst:+.1%} at {accuracy.worst_label}")
        found.append({"what": what, **asdict(accuracy)})
    return found


def attention_points(times: dict) -> dict:
    """One card only, so no card can be left out; but a point can."""
    points = [o for s in times["attention"]["sets"] for o in attention_observations(s)]
    fitted = fit(points, ATTENTION_CONSTANTS)
    alone = leave_one_out({o.label: [o] for o in points}, ATTENTION_CONSTANTS)
    accuracy, left_out = Accuracy.of(points, fitted), {label: found.worst for label, (_, found) in alone.items()}
    mape, worst = sum(map(abs, left_out.values())) / len(points), max(left_out, key=lambda key: abs(left_out[key]))
    print(f"\nAttention on one card, {len(points)} points, {show_constants(fitted, ATTENTION_CONSTANTS)}:")
    print(f"  fitted to all of them {accuracy.mape:.1%}; each from the others {mape:.1%}")
    print(f"  worst of those left out {left_out[worst]:+.1%} at {worst}")
    return {"fitted_to_all": asdict(accuracy), "left_out_mape": mape, "left_out": left_out}


def all_constants(times: dict) -> tuple[StepConstants, list[Observation]]:
    """Layers, then attention, then the fixed time of a step: each from the measurement that shows it."""
    layers = [o for s in times["layers"]["sets"] for o in layer_observations(s)]
    attention = [o for s in times["attention"]["sets"] for o in attention_observations(s)]
    steps = step_observations(map(StepSample.from_dict, times["steps"]["rows"]))
    first_card = [o for o, row in zip(steps, times["steps"]["rows"], strict=True) if row["device"].startswith("A100")]
    constants = fit(attention, ATTENTION_CONSTANTS, fit(layers, LAYER_CONSTANTS))
    return fit(first_card, ("step_us",), constants), [*layers, *attention, *first_card]


def published_steps(times: dict, constants: StepConstants) -> list[dict]:
    """step_us is fitted to the A100's rows; the other card is a test of everything at once."""
    rows = []
    for row in times["steps"]["rows"]:
        (observation,) = step_observations([StepSample.from_dict(row)])
        predicted = observation.predict(constants)
        error = observation.error(constants)
        print(f"  {observation.label}: published {row['t_ms']} ms, model {predicted:.1f} ms ({error:+.0%})")
        rows.append({"what": observation.label, "published_ms": row["t_ms"], "model_ms": predicted})
    return rows


def run_engine(seed: int, machine: str) -> list[StepSample]:
    """Steps of our CPU engine on random prompts, at batch sizes 1, 4, 8 and 32."""
    from mini_vllm import LLM, SamplingParams

    rng = random.Random(seed)
    samples = []
    for seqs in (1, 4, 8, 32):
        llm = LLM("smollm2-135m", dtype="bfloat16", max_num_seqs=seqs, num_gpu_blocks=1024)
        prompts = [[rng.randrange(100, 40_000) for _ in range(rng.randint(16, 256))] for _ in range(max(seqs, 2))]
        params = [SamplingParams(max_tokens=rng.randint(8, 48), ignore_eos=True) for _ in prompts]
        llm.generate(prompts, params, progress=False)
        samples += samples_from_trace(llm.trace, machine, "bfloat16", "smollm2-135m")
        print(f"  seed {seed}, {seqs} sequences: {len(samples)} steps so far", flush=True)
    return samples


def engine() -> dict:
    print("Our CPU engine, SmolLM2-135M in bfloat16:")
    load, cores = os.getloadavg()[0], os.cpu_count() or 1
    if load > cores / 2:
        print(f"  load average {load:.1f} on {cores} cores: others are working, the times below mean little")
    measured = probe("cpu", "bfloat16")
    machine, hardware = measured.device, {measured.device: measured.spec}
    calibration = calibrate(run_engine(1, machine), hardware=hardware)
    unseen = step_observations(run_engine(2, machine), hardware)
    accuracy = Accuracy.of(unseen, calibration.constants)
    total = sum(o.predict(calibration.constants) for o in unseen) / sum(o.measured for o in unseen) - 1
    print(f"  {show_constants(calibration.constants, calibration.fitted)}")
    print(f"  on the run of the fit {calibration.accuracy.mape:.1%} a step")
    print(f"  on another run {accuracy.mape:.1%} a step, worst {accuracy.worst:+.0%}; its steps together {total:+.1%}")
    return {
        "seeds": {"fit": 1, "another_run": 2},
        "load_average_before": load,
        "cores": cores,
        "machine": measured.to_dict(),
        "constants": asdict(calibration.constants),
        "fitted": calibration.fitted,
        "on_the_fit": asdict(calibration.accuracy),
        "on_another_run": {**asdict(accuracy), "total_error": total},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="How far the step-time model is off.")
    parser.add_argument("--engine", action="store_true", help="also calibrate on our CPU engine, about two minutes")
    parser.add_argument("--write-constants", action="store_true", help=f"store {CONSTANTS.name} in the package")
    parser.add_argument("--json", type=Path, default=HERE / "results" / "step_time.json")
    options = parser.parse_args()
    times = gpu_times()
    sets = [s for s in times["layers"]["sets"] if s["model"] == "llama-2-7b"]
    result = {"what": "relative errors of the step-time model", "python": platform.python_version()}
    result |= {"date": date.today().isoformat(), "layers": three_ways(sets)}
    result["attention"] = attention_points(times)
    print("\nLimits: where the same constants lead elsewhere")
    result["limits"] = limits(sets, [s for s in times["layers"]["sets"] if s not in sets])
    constants, observations = all_constants(times)
    result["published_steps"] = published_steps(times, constants)
    print("\nConstants from all GPU times:", show_constants(constants, list(asdict(constants))))
    result["constants"] = asdict(constants)
    if options.write_constants:
        about = {
            "layers": "flop_eff, mem_eff, layer_us: all four sets of layer times",
            "attention": f"{', '.join(ATTENTION_CONSTANTS)}: attention on an A100",
            "steps": "step_us: published step times of Qwen3-0.6B on an A100, the others held",
            "data": "gpu_times.json, with sources and licences",
        }
        fitted = tuple(asdict(constants))
        Calibration(constants, fitted, Accuracy.of(observations, constants), about).save(CONSTANTS)
        print(f"written: {CONSTANTS}")
    if options.engine:
        print()
        result["engine"] = engine()
    options.json.parent.mkdir(exist_ok=True)
    options.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(f"written: {options.json}")


if __name__ == "__main__":
    main()
