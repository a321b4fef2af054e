"""A kernel against its oracle: shapes, dtypes, values. Needs torch and numpy."""

import json
import sys

import numpy as np
import pytest

from mini_vllm.grading import check, feedback
from mini_vllm.grading.calling import call_once
from mini_vllm.grading.exercise import NUM_CASES, Exercise
from mini_vllm.grading.tensors import as_data, random_tensor, rounded, run_kernel, same_tensor, same_tensors

torch = pytest.importorskip("torch")


def softmax(scores):
    return torch.softmax(scores, dim=-1)


SOFTMAX = Exercise(
    exercise_id="c99-e2", title="Softmax", kind="code", function="softmax", stars=2, points=15, minutes=15,
    needs="chapter 13", hints=("a", "b", "c"), compare=same_tensor(), call=run_kernel, packages=("torch",),
    draw_cases=lambda rng: [[[rng.randint(1, 3), rng.randint(1, 4)], i] for i in range(NUM_CASES)],
    prepare=lambda case: (random_tensor(case[0], "float32", case[1]),),
)  # fmt: skip


def complaint(fn, case=([2, 3], 7)):
    """As the grader does it: called here, judged from JSON."""
    outcome = json.loads(json.dumps(call_once(SOFTMAX, fn, list(case))))
    return (
        outcome.get("error")
        or outcome.get("refused")
        or same_tensor()(case, outcome["value"], softmax(*SOFTMAX.arguments(case)))
    )


def test_another_algorithm_is_right():
    def online(scores):
        exps = torch.exp(scores - scores.max(dim=-1, keepdim=True).values)
        return exps / exps.sum(dim=-1, keepdim=True)

    assert complaint(online) is None
    assert complaint(lambda s: online(s).numpy()) is None
    assert complaint(lambda s: online(s.double()).float()) is None
    assert complaint(lambda s: online(s).requires_grad_()) is None


@pytest.mark.parametrize(
    ("fn", "says"),
    [
        (lambda s: softmax(s).T, "expected a tensor of shape (2, 3) and dtype float32, got shape (3, 2)"),
        (lambda s: softmax(s).double(), "the shape is right, the dtype is not: expected float32, got float64"),
        (lambda s: softmax(s).tolist(), "expected a tensor of shape (2, 3) and dtype float32, got the list"),
        (lambda s: None, "got None: is a return missing?"),
        (lambda s: torch.softmax(s, dim=0), "of 6 values differ by more than 1e-05; the first at [0, 0]: expected"),
        (lambda s: softmax(s) * (1 + 1e-3), "the largest difference is"),
        (lambda s: s / (s - s), "6 of 6 values differ"),
        (lambda s: torch.full_like(s, float("nan")), "nan first at [0, 0]: inf - inf, 0 / 0, or a row in which"),
        (lambda s: softmax(s).to_sparse(), "Error"),
    ],
)
def test_what_is_wrong_is_named(fn, says):
    assert says in complaint(fn)


def test_a_tensor_of_the_learner_s_own_class_does_not_pass():
    class Yes(torch.Tensor):
        def __eq__(self, other):
            return True

    assert "an object of type Yes" in complaint(lambda s: softmax(s).as_subclass(Yes))


def test_the_place_of_the_first_wrong_value():
    right = torch.zeros(2, 3, 4)
    wrong = right.clone()
    wrong[1, 2, 3] = 1
    assert "1 of 24 values differ by more than 1e-05; the first at [1, 2, 3]: expected 0, got 1" in same_tensor()(
        [], as_data(wrong), right
    )


def test_infinities_are_right_only_where_the_oracle_has_them():
    right = torch.tensor([float("-inf"), 0.0])
    assert same_tensor()([], as_data(right), right) is None
    assert same_tensor()([], as_data(-right), right)
    assert same_tensor()([], as_data(torch.tensor([-1e30, 0.0])), right)
    assert same_tensor()([], as_data(torch.tensor([float("nan"), 0.0])), right)
    nan = torch.tensor([float("nan")])
    assert same_tensor()([], as_data(nan), nan), "NaN is never right, not even as in the oracle"


@pytest.mark.parametrize(
    ("dtype", "error", "passes"), [("float32", 1e-4, False), ("float16", 1e-3, True), ("bfloat16", 1e-2, True)]
)
def test_the_tolerance_is_that_of_the_dtype(dtype, error, passes):
    right = random_tensor([8], dtype, 3)
    other = (right.double() + error).to(right.dtype)
    assert (same_tensor()([], as_data(other), right) is None) == passes
    assert same_tensor(tolerance=0.1)([], as_data(other), right) is None


def test_integers_are_compared_exactly():
    assert same_tensor()([], as_data(torch.tensor([1, 2])), torch.tensor([1, 2])) is None
    assert same_tensor()([], as_data(torch.tensor([1, 3])), torch.tensor([1, 2]))
    assert "dtype" in same_tensor()([], as_data(torch.tensor([1.0, 2.0])), torch.tensor([1, 2]))


def test_several_outputs_are_named():
    out, lse = torch.ones(2, 2), torch.zeros(2)
    compare = same_tensors("out", "lse")
    assert compare([], run_kernel(lambda: (out, lse)), (out, lse)) is None
    assert compare([], run_kernel(lambda: [out, lse + 1]), (out, lse)).startswith("lse: 2 of 2 values differ")
    assert "expected 2 tensors (out, lse)" in compare([], run_kernel(lambda: out), (out, lse))


def test_the_essence_of_two_algorithms_is_the_same():
    scores = random_tensor([2, 3], "float32", 1)
    assert rounded([], softmax(scores)) == rounded([], as_data(softmax(scores) + 1e-6))
    assert as_data(np.array([[True]])) == {"shape": [1, 1], "dtype": "bool", "values": [True]}


def test_random_tensors_are_the_same_for_a_seed():
    assert torch.equal(random_tensor([3], "float32", 5), random_tensor([3], "float32", 5))
    assert random_tensor([3], "float64", 5)[0].item() == pytest.approx(random_tensor([3], "float32", 5)[0].item())


def test_c13_without_the_package_it_is_skipped_and_never_passed(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(feedback, "find_exercise", lambda exercise_id: SOFTMAX)
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.setattr(Exercise, "missing_packages", ["torch"])
    check("c99-e2", softmax)
    assert capsys.readouterr().out.startswith("c99-e2 – skipped, not passed: it needs torch, not installed here")
    monkeypatch.setenv(feedback.GRADED_FOLDER, str(tmp_path))
    (tmp_path / "cases.json").write_text(json.dumps({"cases": {"c99-e2": SOFTMAX.cases(1)}, "limit_s": None}))
    with pytest.raises(feedback.GradeFailed):
        check("c99-e2", softmax)
    line = json.loads((tmp_path / "answers.jsonl").read_text())
    assert "skipped: it needs torch" in line["outcomes"][0]["error"]
    assert "✓" not in capsys.readouterr().out


def test_a_package_that_is_missing_is_seen():
    assert Exercise(**{**vars(SOFTMAX), "packages": ("torch", "no_such_package")}).missing_packages == [
        "no_such_package"
    ]
