"""The tokenizer of the real model and a small one made here. Chapter 14."""

import pytest

from mini_vllm.tokenization.tokenizer import Tokenizer


@pytest.fixture(scope="session")
def small() -> Tokenizer:
    """Byte-level BPE with the 256 bytes, three special tokens and two merges; needs no file."""
    from mini_vllm.tokenization.tokenizer import _BYTE_OF

    tokens = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *sorted(_BYTE_OF), "Ġt", "he"]
    return Tokenizer.from_gguf(
        {
            "tokenizer.ggml.model": "gpt2",
            "tokenizer.ggml.pre": "smollm",
            "tokenizer.ggml.tokens": tokens,
            "tokenizer.ggml.token_type": [3, 3, 3] + [1] * (len(tokens) - 3),
            "tokenizer.ggml.merges": ["Ġ t", "h e"],
            "tokenizer.ggml.bos_token_id": 1,
            "tokenizer.ggml.eos_token_id": 2,
        }
    )


@pytest.fixture(scope="session")
def smollm2():
    """LoadedModel of the real model; mark tests that use it with pytest.mark.model."""
    from mini_vllm.loaders.weights import load_model

    return load_model("smollm2-135m", "bfloat16")


@pytest.fixture(scope="session")
def transformers_tokenizer(smollm2, tmp_path_factory):
    """What transformers makes of the same GGUF file."""
    transformers = pytest.importorskip("transformers")
    # A folder of its own: beside the file in the cache lies our tokenizer.json, which it would take instead.
    folder = tmp_path_factory.mktemp("gguf-only")
    (folder / "model.gguf").symlink_to(smollm2.path)
    return transformers.AutoTokenizer.from_pretrained(str(folder), gguf_file="model.gguf")
