"""Layer two of exactness: the real model in float32 gives transformers' tokens, alone and all together.

A first difference is excused only where transformers' own two logits lie within 1e-3 of each other, and excuses are
counted and printed. Prompts go to transformers as token ids with an attention mask: its default mask would hide every
<|im_end|> of a chat prompt.
"""

import pytest
import torch

from mini_vllm import LLM, SamplingParams

pytestmark = [pytest.mark.model, pytest.mark.timeout(1500)]  # minutes of real work, more on a busy machine

NUM_TOKENS = 64
EXCUSED_MARGIN = 1e-3
QUESTIONS = [
    "What is a queue?",
    "Name three rivers in Europe.",
    "Translate 'good morning' into French.",
    "What is 17 + 25?",
    "Write a haiku about rain.",
    "Why is the sky blue?",
    "Explain recursion to a child.",
    "Give me a recipe for pancakes.",
]
TEXTS = [
    "The capital of Italy is",
    "def fibonacci(n):\n    ",
    "Once upon a time, in a village by the sea,",
    "1, 2, 3, 5, 8, 13,",
    "Dear Sir or Madam,\n\n",
    "Ein Zug fährt um 8 Uhr in",
    "# Shopping list\n\n-",
    "The opposite of hot is",
    "import numpy as np\n\nx = np.",
    "You cannot step into the same river",
    "E = mc² says that",
    "a",
]


@pytest.fixture(scope="module")
def llm():
    return LLM(dtype="float32", max_num_seqs=20, max_num_batched_tokens=64)


@pytest.fixture(scope="module")
def prompts(llm):
    chats = [[{"role": "user", "content": text}] for text in QUESTIONS]
    encode = llm.chat_template.encode
    return [encode(chat) for chat in chats] + [llm.tokenizer.encode(text) for text in TEXTS]


@pytest.fixture(scope="module")
def peer(llm):
    """transformers' own Llama on the same weights."""
    from transformers import LlamaConfig, LlamaForCausalLM

    cfg = llm.engine_core.model.config
    names = (
        "vocab_size hidden_size intermediate_size num_hidden_layers num_attention_heads num_key_value_heads head_dim "
        "rms_norm_eps max_position_embeddings tie_word_embeddings"
    ).split()
    config = LlamaConfig(
        **{name: getattr(cfg, name) for name in names},
        rope_parameters={"rope_type": "default", "rope_theta": cfg.rope_theta},
        eos_token_id=None,
        bos_token_id=None,
        pad_token_id=0,
    )
    model = LlamaForCausalLM(config).eval()
    missing, surplus = model.load_state_dict(llm.engine_core.model.state_dict(), strict=False)
    assert set(missing) <= {"lm_head.weight"} and not surplus, (missing, surplus)
    model.tie_weights()
    return model


@pytest.fixture(scope="module")
def expected(peer, prompts):
    answers = []
    for prompt in prompts:
        ids = torch.tensor([prompt])
        with torch.inference_mode():
            out = peer.generate(
                ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=NUM_TOKENS, use_cache=True
            )
        answers.append(out[0, len(prompt) :].tolist())
    assert all(len(answer) == NUM_TOKENS for answer in answers), "the peer stopped early"
    return answers


def compare(peer, prompts, expected, outputs) -> int:
    """Assert token identity; returns the number of excused differences."""
    excused = 0
    for prompt, want, output in zip(prompts, expected, outputs, strict=True):
        got = output.token_ids
        assert len(got) == NUM_TOKENS
        at = next((i for i in range(NUM_TOKENS) if got[i] != want[i]), None)
        if at is None:
            continue
        with torch.inference_mode():
            logits = peer(torch.tensor([prompt + want[:at]])).logits[0, -1]
        margin = abs(float(logits[got[at]] - logits[want[at]]))
        assert margin < EXCUSED_MARGIN, f"token {at} is {got[at]}, transformers says {want[at]} (margin {margin:.2e})"
        excused += 1
    return excused


PARAMS = SamplingParams(max_tokens=NUM_TOKENS, ignore_eos=True)


def test_prefill_logits_equal_transformers(llm, peer, prompts):
    from tests.engine.dense_oracle import dense_logits

    for prompt in prompts[:3] + prompts[-3:]:
        with torch.inference_mode():
            want = peer(torch.tensor([prompt])).logits[0]
        torch.testing.assert_close(dense_logits(llm.engine_core.model, prompt), want, atol=2e-3, rtol=0)


def test_alone(llm, peer, prompts, expected):
    outputs = [llm.generate([prompt], PARAMS)[0] for prompt in prompts]
    print(f"\n{len(prompts)} prompts alone: {compare(peer, prompts, expected, outputs)} excused")


def test_all_together_in_one_continuous_batch(llm, peer, prompts, expected):
    outputs = llm.generate(prompts, PARAMS)
    steps = llm.trace.steps
    assert max(len(step["scheduled"]) for step in steps) == len(prompts), "they did not run together"
    mixed = [s for s in steps if {n > 1 for _, n in s["scheduled"]} == {True, False}]
    assert mixed, "no step mixed prefill and decode"
    print(f"\n{len(prompts)} prompts together: {compare(peer, prompts, expected, outputs)} excused")
