"""A model ready to run, from its name. Knows the cache's layout; knows no request and no step. Chapter 14.

A GGUF file is decoded once; from then on the cache holds what a folder on Hugging Face's hub would:

    <cache>/smollm2-135m-b179c9523d0e/
        config.json  tokenizer.json  tokenizer_config.json  chat_template.jinja
        model-float32.safetensors    (mapped into memory at each start: nothing is read until it is used)
"""

import logging
import sys
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from mini_vllm.errors import ConfigError, CorruptModelFileError, MissingDependencyError
from mini_vllm.loaders.cache_folder import default_cache_folder, locked, make_folder, written_atomically
from mini_vllm.loaders.checksum import remembered_sha256
from mini_vllm.loaders.fetch import fetch, model_folder
from mini_vllm.loaders.gguf import GGUFFile
from mini_vllm.loaders.hf_folder import HFFolder
from mini_vllm.loaders.known_models import MODELS
from mini_vllm.loaders.llama_gguf import gguf_config, llama_weights
from mini_vllm.models.config import ModelConfig, item_bytes
from mini_vllm.models.hf_config import config_from_json, config_to_json
from mini_vllm.models.llama import LlamaForCausalLM
from mini_vllm.tokenization.chat_template import ChatTemplate
from mini_vllm.tokenization.tokenizer import Tokenizer

try:
    import safetensors
    from safetensors.torch import save_file
except ImportError as error:
    raise MissingDependencyError("loading a model needs `safetensors`: pip install safetensors") from error

DTYPES = ("float32", "bfloat16", "float16")
_CACHE_FORMAT = "1"  # raise it when the conversion changes: older files are then made anew
_LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class LoadedModel:
    """A model and what belongs to it. chat_template is None for a model that was not trained to chat.

    path: the GGUF file or the folder that it came from. folder: where its files lie ready for use.
    end_token_ids: tokens that end an answer beside the tokenizer's own end token.
    """

    name: str
    model: LlamaForCausalLM = field(repr=False)
    config: ModelConfig
    tokenizer: Tokenizer
    chat_template: ChatTemplate | None
    path: Path
    folder: Path
    end_token_ids: tuple[int, ...] = ()


def load_model(
    name_or_path: str | Path,
    dtype: str | torch.dtype = "float32",
    *,
    device: str | torch.device = "cpu",
    cache_dir: str | Path | None = None,
    progress: bool = True,
) -> LoadedModel:
    """Fetch (see `fetch`), decode once, map, and hand over the model with its tokenizer.

    A folder as on Hugging Face's hub is read as it is; weights of another dtype are converted in memory.
    dtype: float32, bfloat16 or float16. On "cpu" the weights stay in the mapped file, read-only by agreement.
    Raises UnknownModelError, DownloadError, CorruptModelFileError, ConfigError (dtype).
    """
    dtype_name = str(dtype).removeprefix("torch.")
    if dtype_name not in DTYPES:
        raise ConfigError(f"dtype {dtype_name!r} is not one of {', '.join(DTYPES)}")
    cache = Path(cache_dir).expanduser() if cache_dir else default_cache_folder()
    path = fetch(name_or_path, cache_dir=cache, progress=progress)
    if path.is_dir():
        return _load_folder(path, getattr(torch, dtype_name), device)
    known = MODELS.get(str(name_or_path))
    name = known.name if known else path.stem
    sha256 = known.gguf_sha256 if known else remembered_sha256(path, cache)
    converted = ConvertedModel(path, model_folder(cache, name, sha256), sha256, progress)
    config, tokenizer, template = converted.config_and_tokenizer()
    model = converted.model(config, getattr(torch, dtype_name), device)
    return LoadedModel(name, model, config, tokenizer, template, path, converted.folder)


def _load_folder(path: Path, dtype: torch.dtype, device: str | torch.device) -> LoadedModel:
    folder = HFFolder(path)
    tokenizer = folder.tokenizer()
    weights = folder.weights(dtype, device)  # before the model: it refuses more layers than there are tensors
    model = LlamaForCausalLM(folder.config, dtype).load_weights(weights)
    name, template, ends = path.resolve().name, folder.chat_template(tokenizer), folder.end_token_ids()
    return LoadedModel(name, model, folder.config, tokenizer, template, path, path, ends)


