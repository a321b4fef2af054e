"""Every comparer with what is right, what is wrong, and what tries to be neither. Knows no exercise."""

import json
import math
from collections import Counter, OrderedDict, defaultdict, deque
from decimal import Decimal
from fractions import Fraction
from itertools import chain, count
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mini_vllm.grading.calling import NotPlain, to_plain
from mini_vllm.grading.checkers import all_of, exact, one_of, parts, same, sequence
from mini_vllm.grading.properties import each_once, holds, least
from mini_vllm.grading.quantities import UNITS, numeric
from mini_vllm.grading.step_traces import everybody_served, same_trace, work_within
from mini_vllm.grading.tensors import same_tensor, same_tensors


class Yes(list):
    """Equal to everything, greater and smaller than everything."""

    __eq__ = __lt__ = __le__ = __gt__ = __ge__ = lambda self, other: True
    __hash__ = None

    def __ne__(self, other):
        return False


class Step(NamedTuple):
    name: str
    tokens: int


STEP = {name: [] for name in ("scheduled", "new", "preempted", "waiting", "running", "finished")}
STEPS = [{**STEP, "scheduled": [["A", 1]], "computed": {"A": [0, 1]}, "finished": ["A"]}]
TENSOR = {"shape": [2], "dtype": "float32", "values": [0.5, 2.0]}
# name -> (comparer, a case, the right answer)
COMPARERS = {
    "exact": (exact, [], [1, "a", {"b": None}]),
    "numeric": (numeric("ms"), [], 12.5),
    "numeric, whole": (numeric("blocks"), [], 3),
    "one_of": (one_of("memory", "compute"), [], "memory"),
    "sequence": (sequence("step"), [], [["A"], ["A", "B"]]),
    "sequence of numbers": (sequence("step", numeric("ms")), [], [0.1, 2.0]),
    "parts": (parts(bound=one_of("memory", "compute"), time=numeric("s")), [], {"bound": "memory", "time": 0.1}),
    "all_of": (all_of(numeric(), exact), [], 3),
    "holds": (holds(lambda case, got: got[0] < got[1], "the first is not smaller"), [], [1, 2]),
    "each_once": (each_once(lambda got: got, lambda case: range(case[0]), "request", "batch"), [2], [1, 0]),
    "least": (least(lambda case, got: len(got), "steps"), [], ["A", "B"]),
    "same_trace": (same_trace("scheduled", "preempted"), [], STEPS),
    "work_within": (work_within("preemptions"), [[["A", 1, 1, 0]], {}], STEPS),
    "everybody_served": (everybody_served, [[["A", 1, 1, 0]], {}], STEPS),
    "same_tensor": (same_tensor(), [], TENSOR),
    "same_tensors": (same_tensors("out", "lse"), [], [TENSOR, TENSOR]),
}
ODD = [
    None, True, False, 0, -1, 10**200, 0.0, -0.0, 1e300, "", "A", "nan", [], [[]], [None], [True], {}, {"A": 1}, [{}],
    [[[1]]], math.nan, math.inf, [math.nan], {"values": math.nan}, {"shape": [-1], "dtype": "float32", "values": []},
    [{"scheduled": 3, "preempted": None, "computed": [], "finished": 1}],
    [{"scheduled": [["A", "x"]], "preempted": [], "computed": {"A": [0, 0]}, "finished": []}],
]  # fmt: skip
ALL = pytest.mark.parametrize("name", COMPARERS)


@ALL
def test_right_passes_and_so_does_the_same_after_a_trip_over_the_pipe(name):
    compare, case, right = COMPARERS[name]
    assert compare(case, right, right) is None
    assert compare(case, json.loads(json.dumps(to_plain(right))), right) is None


