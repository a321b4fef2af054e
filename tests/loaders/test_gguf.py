"""The GGUF reader against the reference library, and against broken files. Chapter 14."""

import random
import struct
import time

import pytest
import torch

from mini_vllm.errors import CorruptModelFileError
from mini_vllm.loaders.gguf import GGUFFile
from mini_vllm.loaders.quantization import STORAGE_TYPES, dequantize


def assert_equal_to_reference(path):
    gguf = pytest.importorskip("gguf")
    reference, ours = gguf.GGUFReader(str(path)), GGUFFile(path)
    for key, found in ours.metadata.items():
        assert found == reference.fields[key].contents()
    assert set(ours.metadata) == {key for key in reference.fields if not key.startswith("GGUF.")}
    assert list(ours.tensors) == [tensor.name for tensor in reference.tensors]
    for tensor in reference.tensors:
        expected = torch.from_numpy(gguf.dequantize(tensor.data, tensor.tensor_type).copy())
        found = ours.tensor(tensor.name)
        assert found.shape == expected.shape
        assert torch.equal(found.view(torch.int32), expected.view(torch.int32)), tensor.name


def test_small_file_equals_reference_bit_by_bit(tiny_gguf):
    assert_equal_to_reference(tiny_gguf)


@pytest.mark.model
def test_real_file_equals_reference_bit_by_bit():
    from mini_vllm.loaders.fetch import fetch

    assert_equal_to_reference(fetch("smollm2-135m"))


@pytest.mark.model
def test_vocabulary_is_read_fast():
    from mini_vllm.loaders.fetch import fetch

    path = fetch("smollm2-135m")
    GGUFFile(path)
    start = time.process_time()
    GGUFFile(path)
    assert time.process_time() - start < 0.5


def test_q4_1_block_by_hand():
    # scale 0.5, minimum -1; byte 0x21 holds weight 0 (low half, 1) and weight 16 (high half, 2)
    block = struct.pack("<ee", 0.5, -1.0) + bytes([0x21]) + bytes(15)
    weights = dequantize(torch.frombuffer(bytearray(block), dtype=torch.uint8), STORAGE_TYPES[3], torch.float32)
    assert weights[0] == -0.5 and weights[16] == 0.0 and weights[1] == -1.0


def test_other_dtypes_are_the_float32_values_rounded(tiny_gguf):
    file = GGUFFile(tiny_gguf)
    for name in file.tensors:
        for dtype in (torch.bfloat16, torch.float16, torch.float64):
            assert torch.equal(file.tensor(name, dtype), file.tensor(name).to(dtype))


def test_every_value_type(tmp_path):
    gguf = pytest.importorskip("gguf")
    path = tmp_path / "values.gguf"
    writer = gguf.GGUFWriter(str(path), "llama")
    for kind, value in (
        ("uint8", 200),
        ("int8", -3),
        ("uint16", 60000),
        ("int16", -30000),
        ("uint32", 1 << 31),
    ):
        getattr(writer, f"add_{kind}")(kind, value)
    for kind, value in (("int32", -7), ("uint64", 1 << 63), ("int64", -(1 << 62)), ("float32", 0.25)):
        getattr(writer, f"add_{kind}")(kind, value)
    writer.add_float64("float64", 0.1)
    writer.add_bool("bool", True)
    writer.add_string("string", "naïve 🙂")
    writer.add_array("list", [1, 2, 3])
    writer.add_array("words", ["a", "", "ü"])
    writer.add_array("nested", [[1, 2], [3]])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    found = GGUFFile(path).metadata
    assert found["uint64"] == 1 << 63 and found["int64"] == -(1 << 62) and found["int8"] == -3
    assert found["float64"] == 0.1 and found["bool"] is True and found["string"] == "naïve 🙂"
    assert (found["list"], found["words"], found["nested"]) == ([1, 2, 3], ["a", "", "ü"], [[1, 2], [3]])


# --- broken files, made by hand: name(metadata), name(tensor) are small builders ---


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value.encode())) + value.encode()


def head(n_tensors=0, n_metadata=0, version=3) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", version, n_tensors, n_metadata)


def entry(name="t", dims=(32,), type_id=0, offset=0, n_dims=None) -> bytes:
    rank = len(dims) if n_dims is None else n_dims
    return text(name) + struct.pack(f"<I{len(dims)}QIQ", rank, *dims, type_id, offset)


def padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % 32)


