"""Chapter 2's references are the package's own counts and clocks, and the numbers on its page are right. Knows both."""

import math
import random
import re
from dataclasses import replace

import pytest

from mini_vllm.grading.bank import chapter_module
from mini_vllm.grading.overlay import find_answers, source_of
from mini_vllm.grading.reference import ch02 as reference
from mini_vllm.grading.reference import ch02_variants as variants
from mini_vllm.roofline import (
    HardwareSpec,
    ModelCosts,
    StepConstants,
    StepTimeModel,
    StepWork,
    get_hardware,
    get_model,
    gpu_times,
    kv_capacity_tokens,
    roofline_time,
)

from .conftest import notebook

EXERCISES = {exercise.exercise_id: exercise for exercise in chapter_module("ch02").EXERCISES}
BLANK = notebook("exercises", "ch02")
TEXT = "\n".join(source_of(cell) for cell in BLANK["cells"])
MODELS = ("llama-2-7b", "llama-3.1-8b", "qwen3-4b", "smollm2-135m")
A100 = get_hardware("A100-80GB-SXM")
TOY = chapter_module("ch02").TOY
TOY_COSTS = chapter_module("ch02").TOY_COSTS


def unit_costs(costs: ModelCosts) -> dict:
    """What exercises 2 and 3 are given, of a real model."""
    return {
        "layer_bytes": costs.layer_weight_bytes,
        "head_bytes": costs.head_weight_bytes,
        "kv_bytes": costs.kv_bytes_per_token,
        "layer_flop": costs.linear_flops_per_token,
        "head_flop": 2 * costs.embedding_params,
        "pair_flop": costs.attention_flops_per_pair,
    }


def as_dict(name: str) -> dict:
    c = get_model(name)
    return {
        "layers": c.num_hidden_layers,
        "hidden": c.hidden_size,
        "heads": c.num_attention_heads,
        "kv_heads": c.num_key_value_heads,
        "head_dim": c.head_dim,
        "ffn": c.intermediate_size,
        "vocab": c.vocab_size,
        "tied": c.tie_word_embeddings,
    }


def test_intensity_is_the_chapters_and_agrees_with_the_plain_formula():
    for name in MODELS:
        for batch, context in ((1, 1024), (64, 4096)):
            mine = reference.decode_intensity(as_dict(name), context, batch)
            assert mine == ModelCosts(get_model(name)).step(StepWork.decode(batch, context)).intensity
    for seed in range(20):
        for case in EXERCISES["c02-e1"].cases(seed):
            assert variants.intensity_with(*case) == pytest.approx(reference.decode_intensity(*case), rel=1e-12)


@pytest.mark.parametrize("name", MODELS)
def test_largest_batch_is_the_rooflines(name):
    costs = ModelCosts(get_model(name), "float16")
    room = kv_capacity_tokens(costs, A100)
    machine = {"flop_per_s": A100.peak("float16"), "bytes_per_s": A100.bytes_per_s, "kv_tokens": room}
    for context in (700, 3000, 9000):
        for limit_ms in (0.05, 9.0, 31.0):
            batch = reference.largest_batch(limit_ms, context, unit_costs(costs), machine)
            times = [
                roofline_time(costs.step(StepWork.decode(n, context)), A100, "float16").ms
                for n in (batch or 1, batch + 1)
            ]
            assert not batch or (times[0] <= limit_ms and batch * context <= room)
            assert times[1] > limit_ms or (batch + 1) * context > room