def as_numpy(value):
    """Numbers, and lists of nothing but numbers, as numpy has them; texts as numpy texts."""
    if type(value) in (int, float):
        return np.array(value)[()]
    if type(value) is str:
        return np.str_(value)
    if type(value) is dict:
        return {key: as_numpy(item) for key, item in value.items()}
    if type(value) is list and value and all(type(item) in (int, float) for item in value):
        return np.array(value)
    return [as_numpy(item) for item in value] if type(value) is list else value


def as_generators(value):
    if type(value) is dict:
        return {key: as_generators(item) for key, item in value.items()}
    return (as_generators(item) for item in value) if type(value) is list else value


@ALL
@pytest.mark.parametrize("other", [as_numpy, as_generators])
def test_right_passes_in_other_types(name, other):
    compare, case, right = COMPARERS[name]
    assert type(other([1])) is not list
    assert compare(case, to_plain(other(right)), right) is None


@ALL
def test_everything_else_is_a_complaint_in_words_and_never_an_exception(name):
    compare, case, right = COMPARERS[name]
    for odd in ODD:
        complaint = compare(case, odd, right)
        assert isinstance(complaint, str) and complaint, (name, odd)
        assert len(complaint) < 1000


@ALL
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(st.sampled_from([*STEP, "computed", "shape", "dtype", "values", "A"]), inner, max_size=4)
        ),
        max_leaves=8,
    )
)
def test_whatever_comes_is_survived(name, value):
    compare, case, right = COMPARERS[name]
    complaint = compare(case, value, right)
    assert complaint is None or complaint.strip()
    if complaint is None and name not in ("holds", "least", "each_once"):  # these let many answers pass
        assert value == right


@ALL
def test_an_object_that_equals_everything_does_not_pass(name):
    compare, case, right = COMPARERS[name]
    for lie in (Yes(), [Yes()], {"A": Yes()}, Yes([Yes()])):
        assert compare(case, lie, right) is not None
        with pytest.raises(NotPlain):
            to_plain(lie)


# --- what a learner may return --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "plain"),
    [
        (np.float64(0.5), 0.5),
        (np.int32(3), 3),
        (np.bool_(True), True),
        (np.str_("A"), "A"),
        (np.array([[1, 2], [3, 4]]), [[1, 2], [3, 4]]),
        ([np.array([1]), np.int64(2)], [[1], 2]),
        ((i * i for i in range(3)), [0, 1, 4]),
        (map(str, range(2)), ["0", "1"]),
        (chain([1], [2]), [1, 2]),
        (enumerate("ab"), [[0, "a"], [1, "b"]]),
        (reversed([1, 2]), [2, 1]),
        (iter([1]), [1]),
        (deque([1, 2]), [1, 2]),
        (defaultdict(int, a=1), {"a": 1}),
        (OrderedDict(b=1), {"b": 1}),
        (Counter("aa"), {"a": 2}),
        ({np.str_("A"): np.int64(1)}, {"A": 1}),
        (Fraction(1, 4), 0.25),
        (Decimal("0.5"), 0.5),
        ([Step("A", 3)], [["A", 3]]),
        ({"a": 1}.keys(), ["a"]),
        ({"a": 1}.items(), [["a", 1]]),
    ],
    ids=lambda value: type(value).__name__,
)
def test_the_types_of_right_answers_are_read(given, plain):
    assert same(to_plain(given), plain)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (math.nan, "no finite number"),
        (np.float32("inf"), "no finite number"),
        (Decimal("nan"), "no finite number"),
        ({1, 2}, "a set, which has no order; return a list"),
        ({1: "a"}, "the key 1, which is no string"),
        (10**400, "over 300 digits"),
        ([1, ...], "to be filled in"),
        (len, "type builtin_function_or_method"),
        (np.array([len, Yes]), "type builtin"),
    ],
)
def test_what_cannot_be_compared_is_refused_with_the_reason(given, says):
    with pytest.raises(NotPlain, match=says):
        to_plain(given)


def test_an_endless_generator_comes_to_an_end():
    assert len(to_plain(count())) == 1_000_000


