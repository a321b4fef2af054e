"""Reads a GGUF file: metadata, tensor table, weights. Knows the file format; knows no model. Chapter 14.

    magic "GGUF" | version | n_tensors | n_metadata | metadata … | tensor table … | padding | tensor data …

Nothing in the file is trusted: each count, length and offset is checked against the bytes that are there.
"""

import mmap
import struct
from dataclasses import dataclass
from pathlib import Path

import torch

from mini_vllm.errors import CorruptModelFileError
from mini_vllm.loaders.quantization import OTHER_TYPE_NAMES, STORAGE_TYPES, StorageType, dequantize

_WAY_OUT = "Fetch it again (`mini-vllm fetch smollm2-135m --force`, or download your own file anew)."
_MAX_DIMS = 4  # GGUF's own limit
_MAX_ALIGNMENT = 1 << 20  # bytes
_MAX_NESTING = 4  # arrays within arrays; real files have none
_MIN_KEY_VALUE_BYTES = 8 + 1 + 4 + 1
_MIN_TENSOR_ENTRY_BYTES = 8 + 1 + 4 + 8 + 4 + 8
_STRING, _ARRAY = 8, 9
_NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}


@dataclass(frozen=True)
class TensorEntry:
    """A row of the tensor table. `shape` is in torch's order (GGUF stores it reversed); `start` in bytes."""

    name: str
    shape: tuple[int, ...]
    storage: StorageType
    start: int
    n_bytes: int