def test_no_batch_takes_exactly_the_limit():
    """Else rounding would decide, and two right answers could differ."""
    for seed in range(50):
        for limit_ms, context, costs, machine in EXERCISES["c02-e2"].cases(seed):
            weights = costs["layer_bytes"] + costs["head_bytes"]
            flop = costs["layer_flop"] + costs["head_flop"] + context * costs["pair_flop"]
            for count, per_s, once, each in (
                ("bytes", machine["bytes_per_s"], weights, context * costs["kv_bytes"]),
                ("FLOP", machine["flop_per_s"], 0, flop),
            ):
                assert (limit_ms * per_s // 1000 - once) % each, (count, limit_ms, context, costs, machine)


def test_every_limit_binds_in_some_case():
    answers = {"none": 0, "memory": 0, "arithmetic": 0, "room": 0}
    for case in EXERCISES["c02-e2"].cases(5):
        right = reference.largest_batch(*case)
        answers["none"] += right == 0
        answers["memory"] += variants.batch_with(*case, memory=False) > right
        answers["arithmetic"] += variants.batch_with(*case, arithmetic=False) > right
        answers["room"] += variants.batch_with(*case, room=False) > right
    assert min(answers.values()) >= 1, answers


def test_step_ms_is_the_step_time_model_with_nothing_fitted():
    rng = random.Random(4)
    for name in MODELS:
        costs = ModelCosts(get_model(name), "float16")
        fixed = StepConstants(1.0, 1.0, 0.0, 1.0, 1.0, 0.0, 0.0, 0.0, step_us=1000.0)
        model = StepTimeModel(costs, A100, fixed)
        machine = {"flop_per_s": A100.peak("float16"), "bytes_per_s": A100.bytes_per_s, "fixed_ms": 1.0}
        assert reference.step_ms([], unit_costs(costs), machine) == model.step_ms(StepWork())
        for _ in range(20):
            parts = [(rng.randint(1, 300), rng.randint(0, 4000), rng.random() < 0.5) for _ in range(rng.randint(1, 5))]
            parts.append((1, rng.randint(1, 4000), True))
            work = StepWork.mixed(StepWork.prefill(new, done, samples) for new, done, samples in parts[:-1])
            work = StepWork.mixed([work, StepWork.decode(1, parts[-1][1] + 1)])
            assert reference.step_ms(parts, unit_costs(costs), machine) == pytest.approx(model.step_ms(work), rel=1e-12)


def test_capacity_is_the_packages_and_agrees_with_the_plain_formula():
    for seed in range(20):
        for case in EXERCISES["c02-b1"].cases(seed):
            assert variants.capacity_with(*case) == reference.kv_capacity(*case)


def test_worked_examples():
    """The examples worked by hand, as the page prints them."""
    toy, toy_costs = TOY, TOY_COSTS
    for name, value in (("toy", toy), ("toy_costs", toy_costs)):
        [cell] = [source_of(cell) for cell in BLANK["cells"] if source_of(cell).startswith("from mini_vllm.grading")]
        defined: dict = {}
        exec(cell, defined)
        assert defined[name] == value
    assert unit_costs(reference.model_costs(toy)) == toy_costs
    assert f"{reference.decode_intensity(toy, 10, 1):.3f}" == "1.109" == f"{3264 / 2944:.3f}"
    assert f"{reference.decode_intensity(toy, 10, 4):.3f}" == "3.344" == f"{4 * 3264 / 3904:.3f}"
    slow = {"flop_per_s": 20_000_000, "bytes_per_s": 1_000_000, "kv_tokens": 200}
    changes = ({}, {"kv_tokens": 60}, {"flop_per_s": 4_000_000})
    assert [reference.largest_batch(5, 10, toy_costs, slow | change) for change in changes] == [7, 6, 6]
    assert reference.largest_batch(1, 10, toy_costs, slow) == 0
    balanced = {"flop_per_s": 4_000_000, "bytes_per_s": 1_000_000, "fixed_ms": 1.0}
    assert f"{reference.step_ms([(3, 0, False), (1, 4, True)], toy_costs, balanced):.3f}" == "4.899"
    for flop, read, both in ((2.304, 2.304, "3.258"), (0.176, 0.256, "0.311"), (0.080, 0.320, "0.330")):
        assert f"{math.hypot(flop, read):.3f}" == both and both in TEXT
    for shown in ("= 1.109 (do", ": 3.344.", "The answer is 7.", "Together 4.899"):
        assert shown in TEXT


def test_numbers_of_the_stories():
    llama = ModelCosts(get_model("llama-3.1-8b"))
    unshared = ModelCosts(replace(llama.config, num_key_value_heads=32))
    right, sheet = (
        [f"{costs.step(StepWork.decode(1, context)).intensity:.2f}" for context in (1024, 131_072)]
        for costs in (llama, unshared)
    )
    assert (right, sheet) == (["1.03", "2.60"], ["1.00", "1.00"])
    assert (unshared.kv_bytes_per_token, llama.kv_bytes_per_token) == (524_288, 131_072)
    room = kv_capacity_tokens(llama, A100)
    machine = {"flop_per_s": A100.peak("bfloat16"), "bytes_per_s": A100.bytes_per_s, "kv_tokens": room}
    assert [reference.largest_batch(30, n, unit_costs(llama), machine) for n in (1024, 8192)] == [343, 42]
    crowd = roofline_time(llama.step(StepWork.decode(343, 8192)), A100, "bfloat16")
    assert 6 < crowd.ms / 30 < 7 and 6 < 343 * 8192 / room < 7
    for shown in ("1.00 FLOP per byte", "1.03 and 2.60", "finds that 343", "over six times", "42 is the number"):
        assert shown in TEXT


def test_measured_times_in_the_text_are_those_of_the_package():
    [measured] = [s for s in gpu_times()["layers"]["sets"] if (s["device"], s["model"]) == (A100.name, "llama-2-7b")]
    matrices = {tokens: us for tokens, us, _ in measured["rows"]}
    a_token = matrices[4096] / 4096
    assert (matrices[1], f"{matrices[4096]:,.0f}", f"{a_token:.2f}") == (266, "7,492", "1.83")
    assert f"{128 * a_token:.0f}" == "234" and math.ceil(matrices[128]) == 352
    assert f"{math.hypot(matrices[1], 128 * a_token):.0f}" == "354"
    for shown in ("266 µs for 1 token", "7,492 µs", "alone 234", "**352**", "= 354"):
        assert shown in TEXT


def test_incident_dashboard_and_log():
    rows = re.findall(r"^\| (\S+) \| (\d+) GB \| ([\d,]+) \| ([\d,]+) \| ([\d.]+) \|$", TEXT, re.MULTILINE)
    assert len(rows) == 6
    for name, gigabytes, plan, log, ratio in rows:
        memory = int(gigabytes) * 1_000_000_000
        right = reference.kv_capacity(as_dict(name), memory, 0.92)
        card = HardwareSpec("card", {"bfloat16": 1.0}, 1.0, memory, "")
        assert right == kv_capacity_tokens(ModelCosts(get_model(name)), card, 0.92)
        given = reference.capacity_as_given(as_dict(name), memory, 0.92)
        assert (f"{given:,}", f"{right:,}", f"{right / given:.2f}") == (plan, log, ratio)
        config = " ".join(str(value) for value in as_dict(name).values())
        assert re.search(rf"^{name} +{config.replace(' ', ' +')}$", TEXT, re.MULTILINE)


def test_solution_stands_alone():
    assert not [s for s in find_answers(notebook("solutions", "ch02")).sources.values() if "mini_vllm" in s]