def test_torch_is_read_where_it_is_there():
    torch = pytest.importorskip("torch")
    assert to_plain(torch.tensor([[1, 2]])) == [[1, 2]] and to_plain(torch.tensor(0.5)) == 0.5


# --- messages -------------------------------------------------------------------------------------------------


def says(comparer, got, expected, case=()):
    return comparer(list(case), got, expected)


def test_exact_knows_types_all_the_way_down():
    assert says(exact, [1], [True]) == "expected [True], got [1]"
    assert says(exact, {"a": 1.0}, {"a": 1}) and says(exact, 1, 1.0)
    assert says(exact, None, [1]) == "expected [1], got None: is a return missing?"
    assert len(says(exact, list(range(10_000)), [1])) < 200


@pytest.mark.parametrize(
    ("unit", "expected", "got", "message"),
    [
        ("ms", 250.0, 0.25, "expected 250 ms, got 0.25: off by 1000: seconds instead of milliseconds?"),
        ("s", 0.25, 250, "expected 0.25 s, got 250: off by 1000: milliseconds instead of seconds?"),
        ("s", 1.5, 1.5e6, "expected 1.5 s, got 1.5e+06: off by 1e+06: microseconds instead of seconds?"),
        ("s", 120.0, 2, "expected 120 s, got 2: off by 60: minutes instead of seconds?"),
        ("s", 2.0, -2.0, "expected 2 s, got -2: right size, wrong sign"),
        ("ms", 3.0, -0.003, "expected 3 ms, got -0.003: wrong sign, and off by 1000: seconds instead of milliseconds?"),
        ("bytes", 4096, 4, "expected 4,096 bytes, got 4: off by 1024: KiB (1024) instead of bytes?"),
        ("bytes", 100, 800, "expected 100 bytes, got 800: off by 8: bits instead of bytes?"),
        ("GB", 3.0, 3 * 1e9 / 2**30, "expected 3 GB, got 2.79397: off by 1.07374: GiB (1024³) instead of GB (1000³)?"),
        ("tokens/s", 50.0, 0.05, "expected 50 tokens/s, got 0.05: off by 1000: per millisecond instead of per second?"),
        ("GB/s", 2.0, 2e9, "expected 2 GB/s, got 2e+09: off by 1e+09: bytes instead of GB (1000³)?"),
        ("share", 0.3, 30, "expected 0.3, got 30: off by 100: percent instead of a share between 0 and 1?"),
        ("TFLOP", 1.0, 1000.0, "expected 1 TFLOP, got 1000: off by 1000: GFLOP instead of TFLOP?"),
        ("blocks", 5, 6, "expected 5 blocks, got 6: one too many"),
        ("steps", 5, 4, "expected 5 steps, got 4: one too few"),
        ("", 1 / 3, 0.33, "expected 0.333333, got 0.33: rounded; give the number in full"),
        ("", 0.75, 0, "expected 0.75, got 0: a whole number; does // stand where / is meant?"),
        ("", 0.5, 0.7, "expected 0.5, got 0.7"),
        ("", 1.0, 1.0000001, "expected 1.0, got 1.0000001"),
        ("ms", 1.0, None, "expected the number 1 ms, got None: is a return missing?"),
        ("ms", 1.0, "1 ms", "expected the number 1 ms, got the str '1 ms'"),
        ("ms", 1.0, math.nan, "expected the number 1 ms, got the float nan"),
        ("", 1, True, "expected the number 1, got the bool True"),
    ],
)  # fmt: skip
def test_a_number_is_told_its_slip(unit, expected, got, message):
    assert says(numeric(unit), got, expected) == message


def test_a_slip_of_the_exercise_s_own():
    compare = numeric("bytes", slips={0.5: "K and V are two tensors"})
    assert says(compare, 512, 1024) == "expected 1,024 bytes, got 512: K and V are two tensors"


