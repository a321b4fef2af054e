"""A model small enough for every test, and a tokenizer to match: a token is an ASCII character. Knows no scheduler."""

from pathlib import Path

from mini_vllm.loaders.weights import LoadedModel
from mini_vllm.models.tiny import tiny_model


class Letters:
    """Ids are character codes; nothing is special, and nothing ends a text."""

    eos_token_id = None

    def encode(self, text):
        return [ord(char) for char in text]

    def decode(self, ids):
        return "".join(map(chr, ids))

    def token_bytes(self, token_id):
        return bytes([token_id])

    def is_special(self, token_id):
        return False


def tiny_loaded(seed=0):
    """What `LLM(model=…)` takes, in float64."""
    model = tiny_model(seed)
    return LoadedModel("tiny", model, model.config, Letters(), None, Path("tiny"), Path("."))
