"""Layer one of exactness, everything at once: sampling, drafts, windows, caching, chunks, eviction, aborts.

Every request's tokens are those of the dense oracle, which sees one request and no schedule, without exception.
"""

import random
from dataclasses import dataclass, replace

import pytest

from mini_vllm.config import SchedulerConfig
from mini_vllm.engine.engine_core import EngineCore
from mini_vllm.engine.ngram_proposer import NgramProposer
from mini_vllm.models.config import ModelConfig
from mini_vllm.models.tiny import tiny_model
from mini_vllm.request import Request
from mini_vllm.sampling_params import SamplingParams
from tests.engine.dense_oracle import dense_generate

from ..models.variants import VARIANTS

WINDOW = 9
MODELS = {
    "llama": VARIANTS["llama"],
    "qwen2": VARIANTS["qwen2"],
    "qwen3": VARIANTS["qwen3"],
    "llama 3.1": VARIANTS["llama 3.1"],
    "window": replace(ModelConfig.tiny(), sliding_window=WINDOW),
}


@dataclass
class Case:
    prompt: list[int]
    params: SamplingParams
    expected: list[int]


def random_params(rng) -> SamplingParams:
    options = {"max_tokens": rng.choice([1, 2, rng.randrange(1, 24)]), "ignore_eos": True}
    if rng.random() < 0.6:
        options |= {"temperature": rng.choice([0.5, 1.0, 1.5]), "seed": rng.randrange(1000)}
        options |= {"top_p": rng.choice([1.0, 0.8]), "top_k": rng.choice([0, 10]), "min_p": rng.choice([0.0, 0.05])}
    if rng.random() < 0.3:
        options |= {"repetition_penalty": 1.3, "presence_penalty": 0.7, "frequency_penalty": 0.3}
    return SamplingParams(**options)


@pytest.fixture(scope="module")
def worlds():
    """name -> (model, cases)."""
    made = {}
    for name, config in MODELS.items():
        rng, model, cases = random.Random(name), tiny_model(0, config=config), []
        for _ in range(14):
            prompt = [rng.randrange(128) for _ in range(rng.choice([1, 3, rng.randrange(1, 40)]))]
            params = random_params(rng)
            cases.append(Case(prompt, params, dense_generate(model, prompt, params.max_tokens, params)))
        made[name] = model, cases
    return made


class Clairvoyant(NgramProposer):
    """Proposes what will come, and is wrong now and then: real drafts are seldom right on random weights."""

    def __init__(self, cases, rng):
        super().__init__(shortest=1)
        self.cases, self.rng = cases, rng

    def propose(self, token_ids, num_tokens):
        if self.rng.random() < 0.3:
            return super().propose(token_ids, num_tokens)
        for case in self.cases:
            whole = case.prompt + case.expected
            if whole[: len(token_ids)] == token_ids and len(token_ids) >= len(case.prompt):
                drafts = whole[len(token_ids) : len(token_ids) + num_tokens]
                return [(t + 1) % 128 if self.rng.random() < 0.25 else t for t in drafts]
        return []