def test_numbers_within_tolerance_are_right_and_zero_is_no_excuse():
    assert (
        says(numeric(), 0.1 + 0.2, 0.3) is None
        and says(numeric(), 3.0, 3) is None
        and says(numeric(), 1e-16, 0.0) is None
    )
    assert says(numeric(tolerance=0.01), 1.009, 1.0) is None and says(numeric(tolerance=0.01), 1.011, 1.0)
    assert says(numeric(), 2.3e-7, 2.2e-7), "small numbers are compared relative to themselves"
    assert says(numeric(), 1e-9, 0.0)


@given(st.sampled_from(list(UNITS)), st.floats(1e-6, 1e6), st.floats(1e-6, 1e6))
def test_c06_no_wrong_number_passes_whatever_its_sign_or_unit(unit, expected, got):
    assert says(numeric(unit), -expected, expected) is not None
    assert (says(numeric(unit), got, expected) is None) == (abs(got - expected) <= max(1e-9 * expected, 1e-12))


def test_a_sequence_shows_the_first_difference_and_its_neighbours():
    right = [["A"], ["A", "B"], ["B"], ["B"], []]
    assert says(sequence("step"), [["A"], ["A", "B"], ["A", "B"], ["B"], []], right) == (
        "first difference in step 2: expected ['B'], got ['A', 'B']\n"
        "  step   expected     yours\n"
        "     0   ['A']        ['A']\n"
        "     1   ['A', 'B']   ['A', 'B']\n"
        ">    2   ['B']        ['A', 'B']\n"
        "     3   ['B']        ['B']\n"
        "     4   []           []"
    )
    assert says(sequence("step"), right[:3], right).startswith("step 3 is missing: expected ['B'] (5 steps in all)\n")
    assert says(sequence("step"), [*right, []], right).startswith("step 5 is one too many: 5 are right, got []\n")
    assert says(sequence("step"), "AB", right) == "expected a list with one entry a step, got the str 'AB'"
    assert "off by 1000" in says(sequence("step", numeric("ms")), [1.0, 0.002], [1.0, 2.0])


def test_parts_name_every_part_that_is_wrong():
    compare = parts(bound=one_of("memory", "compute"), time=numeric("ms"))
    right = {"bound": "memory", "time": 2.0}
    assert says(compare, {"bound": "compute", "time": 0.002}, right) == (
        "bound: 'compute' is not right\ntime: expected 2 ms, got 0.002: off by 1000: seconds instead of milliseconds?"
    )
    assert "'time' is not in it and 'times' is not asked for" in says(compare, {"bound": "memory", "times": 2}, right)
    assert "expected one of 'memory', 'compute', got the str 'disk'" in says(compare, {**right, "bound": "disk"}, right)


def test_properties_say_what_is_broken():
    once = each_once(lambda got: [i for batch in got for i in batch], lambda case: range(case[0]), "request", "batch")
    assert says(once, [[0], [2, 1]], None, [3]) is None
    assert says(once, [[0], [2]], None, [3]) == "request 1 is in no batch, each must be in exactly one: got [[0], [2]]"
    assert "request 0 is in 2 places" in says(once, [[0, 0], [1]], None, [2])
    assert "7 is no request" in says(once, [[0, 7]], None, [1])
    assert "True is no request" in says(once, [[0, True, 1]], None, [2]) and says(once, [[0, True]], None, [2])
    fewest = least(lambda case, got: len(got), "steps")
    assert says(fewest, ["C", "D"], ["A", "B"]) is None
    assert "takes 3 steps, 2 are enough, for example with ['A', 'B']" in says(fewest, ["C", "D", "E"], ["A", "B"])
    assert "fewer than the 2 that are possible" in says(fewest, ["C"], ["A", "B"])
    assert says(fewest, 5, ["A"]) == "the int 5 has another shape than asked for"
    rising = holds(lambda case, got: got == sorted(got), "the steps are not in order")
    assert says(rising, [2, 1], None) == "the steps are not in order: got [2, 1]"
    assert "another shape" in says(rising, 3, None)
