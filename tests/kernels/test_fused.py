"""Norm, rotation and gate kernels against models.ops.TorchOps, and against planted faults. Chapter 14.

A float16 or bfloat16 kernel that rounds in another place than torch is off by one rounding in every third number, and
never by more; so the numbers must not only be near torch's, 99 of 100 must be the very same.
"""

import importlib.util
import math
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

import pytest
import torch
import torch.nn.functional as F

from mini_vllm.kernels import fused
from mini_vllm.models.ops import TorchOps

DTYPES = [torch.float32, torch.float16, torch.bfloat16]
EPS = 1e-5
TORCH = TorchOps()
# Where the last bit of the float32 mean differs, a rounding may fall to the other side, and the next one after it. The
# interpreter cuts float32 to bfloat16 where a GPU and torch round, at each of at most four places.
TOLERANCE = {torch.float32: 1e-6, torch.float16: 2 * 2**-10, torch.bfloat16: 4 * 2**-7}
GUARD = 7.0


def normal(*shape: int, dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def apart(x: torch.Tensor, gap: int = 5) -> torch.Tensor:
    """The same numbers, rows `gap` numbers further apart in memory, the gaps full of GUARD."""
    wide = torch.full((*x.shape[:-1], x.shape[-1] + gap), GUARD, dtype=x.dtype)
    wide[..., : x.shape[-1]] = x
    return wide[..., : x.shape[-1]]


@contextmanager
def guarded_outputs():
    """Inside, torch.empty gives rows with GUARD behind them in memory; at the end nothing has written there."""
    guards = []

    def empty(*shape, dtype, device):
        rows, *rest = shape[0] if len(shape) == 1 else shape
        whole = torch.full((rows + 4, *rest), GUARD, dtype=dtype, device=device)
        whole[:rows] = math.nan
        guards.append(whole[rows:])
        return whole[:rows]

    with mock.patch("torch.empty", empty):
        yield
    assert all((guard == GUARD).all() for guard in guards)


# The formulas with their roundings, written out once more, so that they can be rounded as the interpreter does.
def nearest(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return x.to(dtype).float()


def interpreted(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return (x.view(torch.int32) & -(2**16)).view(torch.float32) if dtype == torch.bfloat16 else nearest(x, dtype)


def norm_form(x, weight, *, rounded):
    wide = x.float()
    scaled = rounded(wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + EPS), x.dtype)
    return rounded(weight.float() * scaled, x.dtype).to(x.dtype)


def sum_form(x, residual, *, rounded):
    return rounded(x.float() + residual.float(), x.dtype).to(x.dtype)


def rotate_form(x, cos, sin, *, rounded):
    first, second = x.float().chunk(2, dim=-1)
    products = (rounded(a * b.float(), x.dtype) for a, b in ((x.float(), cos), (torch.cat((-second, first), -1), sin)))
    return rounded(sum(products), x.dtype).to(x.dtype)


def gate_form(gate, up, *, rounded):
    return rounded(rounded(F.silu(gate.float()), gate.dtype) * up.float(), gate.dtype).to(gate.dtype)


def assert_same(ours: torch.Tensor, right: torch.Tensor, form, *inputs: torch.Tensor) -> None:
    """ours: a kernel's; right: torch's in the model; form(*inputs): the formula written out above."""
    assert ours.shape == right.shape and ours.dtype == right.dtype
    if ours.numel() == 0:
        return
    torch.testing.assert_close(form(*inputs, rounded=nearest), right, rtol=1e-6, atol=0)  # the formula is torch's
    if right.dtype != torch.float32:
        assert float((ours == form(*inputs, rounded=interpreted)).float().mean()) >= 0.99
    # Sums of large terms may cancel: no number counts for less than a hundredth of the largest.
    size = torch.maximum(right.double().abs(), 0.01 * right.double().abs().max())
    if form is rotate_form or form is sum_form:
        size = right.double().abs().max()
    error = (ours.double() - right.double()).abs() / size
    assert float(error.nan_to_num(nan=math.inf).max()) <= TOLERANCE[right.dtype]


def check_norms(kernels, size: int, dtype: torch.dtype, tokens) -> None:
    weight = normal(size, dtype=dtype, seed=1)
    for num_tokens in tokens:
        x, residual = normal(num_tokens, size, dtype=dtype), normal(num_tokens, size, dtype=dtype, seed=2)
        for given in (x, apart(x)):
            with guarded_outputs():
                ours = kernels.rms_norm(given, weight, EPS)
                normed, total = kernels.add_rms_norm(given, apart(residual, 3), weight, EPS)
            assert_same(ours, TORCH.rms_norm(x, weight, EPS), norm_form, x, weight)
            assert_same(total, x + residual, sum_form, x, residual)
            assert_same(normed, TORCH.rms_norm(total, weight, EPS), norm_form, total, weight)
            assert all(tensor.is_contiguous() for tensor in (ours, normed, total))


def check_heads(kernels, heads: int, kv_heads: int, head_dim: int, dtype: torch.dtype, tokens) -> None:
    """Norm of each head, and rotation, of q and k that are views of one joined qkv row with rows behind it."""
    for num_tokens in tokens:
        joined = normal(num_tokens + 1, heads + 2 * kv_heads, head_dim, dtype=dtype)
        q, k, v = joined[:num_tokens].split((heads, kv_heads, kv_heads), dim=1)
        weight, before = normal(head_dim, dtype=dtype, seed=1), joined.clone()
        with guarded_outputs():
            normed_q, normed_k = kernels.rms_norm(q, weight, EPS), kernels.rms_norm(k, weight, EPS)
        assert_same(normed_q, TORCH.rms_norm(q, weight, EPS), norm_form, q, weight)
        assert_same(normed_k, TORCH.rms_norm(k, weight, EPS), norm_form, k, weight)
        assert torch.equal(joined, before)
        angle = 10 * normal(num_tokens, 1, head_dim, dtype=torch.float32, seed=3)
        cos, sin = apart(angle.cos().to(dtype)), apart(angle.sin().to(dtype), 3)
        (right_q, right_k), old_q, old_k = TORCH.rotate(q, k, cos, sin), q.clone(), k.clone()
        kernels.rotate_(q, k, cos, sin)
        assert_same(q, right_q, rotate_form, old_q, cos, sin)
        assert_same(k, right_k, rotate_form, old_k, cos, sin)
        assert torch.equal(v, before[:num_tokens, heads + kv_heads :])
        assert torch.equal(joined[num_tokens:], before[num_tokens:])


def check_gate(kernels, width: int, dtype: torch.dtype, tokens) -> None:
    for num_tokens in tokens:
        gate_up = 4 * normal(num_tokens, 2 * width, dtype=dtype)
        gate, up = gate_up.chunk(2, dim=-1)
        for given in (gate_up, apart(gate_up)):
            with guarded_outputs():
                ours = kernels.silu_and_mul(given)
            assert ours.is_contiguous()
            assert_same(ours, TORCH.silu_and_mul(gate_up), gate_form, gate, up)


def test_norm_of_three_and_four():
    # The root of the mean square of (3, 4) is sqrt(12.5).
    normed = fused.rms_norm(torch.tensor([[3.0, 4.0]]), torch.tensor([1.0, 10.0]), 0.0)
    assert normed[0].tolist() == pytest.approx([0.8485281, 11.313708])


def test_rotation_by_a_quarter_turn():
    # (1, 2 | 3, 4) pairs 1 with 3 and 2 with 4; 90 degrees turn (a, b) to (-b, a).
    q, k = torch.tensor([[[1.0, 2.0, 3.0, 4.0]]]), torch.tensor([[[5.0, 6.0, 7.0, 8.0]]])
    fused.rotate_(q, k, torch.zeros(1, 1, 4), torch.ones(1, 1, 4))
    assert q[0, 0].tolist() == [-3, -4, 1, 2] and k[0, 0].tolist() == [-7, -8, 5, 6]


@pytest.mark.filterwarnings("ignore:overflow encountered in exp")
def test_a_closed_gate_lets_nothing_through_and_an_open_one_all():
    gate_up = torch.tensor([[0.0, -1e4, -88.8, 88.8, 1e4, 1.0, 2.0, 3.0, 4.0, 5.0]])
    assert fused.silu_and_mul(gate_up)[0].tolist() == pytest.approx([0, 0, 0, 88.8 * 4, 5e4])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [1, 7, 576, 1000, 1536, 4096])
def test_norms_equal_torchs(size, dtype):
    check_norms(fused, size, dtype, tokens=[0, 1, 3, 33] if size in (576, 4096) else [1, 3])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("heads", "kv_heads", "head_dim"), [(9, 3, 64), (5, 1, 80), (1, 1, 96), (16, 8, 128)])
