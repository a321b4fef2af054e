"""One tiny configuration of each variant of Llama that the forward pass computes. Chapter 14."""

from dataclasses import replace

from mini_vllm.models.config import ModelConfig, RopeScaling

TINY = ModelConfig.tiny()
# Short enough that 50 positions cover all three parts of the stretch.
LLAMA3 = RopeScaling(factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=256)
VARIANTS = {
    "llama": TINY,
    "llama, tied": replace(TINY, tie_word_embeddings=True),
    "llama 3.1": replace(TINY, rope_scaling=LLAMA3, rope_theta=500_000.0),
    "qwen2": replace(TINY, qkv_bias=True),
    "qwen3": replace(TINY, qk_norm=True, head_dim=16, tie_word_embeddings=True, rms_norm_eps=1e-6),
}
