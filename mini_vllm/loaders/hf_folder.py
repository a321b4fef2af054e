"""A model folder as Hugging Face's hub lays it out. Knows safetensors, whole or in shards; never pickle. Chapter 14."""

import json
import logging
from collections import Counter
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mini_vllm.errors import CorruptModelFileError, MissingDependencyError, UnknownModelError
from mini_vllm.models.config import ModelConfig
from mini_vllm.models.hf_config import config_from_json
from mini_vllm.tokenization.chat_template import ChatTemplate
from mini_vllm.tokenization.tokenizer import Tokenizer

try:
    import safetensors
except ImportError as error:
    raise MissingDependencyError("loading a model needs `safetensors`: pip install safetensors") from error

_WHOLE, _INDEX = "model.safetensors", "model.safetensors.index.json"
_FLOATS = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
_NOT_NEEDED = ("rotary_emb.inv_freq",)  # that some files carry for nothing: they follow from the configuration
_EMBEDDING, _HEAD = "model.embed_tokens.weight", "lm_head.weight"
_LOG = logging.getLogger(__name__)


class HFFolder:
    """config.json, tokenizer.json, tokenizer_config.json and *.safetensors in one folder.

    Raises UnknownModelError for a folder that is no model at all, CorruptModelFileError for one that is not whole.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        if not (self.folder / "config.json").is_file():
            raise UnknownModelError(
                f"{self.folder} holds no config.json. A model folder has config.json, tokenizer.json, "
                f"tokenizer_config.json and {_WHOLE} (or its shards and {_INDEX})."
            )
        self.config: ModelConfig = config_from_json(self._text("config.json"), str(self.folder / "config.json"))

    def tokenizer(self) -> Tokenizer:
        try:
            return Tokenizer.from_folder(self.folder)
        except FileNotFoundError as error:
            raise CorruptModelFileError(f"{self.folder} holds no {Path(error.filename).name}") from error

    def chat_template(self, tokenizer: Tokenizer) -> ChatTemplate | None:
        """From chat_template.jinja, else from tokenizer_config.json (where several are named, the "default")."""
        if (self.folder / "chat_template.jinja").is_file():
            source: Any = self._text("chat_template.jinja")
        else:
            source = tokenizer.settings.get("chat_template")
        if isinstance(source, list):
            named = {entry.get("name"): entry.get("template") for entry in source if isinstance(entry, dict)}
            source = named.get("default")
        return ChatTemplate(source, tokenizer) if isinstance(source, str) and source else None

    def end_token_ids(self) -> tuple[int, ...]:
        """Every token that ends an answer, as generation_config.json lists them; chat models often have several."""
        if not (self.folder / "generation_config.json").is_file():
            return ()
        listed = self._json("generation_config.json").get("eos_token_id")
        ids = listed if isinstance(listed, list) else [listed]
        return tuple(i for i in ids if isinstance(i, int) and 0 <= i < self.config.vocab_size)

    # --- weights ---

    def files(self) -> dict[str, Path]:
        """Tensor name → the file that holds it."""
        if (self.folder / _INDEX).is_file():
            listed = self._json(_INDEX).get("weight_map")
            if not isinstance(listed, dict) or not all(isinstance(f, str) for f in listed.values()):
                raise CorruptModelFileError(f"{self.folder / _INDEX} has no weight_map of tensor names and file names")
            if strange := [f for f in listed.values() if Path(f).name != f]:
                raise CorruptModelFileError(f"{self.folder / _INDEX} names a file outside the folder: {strange[0]!r}")
            shards = {name: self.folder / shard for name, shard in listed.items()}
            if missing := sorted({path.name for path in shards.values() if not path.is_file()}):
                raise CorruptModelFileError(
                    f"{self.folder} lacks {len(missing)} of its {len(set(shards.values()))} shards: "
                    f"{', '.join(missing[:8])}. Fetch them, or the whole folder again."
                )
            return shards
        if not (self.folder / _WHOLE).is_file():
            pickled = sorted(path.name for path in self.folder.glob("*.bin")) + sorted(
                path.name for path in self.folder.glob("*.pt*")
            )
            why = f" {pickled[0]} is a pickle, which can run any code and is never loaded." if pickled else ""
            raise CorruptModelFileError(f"{self.folder} holds neither {_WHOLE} nor {_INDEX}.{why}")
        path = self.folder / _WHOLE
        with _opened(path) as file:
            return dict.fromkeys(file.keys(), path)

    def weights(self, dtype: torch.dtype, device: str | torch.device = "cpu") -> dict[str, Tensor]:
        """Every tensor as `dtype`: mapped from the file where that is its own dtype, else converted.

        Surplus tensors are left to `load_weights`, which names them; a tied head that is stored all the same is
        left out, with a warning if it is not the embedding.
        """
        files = self.files()
        self.config.refuse_more_layers_than(files, str(self.folder / "config.json"))
        weights: dict[str, Tensor] = {}
        for path in sorted(set(files.values())):
            with _opened(path, device) as file:
                held = set(file.keys())
                wanted = [name for name, where in files.items() if where == path and not self._is_not_needed(name)]
                if lost := [name for name in wanted if name not in held]:
                    raise CorruptModelFileError(f"{path} does not hold {lost[0]}, which the index says it does")
                for name in wanted:
                    weight = file.get_tensor(name)
                    if weight.dtype not in _FLOATS:
                        raise CorruptModelFileError(
                            f"{path}: {name} is {weight.dtype}; mini_vllm computes with unquantised weights"
                        )
                    weights[name] = weight.to(dtype)
        self._warn_of_another_head(files, weights.get(_EMBEDDING))
        return weights

    def _warn_of_another_head(self, files: dict[str, Path], embedding: Tensor | None) -> None:
        if not self.config.tie_word_embeddings or _HEAD not in files or embedding is None:
            return
        with _opened(files[_HEAD], embedding.device) as file:
            if _HEAD in file.keys() and not torch.equal(file.get_tensor(_HEAD).to(embedding.dtype), embedding):
                _LOG.warning(
                    "%s: config.json ties the output head to the embedding, but %s holds a %s that differs from %s: it "
                    "is not used. If the model was trained with a head of its own, set tie_word_embeddings to false",
                    *(self.folder, files[_HEAD].name, _HEAD, _EMBEDDING),
                )

    def kinds(self) -> Counter[str]:
        """How many tensors there are of each dtype; reads headers only."""
        files, kinds = self.files(), Counter[str]()
        for path in set(files.values()):
            with _opened(path) as file:
                kinds.update(file.get_slice(name).get_dtype() for name in file.keys())
        return kinds

    def _is_not_needed(self, name: str) -> bool:
        return name.endswith(_NOT_NEEDED) or (name == _HEAD and self.config.tie_word_embeddings)

    # --- small files ---

    def _text(self, filename: str) -> str:
        try:
            return (self.folder / filename).read_text(encoding="utf-8")
        except UnicodeDecodeError as error:
            raise CorruptModelFileError(f"{self.folder / filename} is not UTF-8: {error.reason}") from error

    def _json(self, filename: str) -> dict:
        try:
            content = json.loads(self._text(filename))
        except ValueError as error:
            raise CorruptModelFileError(f"{self.folder / filename} is no JSON: {error}") from error
        if not isinstance(content, dict):
            raise CorruptModelFileError(f"{self.folder / filename} holds a {type(content).__name__}, not an object")
        return content


class _opened:
    """`with _opened(path) as file`: a safetensors file; every way in which one can be broken is one error."""

    def __init__(self, path: Path, device: str | torch.device = "cpu") -> None:
        self.path, self.device = path, device

    def __enter__(self) -> Any:
        try:
            self.file = safetensors.safe_open(self.path, framework="pt", device=str(self.device))
            return self.file.__enter__()
        except (safetensors.SafetensorError, OSError, ValueError) as error:
            raise CorruptModelFileError(
                f"{self.path} is not a whole safetensors file ({self.path.stat().st_size:,} bytes): {error}. "
                "Fetch it again."
            ) from error

    def __exit__(self, *exc_info: Any) -> None:
        self.file.__exit__(*exc_info)