def random_engine(rng, model, cases):
    longest = max(len(case.prompt) + case.params.max_tokens for case in cases)
    block_size = rng.choice([1, 2, 3, 5, 16])
    least = -(-longest // block_size)
    max_num_seqs, drafts = rng.randrange(1, 6), rng.choice([0, 0, 1, 3, 5])
    config = SchedulerConfig(
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max(max_num_seqs, 1 + drafts, rng.choice([1, 3, 7, 16, 64])),
        max_model_len=longest,
        num_gpu_blocks=least + rng.choice([0, 1, 2, least, 3 * least]),
        block_size=block_size,
        enable_prefix_caching=rng.random() < 0.5,
        policy=rng.choice(["fcfs", "priority"]),
        long_prefill_token_threshold=rng.choice([0, 0, 2, 5]),
        watermark=rng.choice([0.0, 0.0, 0.2]),
        num_speculative_tokens=drafts,
        sliding_window=model.config.sliding_window,
    )
    engine = EngineCore(model, config)
    engine.runner.make_proposer = lambda: Clairvoyant(cases, rng)
    return engine


def drive(engine, cases, rng):
    """Arrivals and aborts at random; checks every token of everybody."""
    arrivals = [(rng.choice([0, rng.randrange(12)]), i) for i in range(len(cases))]
    aborts = [(rng.randrange(1, 25), i) for i in range(len(cases)) if rng.random() < 0.15]
    outputs: dict[int, list[int]] = {i: [] for i in range(len(cases))}
    finished, step = set(), 0
    while engine.has_unfinished_requests() or any(at >= step for at, _ in arrivals):
        for _, i in [a for a in arrivals if a[0] == step]:
            engine.add_request(Request(str(i), cases[i].prompt, cases[i].params, priority=i % 3))
        engine.abort([str(i) for at, i in aborts if at == step])
        if engine.has_unfinished_requests():
            for news in engine.step():
                outputs[int(news.request_id)] += news.new_token_ids
                if news.finished:
                    finished.add(int(news.request_id))
        engine.loop.scheduler.check_integrity()
        step += 1
        assert step < 5_000, "hangs"
    for i, case in enumerate(cases):
        if i in finished:
            assert outputs[i] == case.expected
        else:
            assert i in {i for _, i in aborts} and outputs[i] == case.expected[: len(outputs[i])]


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("seed", range(24))
def test_any_schedule_with_everything(worlds, name, seed):
    rng = random.Random(f"{name}/{seed}")
    model, cases = worlds[name]
    chosen = rng.sample(cases, rng.randrange(1, 9))
    chosen += rng.sample(chosen, rng.randrange(len(chosen)))  # some ask twice
    drive(random_engine(rng, model, cases), chosen, rng)


def test_the_worlds_hold_what_they_claim(worlds):
    """Drafts are accepted and rejected, windows give blocks back, requests are evicted, prefixes are hit."""
    accepted = drafted = evicted = hits = 0
    for seed in range(24):
        rng = random.Random(f"llama/{seed}")
        model, cases = worlds["llama"]
        chosen = rng.sample(cases, rng.randrange(1, 9))
        chosen += rng.sample(chosen, rng.randrange(len(chosen)))
        engine = random_engine(rng, model, cases)
        drive(engine, chosen, rng)
        accepted, drafted = accepted + engine.runner.num_accepted, drafted + engine.runner.num_drafted
        evicted += sum(len(step["preempted"]) for step in engine.trace.steps)
        hits += sum(sum(step["hits"].values()) for step in engine.trace.steps)
    assert 0 < accepted < drafted and evicted and hits, (accepted, drafted, evicted, hits)


def test_a_window_model_holds_few_blocks_and_says_what_the_oracle_says():
    """40 tokens of context, a window of 9: at no step more than the window's blocks, and the tokens are right."""
    model = tiny_model(0, config=MODELS["window"])
    prompt, params = list(range(40)), SamplingParams(max_tokens=40, ignore_eos=True)
    engine = EngineCore(model, SchedulerConfig(1, 4, 96, 6, 4, sliding_window=WINDOW))
    engine.add_request(Request("A", prompt, params))
    tokens = []
    while engine.has_unfinished_requests():
        for news in engine.step():
            tokens += news.new_token_ids
        manager = engine.loop.scheduler.kv_cache_manager
        assert engine.config.num_gpu_blocks - manager.num_free_blocks <= 4  # 80 tokens would take 20
    assert tokens == dense_generate(model, prompt, 40)


def test_ngrams_by_hand():
    proposer = NgramProposer(longest=3, shortest=2)
    assert proposer.propose([1, 2, 3, 4, 1, 2], 3) == [3, 4, 1]
    assert proposer.propose([1, 2, 3, 4, 1, 2, 9, 1, 2], 2) == [9, 1]  # the latest place wins
    assert proposer.propose([1, 2, 3, 4, 1, 2, 9, 1, 2, 3], 2) == [4, 1]  # … but a longer end wins over it
    assert NgramProposer().propose([5], 3) == [] and NgramProposer().propose([5, 6, 7], 3) == []


def test_text_that_repeats_is_drafted_and_accepted():
    """A real gain: with a model that copies, drafts save steps and change no token."""
    from mini_vllm import LLM
    from tests.engine.tiny_llm import tiny_loaded

    loaded = tiny_loaded()
    params = SamplingParams(max_tokens=60, ignore_eos=True, repetition_penalty=0.05)  # below 1: it likes repeating
    runs = {}
    for drafts in (0, 4):
        llm = LLM(loaded, max_model_len=96, num_speculative_tokens=drafts, max_num_seqs=2)
        [output] = llm.generate(["abcabcabc"], params)
        runs[drafts] = output.token_ids, len(llm.trace.steps), llm.engine_core.runner.num_accepted
    assert runs[0][0] == runs[4][0] and runs[4][2] > 10 and runs[4][1] < runs[0][1] - 10, runs