BROKEN = {
    "empty": (b"", "empty"),
    "magic": (b"PK\3\4" + bytes(40), "starts with b'PK"),
    "version": (head(version=1), "version 1"),
    "big-endian": (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "big-endian"),
    "short head": (b"GGUF\3\0", "format version"),
    "absurd tensors": (head(n_tensors=1 << 60) + bytes(100), "tensors"),
    "absurd metadata": (head(n_metadata=1 << 60) + bytes(100), "metadata entries"),
    "absurd key": (head(0, 1) + struct.pack("<Q", 1 << 62) + bytes(20), "key of metadata entry 0"),
    "absurd list": (head(0, 1) + text("k") + struct.pack("<IIQ", 9, 4, 1 << 61) + bytes(8), "values in k"),
    "absurd strings": (
        head(0, 1) + text("k") + struct.pack("<IIQ", 9, 8, 1 << 61) + bytes(8),
        "strings in k",
    ),
    "string too long": (head(0, 1) + text("k") + struct.pack("<IIQQ", 9, 8, 1, 99), "99 bytes"),
    "unknown type": (head(0, 1) + text("k") + struct.pack("<I", 77) + bytes(9), "value type 77"),
    "deep": (head(0, 1) + text("k") + struct.pack("<I", 9) + struct.pack("<IQ", 9, 1) * 50, "deep"),
    "not UTF-8": (head(0, 1) + struct.pack("<Q", 2) + b"\xff\xfe" + bytes(20), "UTF-8"),
    "key twice": (head(0, 2) + (text("k") + struct.pack("<IB", 0, 1)) * 2 + bytes(9), "twice"),
    "rank 0": (head(1) + entry(dims=(), n_dims=0) + bytes(64), "0 dimensions"),
    "rank 9": (head(1) + entry(n_dims=9) + bytes(64), "9 dimensions"),
    "no weights": (padded(head(1) + entry(dims=(0,))), "positive multiple"),
    "half a block": (padded(head(1) + entry(dims=(33,), type_id=8)) + bytes(99), "multiple of 32"),
    "cut tensor": (padded(head(1) + entry()) + bytes(100), "128 bytes.*so 100 of them"),
    "offset beyond": (padded(head(1) + entry(offset=1 << 50)) + bytes(128), "so 0 of them"),
    "crooked offset": (padded(head(1) + entry(offset=3)) + bytes(160), "multiple of 32"),
    "alignment": (
        head(0, 1) + text("general.alignment") + struct.pack("<II", 4, 0),
        "general.alignment is 0",
    ),
    "tensor twice": (padded(head(2) + entry() * 2) + bytes(128), "twice"),
}


@pytest.mark.parametrize("what", BROKEN)
def test_broken_file_says_what_is_wrong(tmp_path, what):
    data, message = BROKEN[what]
    path = tmp_path / "broken.gguf"
    path.write_bytes(data)
    with pytest.raises(CorruptModelFileError, match=message) as caught:
        GGUFFile(path)
    assert str(path) in str(caught.value) and "--force" in str(caught.value)


def test_unsupported_quantisation_is_named(tmp_path):
    path = tmp_path / "k.gguf"
    path.write_bytes(padded(head(1) + entry("blk.0.ffn_up.weight", (256,), 14)) + bytes(256))
    with pytest.raises(CorruptModelFileError, match=r"'blk.0.ffn_up.weight' is stored as Q6_K.*Q8_0"):
        GGUFFile(path)


def read_all(path):
    file = GGUFFile(path)
    for name in file.tensors:
        file.tensor(name)


def test_any_truncation_is_a_named_error(tiny_gguf, tmp_path):
    data, rng = tiny_gguf.read_bytes(), random.Random(1)
    path = tmp_path / "cut.gguf"
    for length in [*range(0, 60), *(rng.randrange(len(data) - 1) for _ in range(60)), len(data) - 1]:
        path.write_bytes(data[:length])
        with pytest.raises(CorruptModelFileError):
            read_all(path)


def test_flipped_bytes_are_a_named_error_or_harmless(tiny_gguf, tmp_path):
    data, rng = tiny_gguf.read_bytes(), random.Random(2)
    path = tmp_path / "flipped.gguf"
    table_end = 12_000  # metadata and tensor table; weights may be any bytes
    refused = 0
    for _ in range(300):
        broken = bytearray(data)
        for _ in range(rng.randrange(1, 5)):
            broken[rng.randrange(4, table_end)] = rng.choice((0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)))
        path.write_bytes(broken)
        try:
            read_all(path)
        except CorruptModelFileError:
            refused += 1
    assert refused > 50


@pytest.mark.model
def test_real_file_cut_at_twelve_places(tmp_path):
    from mini_vllm.loaders.fetch import fetch

    data, rng = fetch("smollm2-135m").read_bytes(), random.Random(3)
    header = 1_785_664  # bytes before the weights
    path = tmp_path / "cut.gguf"
    for length in [rng.randrange(header) for _ in range(6)] + [rng.randrange(header, len(data)) for _ in range(6)]:
        path.write_bytes(data[:length])
        with pytest.raises(CorruptModelFileError):
            read_all(path)
