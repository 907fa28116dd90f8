"""The MLX port: Apple silicon, and Linux CPUs. Every public name of the course, in one place."""

from .attention import (
    SimpleMultiHeadAttention,
    causal_mask,
    scaled_dot_product_attention_grouped,
    scaled_dot_product_attention_simple,
)
from .basics import linear, silu, softmax
from .embedding import Embedding
from .generate import simple_generate
from .quantize import (
    dequantize_weights,
    pack_numbers,
    quantize_weights,
    quantized_matmul_tiled,
    unpack_numbers,
)
from .qwen3_week1 import (
    Qwen3MLP,
    Qwen3ModelWeek1,
    Qwen3MultiHeadAttention,
    Qwen3TransformerBlock,
)
from .rms_norm import RMSNorm
from .rope import RoPE
from .sampler import make_sampler

__all__ = [
    "Embedding",
    "Qwen3MLP",
    "Qwen3ModelWeek1",
    "Qwen3MultiHeadAttention",
    "Qwen3TransformerBlock",
    "RMSNorm",
    "RoPE",
    "SimpleMultiHeadAttention",
    "causal_mask",
    "dequantize_weights",
    "linear",
    "make_sampler",
    "pack_numbers",
    "quantize_weights",
    "quantized_matmul_tiled",
    "scaled_dot_product_attention_grouped",
    "scaled_dot_product_attention_simple",
    "silu",
    "simple_generate",
    "softmax",
    "unpack_numbers",
]