class GGUFFile:
    """A GGUF file, mapped into memory.

    metadata: dict from key to int, float, bool, str or list. tensors: dict from name to TensorEntry.
    Raises CorruptModelFileError for anything that is not a whole GGUF file of a supported kind.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        with open(self.path, "rb") as file:
            size = self.path.stat().st_size
            if size == 0:
                raise self._corrupt("the file is empty")
            # ACCESS_COPY: torch warns about read-only buffers. Nothing writes, so nothing is ever copied.
            self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
        self._size = len(self._map)
        self._at = 0
        self.version, n_tensors, n_metadata = self._read_head()
        self.metadata = self._read_metadata(n_metadata)
        self.tensors = self._read_tensor_table(n_tensors)
        self._bytes = torch.frombuffer(self._map, dtype=torch.uint8)

    def tensor(self, name: str, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """The weights of `name` as a new tensor of `dtype`. Raises KeyError for a name that is not there."""
        entry = self.tensors[name]
        raw = self._bytes[entry.start : entry.start + entry.n_bytes]
        return dequantize(raw, entry.storage, dtype).view(entry.shape)

    # --- the four parts of the file, in order ---

    def _read_head(self) -> tuple[int, int, int]:
        magic = bytes(self._map[:4])
        if magic != b"GGUF":
            raise self._corrupt(f"it starts with {magic!r}, a GGUF file starts with b'GGUF'")
        self._at = 4
        version = self._number("I", "the format version")
        if version not in (2, 3):
            hint = " (the file is big-endian)" if version in (2 << 24, 3 << 24) else ""
            raise self._corrupt(f"GGUF version {version}{hint}; versions 2 and 3 can be read")
        n_tensors = self._number("Q", "the number of tensors")
        n_metadata = self._number("Q", "the number of metadata entries")
        self._check_count(n_tensors, _MIN_TENSOR_ENTRY_BYTES, "tensors")
        self._check_count(n_metadata, _MIN_KEY_VALUE_BYTES, "metadata entries")
        return version, n_tensors, n_metadata

    def _read_metadata(self, count: int) -> dict[str, object]:
        metadata: dict[str, object] = {}
        for index in range(count):
            key = self._string(f"the key of metadata entry {index}")
            if key in metadata:
                raise self._corrupt(f"metadata key {key!r} occurs twice")
            metadata[key] = self._value(self._number("I", f"the type of {key}"), key)
        return metadata

    def _read_tensor_table(self, count: int) -> dict[str, TensorEntry]:
        rows: list[tuple[str, tuple[int, ...], int, int]] = []
        for index in range(count):
            name = self._string(f"the name of tensor {index}")
            n_dims = self._number("I", f"the rank of {name}")
            if not 1 <= n_dims <= _MAX_DIMS:
                raise self._corrupt(f"tensor {name!r} has {n_dims} dimensions; 1 to {_MAX_DIMS} are possible")
            dims = self._numbers("Q", n_dims, f"the shape of {name}")
            type_id = self._number("I", f"the type of {name}")
            rows.append((name, dims[::-1], type_id, self._number("Q", f"the offset of {name}")))
        alignment = self.metadata.get("general.alignment", 32)
        if not isinstance(alignment, int) or alignment % 8 or not 8 <= alignment <= _MAX_ALIGNMENT:
            limits = f"a multiple of 8 up to {_MAX_ALIGNMENT:,}"
            raise self._corrupt(f"general.alignment is {alignment!r}; expected {limits}")
        data_start = -(-self._at // alignment) * alignment
        table: dict[str, TensorEntry] = {}
        for name, shape, type_id, offset in rows:
            if name in table:
                raise self._corrupt(f"tensor {name!r} occurs twice in the table")
            if offset % alignment:
                raise self._corrupt(f"tensor {name!r} starts at {offset:,}, not at a multiple of {alignment}")
            table[name] = self._entry(name, shape, type_id, data_start + offset)
        return table

    def _entry(self, name: str, shape: tuple[int, ...], type_id: int, start: int) -> TensorEntry:
        storage = STORAGE_TYPES.get(type_id)
        if storage is None:
            known = ", ".join(known.name for known in STORAGE_TYPES.values())
            found = OTHER_TYPE_NAMES.get(type_id, f"an unknown type (number {type_id})")
            raise CorruptModelFileError(
                f"{self.path}: tensor {name!r} is stored as {found}; mini_vllm reads {known}. "
                "Take a file of the model in one of these, for example its Q8_0 or Q4_0 version."
            )
        n_weights = 1
        for dim in shape:
            n_weights *= dim
        if n_weights == 0 or shape[-1] % storage.block_size:
            raise self._corrupt(
                f"tensor {name!r} has shape {list(shape)}; {storage.name} needs rows of a positive multiple "
                f"of {storage.block_size} weights"
            )
        n_bytes = n_weights // storage.block_size * storage.block_bytes
        if start + n_bytes > self._size:
            present = max(0, self._size - start)
            raise self._corrupt(
                f"tensor {name!r} should take {n_bytes:,} bytes from byte {start:,} on, but the file has "
                f"{self._size:,} bytes, so {present:,} of them"
            )
        return TensorEntry(name, shape, storage, start, n_bytes)

    # --- single values ---

    def _value(self, type_id: int, key: str, nesting: int = 0) -> object:
        if type_id == _STRING:
            return self._string(key)
        if type_id != _ARRAY:
            return self._number(self._number_code(type_id, key), key)
        element_type = self._number("I", f"the element type of {key}")
        count = self._number("Q", f"the length of {key}")
        if element_type == _STRING:
            self._check_count(count, 8, f"strings in {key}")
            return self._strings(count, key)
        if element_type == _ARRAY:
            if nesting >= _MAX_NESTING:
                raise self._corrupt(f"metadata {key!r} nests arrays more than {_MAX_NESTING} deep")
            self._check_count(count, 12, f"arrays in {key}")
            return [self._value(_ARRAY, key, nesting + 1) for _ in range(count)]
        code = self._number_code(element_type, key)
        self._check_count(count, struct.calcsize(code), f"values in {key}")
        return list(self._numbers(code, count, key))

    def _number_code(self, type_id: int, key: str) -> str:
        if type_id not in _NUMBERS:
            raise self._corrupt(f"metadata {key!r} has the unknown value type {type_id}")
        return _NUMBERS[type_id]

    def _number(self, code: str, what: str):
        return self._numbers(code, 1, what)[0]

    def _numbers(self, code: str, count: int, what: str) -> tuple:
        layout = f"<{count}{code}"
        start = self._advance(struct.calcsize(layout), what)
        return struct.unpack_from(layout, self._map, start)

    def _string(self, what: str) -> str:
        length = self._number("Q", f"the length of {what}")
        start = self._advance(length, what)
        return self._text(start, start + length, what)

    def _strings(self, count: int, what: str) -> list[str]:
        # A vocabulary has a hundred thousand of these: one plain loop, no method call per string.
        strings: list[str] = []
        read_length, data, at, size = struct.Struct("<Q").unpack_from, self._map, self._at, self._size
        try:
            for _ in range(count):
                start = at + 8
                at = start + read_length(data, at)[0]
                if at > size:
                    raise self._truncated(start, at - start, what)
                strings.append(data[start:at].decode())
        except struct.error as error:
            raise self._truncated(at, 8, what) from error
        except UnicodeDecodeError as error:
            raise self._corrupt(f"string {len(strings)} of {what} is not UTF-8: {error.reason}") from error
        self._at = at
        return strings

    def _text(self, start: int, end: int, what: str) -> str:
        try:
            return self._map[start:end].decode()
        except UnicodeDecodeError as error:
            raise self._corrupt(f"{what} is not UTF-8: {error.reason}") from error

    # --- moving on, and what can be wrong ---

    def _advance(self, n_bytes: int, what: str) -> int:
        start = self._at
        if n_bytes > self._size - start:
            raise self._truncated(start, n_bytes, what)
        self._at = start + n_bytes
        return start

    def _check_count(self, count: int, min_bytes_each: int, what: str) -> None:
        most = (self._size - self._at) // min_bytes_each
        if count > most:
            raise self._corrupt(f"it announces {count:,} {what}; the bytes left hold {most:,} at most")

    def _truncated(self, start: int, n_bytes: int, what: str) -> CorruptModelFileError:
        return self._corrupt(
            f"{what} should take {n_bytes:,} bytes from byte {start:,} on, but it ends at {self._size:,}"
        )

    def _corrupt(self, problem: str) -> CorruptModelFileError:
        return CorruptModelFileError(f"{self.path} is not a whole GGUF file: {problem}. {_WAY_OUT}")