def test_heads_of_a_joined_qkv_equal_torchs(heads, kv_heads, head_dim, dtype):
    check_heads(fused, heads, kv_heads, head_dim, dtype, tokens=[0, 3])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", [1, 5, 1023, 1536, 2050])
def test_gate_equals_torchs(width, dtype):
    check_gate(fused, width, dtype, tokens=[0, 1, 3, 33] if width == 1536 else [3])


def test_many_tokens():
    check_heads(fused, 9, 3, 64, torch.float16, tokens=[33])


def check_all(kernels) -> None:
    for dtype in (torch.float32, torch.float16):
        check_norms(kernels, 100, dtype, tokens=[3])
        check_heads(kernels, 3, 1, 80, dtype, tokens=[3])
        check_gate(kernels, 1030, dtype, tokens=[3])


FAULTS = {  # what is wrong: (right, wrong)
    "no epsilon": ("/ D + eps", "/ D"),
    "the mean counts the padding": ("axis=0) / D", "axis=0) / 128"),
    "the norm rounds once": ("_product((wide * scale).to(row.dtype), weight)", "(wide * scale * weight)"),
    "the norm reads past the row": (
        "mask=lanes < D, other=0.0)\n    normed",
        "mask=lanes < 128, other=0.0)\n    normed",
    ),
    "the norm writes past the row": ("normed, mask=lanes < D)", "normed)"),
    "rows are taken as side by side": ("x_ptr + token * stride_t + head", "x_ptr + token * heads * D + head"),
    "heads are taken as side by side": ("head * stride_h", "head * 1"),
    "the residual has x's stride": ("token * stride_r", "token * stride_x"),
    "the norm forgets the residual": ("_normed(total, weight_ptr", "_normed(x, weight_ptr"),
    "the sum is not rounded": (
        "(x.to(tl.float32) + residual.to(tl.float32)).to(x.dtype)",
        "x.to(tl.float32) + residual",
    ),
    "rotated the other way": ("- _product(second, sin_first)", "+ _product(second, sin_first)"),
    "pairs are neighbours in the tile": ("first_ptrs + HALF, mask", "first_ptrs + BLOCK_HALF, mask"),
    "rotates the head behind": ("(heads < HEADS) & (lanes < HALF)", "(heads <= HEADS) & (lanes < HALF)"),
    "rotates the lane behind": ("(heads < HEADS) & (lanes < HALF)", "(heads < HEADS) & (lanes <= HALF)"),
    "a cosine for both halves": ("cos_ptr + HALF + lanes", "cos_ptr + lanes"),
    "products are not rounded": (".to(a.dtype).to(tl.float32)", ""),
    "keys are not rotated": ("_rotate_heads(k_ptr", "_rotate_heads(q_ptr"),
    "gate and up are swapped": (
        "_product(silu, up)",
        "_product((up / (1 + tl.exp(-up.to(tl.float32)))).to(up.dtype), gate)",
    ),
    "the gate is not rounded": ("(wide / (1 + tl.exp(-wide))).to(gate.dtype)", "wide / (1 + tl.exp(-wide))"),
    "the last gates are left out": ("triton.cdiv(width, _GATE_BLOCK)", "width // _GATE_BLOCK"),
    "the gate writes past the row": ("_product(silu, up), mask=lanes < WIDTH)", "_product(silu, up))"),
}


