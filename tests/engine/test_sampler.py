"""One token a row: by hand, as a distribution, against transformers' filters, and alone as in any company."""

import math
import random
from collections import Counter
from dataclasses import replace

import pytest
import torch

from mini_vllm.engine.sampler import Sampler, SamplingRow, _draw, seed_of, uniform
from mini_vllm.errors import InvalidSamplingParamsError
from mini_vllm.sampling_params import SamplingParams

LOGITS = torch.log(torch.tensor([0.5, 0.1, 0.4]))  # probabilities of three tokens


def one(logits, row) -> int:
    return Sampler().sample(logits[None], [row])[0].token_id


def drawn(logits, params, num=4000):
    """How often each token comes, as a share; a row's random number depends on its seed."""
    counts = Counter(_draw(logits.clone(), SamplingRow(replace(params, seed=seed))) for seed in range(num))
    return [counts[token] / num for token in range(len(logits))]


def test_greedy_takes_the_first_of_equals():
    assert one(torch.tensor([1.0, 3.0, 3.0]), SamplingRow(SamplingParams())) == 1


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, [0.5, 0.1, 0.4]),
        ({"top_k": 2}, [5 / 9, 0, 4 / 9]),
        ({"top_k": -1}, [0.5, 0.1, 0.4]),
        ({"top_p": 0.49}, [1, 0, 0]),  # the likeliest alone reaches it
        ({"top_p": 0.51}, [5 / 9, 0, 4 / 9]),
        ({"min_p": 0.3}, [5 / 9, 0, 4 / 9]),  # 0.1 is less than 0.3 times 0.5
        ({"top_k": 2, "top_p": 0.52}, [1, 0, 0]),  # of the two that are left, the first has 5/9
    ],
)
def test_shares_by_hand(options, expected):
    shares = drawn(LOGITS, SamplingParams(temperature=1.0, **options))
    assert shares == pytest.approx(expected, abs=0.03)
    assert [share == 0 for share in shares] == [share == 0 for share in expected]


def test_temperature_by_hand():
    # Halving the temperature squares the probabilities: 25 : 1 : 16.
    assert drawn(LOGITS, SamplingParams(temperature=0.5)) == pytest.approx([25 / 42, 1 / 42, 16 / 42], abs=0.03)
    assert drawn(LOGITS, SamplingParams(temperature=1e-6), num=50) == [1, 0, 0]


@pytest.mark.parametrize("seed", range(30))
def test_filters_keep_what_transformers_keeps(seed):
    transformers = pytest.importorskip("transformers")
    rng = random.Random(seed)
    logits = torch.randn(50, generator=torch.Generator().manual_seed(seed)) * 3
    k, p, m, t = rng.randint(1, 50), rng.uniform(0.05, 0.999), rng.uniform(0, 0.5), rng.uniform(0.3, 2.0)
    scores = logits[None].double() / t
    for warper in (
        transformers.MinPLogitsWarper(m),
        transformers.TopKLogitsWarper(k),
        transformers.TopPLogitsWarper(p),
    ):
        scores = warper(None, scores)
    expected = scores.softmax(-1)[0]
    params = SamplingParams(temperature=t, top_k=k, top_p=p, min_p=m)
    shares = drawn(logits, params, num=1500)
    assert {i for i, share in enumerate(shares) if share} <= {i for i, q in enumerate(expected.tolist()) if q > 0}
    assert sum(abs(a - b) for a, b in zip(shares, expected.tolist(), strict=True)) < 0.25


