"""What is inside a model file, in words. Knows headers; reads no weights. Chapter 14."""

from collections import Counter
from pathlib import Path

from mini_vllm.loaders.fetch import fetch
from mini_vllm.loaders.gguf import GGUFFile
from mini_vllm.loaders.hf_folder import HFFolder
from mini_vllm.loaders.llama_gguf import gguf_config


def describe(name_or_path: str | Path) -> str:
    """A short report: shape of the model, tensors by quantisation type, what one token of KV costs."""
    path = fetch(name_or_path)
    if path.is_dir():
        folder = HFFolder(path)
        cfg, kinds = folder.config, folder.kinds()
        num_bytes = sum(file.stat().st_size for file in set(folder.files().values()))
    else:
        gguf = GGUFFile(path)
        cfg = gguf_config(gguf)
        kinds = Counter(tensor.storage.name for tensor in gguf.tensors.values())
        num_bytes = path.stat().st_size
    variant = [name for name, has in (("q/k/v biases", cfg.qkv_bias), ("q/k norms", cfg.qk_norm)) if has]
    if cfg.sliding_window:
        variant.append(f"sliding window of {cfg.sliding_window:,} tokens")
    if cfg.rope_scaling:
        variant.append(f"rope stretched {cfg.rope_scaling.factor:g} times")
    group = cfg.num_attention_heads // cfg.num_key_value_heads
    return "\n".join(
        [
            f"{path} ({num_bytes:,} bytes)",
            f"layers {cfg.num_hidden_layers}, hidden {cfg.hidden_size}, ffn {cfg.intermediate_size}, "
            f"vocabulary {cfg.vocab_size:,}, context {cfg.max_position_embeddings:,}",
            f"attention: {cfg.num_attention_heads} query heads on {cfg.num_key_value_heads} KV heads "
            f"({group} share one), {cfg.head_dim} wide",
            f"tied embeddings: {'yes' if cfg.tie_word_embeddings else 'no'}; "
            f"beyond plain Llama: {', '.join(variant) or 'nothing'}",
            "tensors: " + ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items())),
            f"KV cache: {cfg.kv_bytes_per_token('bfloat16'):,} bytes a token in bfloat16, "
            f"{cfg.kv_bytes_per_token('float32'):,} in float32",
        ]
    )
