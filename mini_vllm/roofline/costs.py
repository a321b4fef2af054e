"""FLOPs and bytes of a step, from a model's sizes. Knows no machine and no time. Chapter 2.

What is counted, and what is not:
- Linear layers: 2 FLOP for each weight and token; their weights are read once a step, however many tokens there are.
- Attention: 4 · heads · head_dim FLOP a layer for each query-key pair; keys and values of old tokens are read, of new
  ones written. GQA shrinks the bytes, not the FLOPs.
- The output head is computed for the sampled rows only. It is read in full, tied or not: the logits need all of it.
- The input embedding is looked up, not read: one row a token, next to nothing. The same goes for the norms' weights.
- Activations between the layers, RoPE and softmax are left out: a few per cent, and the caches hold most of them.
"""

from dataclasses import dataclass
from functools import cached_property

from mini_vllm.models.config import ModelConfig, item_bytes
from mini_vllm.roofline.arguments import require_instance, require_whole
from mini_vllm.roofline.step_work import StepWork


@dataclass(frozen=True, slots=True)
class StepCost:
    """FLOPs and bytes of one step, by what causes them."""

    linear_flops: int
    attention_flops: int
    head_flops: int
    weight_bytes: int
    kv_bytes: int

    @property
    def flops(self) -> int:
        return self.linear_flops + self.attention_flops + self.head_flops

    @property
    def bytes(self) -> int:
        return self.weight_bytes + self.kv_bytes

    @property
    def intensity(self) -> float:
        """Arithmetic intensity: FLOP for each byte moved."""
        return self.flops / self.bytes


@dataclass(frozen=True)
class ModelCosts:
    """Unit costs of a model whose weights and KV cache are kept in `dtype`."""

    config: ModelConfig
    dtype: str = "bfloat16"

    def __post_init__(self) -> None:
        require_instance(self.config, ModelConfig, "config")
        item_bytes(self.dtype)

    @cached_property
    def matrix_params_per_layer(self) -> int:
        """Weights of a layer's four matrices: QKV, output, gate and up, down."""
        c = self.config
        q_size, kv_size = c.num_attention_heads * c.head_dim, c.num_key_value_heads * c.head_dim
        return c.hidden_size * (2 * q_size + 2 * kv_size + 3 * c.intermediate_size)

    @cached_property
    def embedding_params(self) -> int:
        """Weights of the input embedding; the output head has as many."""
        return self.config.vocab_size * self.config.hidden_size

    @cached_property
    def total_params(self) -> int:
        """All weights that must be stored, the norms' too. A tied head is the embedding itself."""
        layers, hidden = self.config.num_hidden_layers, self.config.hidden_size
        tables = 1 if self.config.tie_word_embeddings else 2
        return layers * (self.matrix_params_per_layer + 2 * hidden) + hidden + tables * self.embedding_params

    @property
    def stored_bytes(self) -> int:
        """Memory that the weights take."""
        return self.total_params * item_bytes(self.dtype)

    @cached_property
    def kv_bytes_per_token(self) -> int:
        """Bytes that one token takes in the KV cache."""
        return self.config.kv_bytes_per_token(self.dtype)

    @cached_property
    def layer_weight_bytes(self) -> int:
        """Bytes of the layers' matrices: what every step reads."""
        return self.config.num_hidden_layers * self.matrix_params_per_layer * item_bytes(self.dtype)

    @cached_property
    def head_weight_bytes(self) -> int:
        """Bytes of the output head: what every step reads that samples."""
        return self.embedding_params * item_bytes(self.dtype)

    @property
    def linear_flops_per_token(self) -> int:
        """FLOPs of one token in the linear layers, without the head."""
        return 2 * self.config.num_hidden_layers * self.matrix_params_per_layer

    @property
    def attention_flops_per_pair(self) -> int:
        """FLOPs of one query looking at one key and its value, in all layers and heads: QKᵀ and PV, 2 FLOP each."""
        return 4 * self.config.num_hidden_layers * self.config.num_attention_heads * self.config.head_dim

    def step(self, work: StepWork) -> StepCost:
        """FLOPs and bytes of one step."""
        require_instance(work, StepWork, "work")
        return StepCost(
            linear_flops=work.new_tokens * self.linear_flops_per_token,
            attention_flops=work.attention_pairs * self.attention_flops_per_pair,
            head_flops=work.n_sampled * 2 * self.embedding_params,
            weight_bytes=(self.layer_weight_bytes if work.new_tokens else 0)
            + (self.head_weight_bytes if work.n_sampled else 0),
            kv_bytes=work.kv_tokens * self.kv_bytes_per_token,
        )

    def decode_intensity_limit(self, context: int) -> float:
        """What the arithmetic intensity of decode tends to as the batch grows: the weights are shared, KV is not."""
        require_whole(context, "context", least=1)
        one = self.step(StepWork.decode(1, context))
        return one.flops / one.kv_bytes

    @property
    def tokens_equal_to_weights(self) -> float:
        """Resident tokens whose KV is as many bytes as the weights that a decode step reads.

        Far below this number a bigger batch is free; at it a step takes twice as long.
        """
        return (self.layer_weight_bytes + self.head_weight_bytes) / self.kv_bytes_per_token