@pytest.mark.parametrize("seed", range(20))
def test_penalties_as_transformers_and_by_formula(seed):
    transformers = pytest.importorskip("transformers")
    rng = random.Random(seed)
    logits = torch.randn(20, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    prompt, output = [rng.randrange(20) for _ in range(8)], [rng.randrange(20) for _ in range(rng.randint(0, 8))]
    r, f, pr = rng.uniform(0.5, 2), rng.uniform(-2, 2), rng.uniform(-2, 2)
    penalty, seen = transformers.RepetitionPenaltyLogitsProcessor(r), torch.tensor([prompt + output])
    [expected] = penalty(seen, logits[None].clone())
    for token, count in Counter(output).items():
        expected[token] -= f * count + pr
    params = SamplingParams(repetition_penalty=r, frequency_penalty=f, presence_penalty=pr)
    assert one(logits, SamplingRow(params, prompt, output)) == int(expected.argmax())


def test_end_tokens_wait_for_min_tokens():
    logits, params = torch.tensor([0.0, 1.0, 9.0]), SamplingParams(min_tokens=2)
    for output, token in (([], 1), ([1], 1), ([1, 1], 2)):
        assert one(logits, SamplingRow(params, [0], output, never=[2])) == token


def test_a_stop_token_that_the_model_does_not_have_harms_nobody():
    logits, params = torch.tensor([0.0, 1.0, 9.0]), SamplingParams(min_tokens=2)
    assert one(logits, SamplingRow(params, [0], [], never=[10**9, -1])) == 2


def test_random_numbers_are_even_and_depend_on_seed_and_position_only():
    numbers = [uniform(7, position) for position in range(10_000)]
    assert all(0 <= u < 1 for u in numbers) and numbers[3] == uniform(7, 3) != uniform(8, 3)
    counts = Counter(int(u * 10) for u in numbers)
    assert all(abs(count - 1000) < 150 for count in counts.values())
    assert len({seed_of(engine, number) for engine in range(3) for number in range(3)}) == 9


@pytest.mark.parametrize("seed", range(10))
def test_a_row_is_the_same_in_any_company(seed):
    rng = random.Random(seed)
    logits = torch.randn(12, 40, generator=torch.Generator().manual_seed(seed))
    rows = []
    for i in range(12):
        params = SamplingParams(
            temperature=rng.choice([0, 0.7, 1.3]),
            top_k=rng.choice([0, 5]),
            top_p=rng.choice([1.0, 0.8]),
            presence_penalty=rng.choice([0, 1.0]),
            logprobs=rng.choice([None, 3]),
            seed=i,
        )
        rows.append(SamplingRow(params, [1, 2], [rng.randrange(40) for _ in range(i)]))
    together = Sampler().sample(logits, rows)
    order = rng.sample(range(12), 7)
    assert Sampler().sample(logits[order], [rows[i] for i in order]) == [together[i] for i in order]


def test_logprobs_are_the_models_own():
    params = SamplingParams(temperature=1.0, top_k=1, presence_penalty=2.0, logprobs=2)
    [result] = Sampler().sample(LOGITS[None], [SamplingRow(params, [0], [0, 0])])
    # The penalty makes token 2 the likeliest; the log-probabilities are those before it.
    assert result.token_id == 2 and result.logprobs.rank == 2
    assert result.logprobs.logprob == pytest.approx(math.log(0.4))
    assert list(result.logprobs.top) == [0, 2] and result.logprobs.top[0] == pytest.approx(math.log(0.5))
    [none] = Sampler().sample(LOGITS[None], [SamplingRow(SamplingParams(logprobs=0))])
    assert none.logprobs.top == {} and none.logprobs.rank == 1


@pytest.mark.parametrize("poison", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("params", [SamplingParams(), SamplingParams(temperature=1.0)])
def test_a_row_without_numbers_is_an_error_of_its_own(poison, params):
    logits = torch.zeros(3, 5)
    logits[1] = -math.inf
    logits[1, 2] = poison
    results = Sampler().sample(logits, [SamplingRow(params)] * 3)
    assert [result.token_id is None for result in results] == [False, True, False]


def test_an_empty_batch():
    assert Sampler().sample(torch.empty(0, 5), []) == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"temperature": -0.1}, "temperature=-0.1 is out of range; give a number from 0 to 100 (0 takes"),
        ({"temperature": math.nan}, "temperature=nan"),
        ({"temperature": "hot"}, "temperature='hot'"),
        ({"temperature": True}, "temperature=True"),
        ({"top_p": 0}, "top_p=0 is out of range; give a number above 0 and at most 1"),
        ({"top_p": 1.5}, "top_p=1.5"),
        ({"top_k": -2}, "top_k=-2 is out of range; give a whole number at least -1"),
        ({"top_k": 1.5}, "top_k=1.5 is not a whole number"),
        ({"min_p": 1.1}, "min_p=1.1"),
        ({"repetition_penalty": 0}, "repetition_penalty=0"),
        ({"presence_penalty": 2.1}, "from -2 to 2"),
        ({"frequency_penalty": -3}, "frequency_penalty=-3"),
        ({"seed": 1 << 64}, "seed=18446744073709551616 is out of range"),
        ({"seed": "x"}, "seed='x' is not a whole number"),
        ({"logprobs": 21}, "logprobs=21 is out of range; give a whole number from 0 to 20"),
        ({"n": 0}, "n=0"),
        ({"n": 1000}, "from 1 to 128"),
        ({"min_tokens": 17}, "min_tokens=17 is above max_tokens=16"),
        ({"min_tokens": -1}, "min_tokens=-1"),
        ({"stop": [""]}, "stop holds ''; each must be a text of 1 to 1000 characters"),
        ({"stop": 5}, "stop=5 is no text"),
        ({"stop": ["a"] * 17}, "stop holds 17 texts; at most 16"),
        ({"stop": [None]}, "stop holds None"),
        ({"stop": ["x" * 1001]}, "stop holds 'xxx"),
    ],
)
def test_parameters_that_cannot_be(options, message):
    with pytest.raises(InvalidSamplingParamsError) as caught:
        SamplingParams(**options)
    assert message in str(caught.value)


def test_one_stop_text_stands_for_a_list_of_one():
    assert SamplingParams(stop="END").stop == ("END",)