def test_the_checks_pass_on_our_kernels():
    check_all(fused)


@pytest.mark.parametrize("fault", FAULTS)
def test_each_planted_fault_is_seen(fault, tmp_path):
    source = Path(fused.__file__).read_text(encoding="utf-8")
    right, wrong = FAULTS[fault]
    assert right in source
    path = tmp_path / "faulty.py"
    path.write_text(source.replace(right, wrong), encoding="utf-8")
    spec = importlib.util.spec_from_file_location("faulty", path)
    faulty = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(faulty)
    with pytest.raises(AssertionError):
        check_all(faulty)


BAD = {
    "reshape it first": lambda x: fused.rms_norm(x[0], x[0], EPS),
    "float16, bfloat16 and float32": lambda x: fused.rms_norm(x.double(), x[0].double(), EPS),
    "weight is \\[4\\]": lambda x: fused.rms_norm(x, x[0, :4], EPS),
    "weight is .*float16": lambda x: fused.rms_norm(x, x[0].half(), EPS),
    "8 apart": lambda x: fused.rms_norm(x.t().contiguous().t(), x[0], EPS),
    "32768": lambda x: fused.rms_norm(torch.zeros(1, 40000), torch.zeros(40000), EPS),
    "\\[8, 8\\] and \\[4, 8\\]": lambda x: fused.add_rms_norm(x, x[:4], x[0], EPS),
    "the same even D": lambda x: fused.rotate_(x[:, None, :7], x[:, None, :7], x[:, None], x[:, None]),
    "cos and sin": lambda x: fused.rotate_(x[:, None], x[:, None], x[:4, None], x[:4, None]),
    "gate, then up": lambda x: fused.silu_and_mul(x[:, :7]),
}


@pytest.mark.parametrize("says", BAD)
def test_refusals_name_the_value(says):
    with pytest.raises(ValueError, match=f"(?i){says}"):
        BAD[says](torch.zeros(8, 8))