class ConvertedModel:
    """The cache folder of one GGUF file. A file that is missing or broken is made again from the GGUF."""

    def __init__(self, gguf_path: Path, folder: Path, sha256: str, progress: bool = True) -> None:
        self.gguf_path, self.folder, self.sha256 = gguf_path, folder, sha256
        self._progress = progress

    # --- the small files ---

    def config_and_tokenizer(self) -> tuple[ModelConfig, Tokenizer, ChatTemplate | None]:
        try:
            return self._read_small_files()
        except FileNotFoundError:
            pass
        except CorruptModelFileError as error:
            _LOG.warning("the cached copy is broken and is made again: %s", error)
        self._write_small_files()
        return self._read_small_files()

    def _read_small_files(self) -> tuple[ModelConfig, Tokenizer, ChatTemplate | None]:
        config = config_from_json(self._text("config.json"))
        tokenizer = Tokenizer.from_folder(self.folder)
        source = self._text("chat_template.jinja")
        return config, tokenizer, ChatTemplate(source, tokenizer) if source else None

    def _text(self, filename: str) -> str:
        try:
            return (self.folder / filename).read_text(encoding="utf-8")
        except UnicodeDecodeError as error:
            raise CorruptModelFileError(f"{self.folder / filename} is not UTF-8: {error.reason}") from error

    def _write_small_files(self) -> None:
        gguf = GGUFFile(self.gguf_path)
        config = gguf_config(gguf)
        texts = Tokenizer.from_gguf(gguf.metadata).file_texts()
        template = gguf.metadata.get("tokenizer.chat_template", "")
        if not isinstance(template, str):
            kind = type(template).__name__
            raise CorruptModelFileError(f"{self.gguf_path}: tokenizer.chat_template is {kind}, expected a string")
        texts |= {"config.json": config_to_json(config), "chat_template.jinja": template}
        make_folder(self.folder)
        for filename, text in texts.items():
            with written_atomically(self.folder / filename) as temporary:
                temporary.write_text(text, encoding="utf-8")

    # --- the weights ---

    def weights_path(self, dtype: torch.dtype) -> Path:
        return self.folder / f"model-{str(dtype).removeprefix('torch.')}.safetensors"

    def model(self, config: ModelConfig, dtype: torch.dtype, device: str | torch.device = "cpu") -> LlamaForCausalLM:
        """The model on these weights; the weights file is made first where it is missing or broken."""
        path = self.weights_path(dtype)
        make_folder(self.folder)
        try:
            return self._mapped(config, dtype, device)
        except FileNotFoundError:
            pass
        except CorruptModelFileError as error:
            _LOG.warning("the cached weights are broken and are made again: %s", error)
            path.unlink(missing_ok=True)
        with locked(self.folder):
            if not path.exists():  # else another process has just made it
                self._convert(config, dtype)
        return self._mapped(config, dtype, device)

    def _mapped(self, config: ModelConfig, dtype: torch.dtype, device: str | torch.device) -> LlamaForCausalLM:
        weights = read_weights(self.weights_path(dtype), self.sha256, device)
        return LlamaForCausalLM(config, dtype).load_weights(weights)

    def _convert(self, config: ModelConfig, dtype: torch.dtype) -> None:
        path = self.weights_path(dtype)
        # First of all: sizes that the file does not have must not pass for a disk that is too small.
        weights = llama_weights(GGUFFile(self.gguf_path), config, dtype)
        n_bytes = sum(_product(shape) for shape in config.tensor_shapes().values()) * item_bytes(dtype)
        if self._progress:
            print(f"decoding {self.gguf_path.name} once to {path} ({n_bytes / 1e6:.0f} MB)", file=sys.stderr)
        make_folder(self.folder, free_bytes=n_bytes)
        with written_atomically(path) as temporary:
            # "format" is what Hugging Face's own loader wants to find.
            about = {"format": "pt", "mini_vllm_format": _CACHE_FORMAT, "source_sha256": self.sha256}
            save_file(dict(weights), temporary, metadata=about)
            temporary.chmod(0o644)  # the library makes it readable by this user only; a class shares a cache


def read_weights(path: Path, source_sha256: str, device: str | torch.device = "cpu") -> dict[str, Tensor]:
    """The tensors of a weights file that `load_model` wrote, mapped (on "cpu") or copied to `device`.

    Checks length, header and origin; that takes a millisecond. It does not read the numbers, so a bit that
    flipped on the disk goes unnoticed. Raises FileNotFoundError or CorruptModelFileError.
    """
    if not path.exists():
        raise FileNotFoundError(path)
    try:
        with safetensors.safe_open(path, framework="pt", device=str(device)) as file:
            about = file.metadata() or {}
            origin = (about.get("mini_vllm_format"), about.get("source_sha256"))
            if origin != (_CACHE_FORMAT, source_sha256):
                raise CorruptModelFileError(
                    f"{path} was made in format {origin[0]} from {origin[1]}, expected {_CACHE_FORMAT} from "
                    f"{source_sha256}"
                )
            return {name: file.get_tensor(name) for name in file.keys()}
    except (safetensors.SafetensorError, OSError, ValueError) as error:
        raise CorruptModelFileError(f"{path} is not a whole safetensors file: {error}") from error


def _product(shape: tuple[int, ...]) -> int:
    product = 1
    for dim in shape:
        product *= dim
    return product
