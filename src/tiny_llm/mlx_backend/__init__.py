"""The MLX port: Apple silicon, and Linux CPUs. Every public name of the course, in one place."""

from .attention import (
    SimpleMultiHeadAttention,
    causal_mask,
    scaled_dot_product_attention_grouped,
    scaled_dot_product_attention_simple,
)
from .basics import linear, silu, softmax
from .batching_kv_cache import BatchingKvCache, create_batch_cache
from .chunked_attention_mask import chunked_attention_mask
from .combine_experts import combine_experts
from .device_kernels import KERNELS as KERNELS  # to which it has added the sets of Days 2.4 and 2.5
from .embedding import Embedding, PackedEmbedding, embedding_of
from .expert_order import sort_by_expert
from .expert_parallel import run_on_ranks
from .expert_weights import ExpertMatrices, stack_experts
from .flash_attention import (
    attention_statistics,
    finish_attention,
    flash_attention,
    flash_attention_device,
    flash_attention_tiled,
    fused_attention,
    mask_tile,
    merge_attention,
)
from .generate import simple_generate
from .generate_with_kv_cache import simple_generate_with_kv_cache
from .graphs import cannot_compile, capture_step, compile_model, fixed_sizes
from .grouped_product import grouped_product, grouped_product_by_expert
from .kv_cache import TinyKvCache, TinyKvFullCache, length_mask
from .layer_mlp import mlp_of
from .linear_layer import BiasedLinear, DenseLinear, Linear, linear_layer
from .mixture import ExpertParallelMixture, MixtureOfExperts, SummedMixture
from .native import NativeMatrix
from .native_attention import DecodeRuns, attend_runs, decode_runs
from .native_quantized import NativeQuantizedMatrix
from .packed_attention import (
    PackedMask,
    PastPages,
    merge_rows,
    own_statistics,
    packed_attention,
    packed_mask,
    segment_mask,
)
from .page_attention import chunk_ways
from .paged_attention import (
    PastMask,
    block_mask,
    gather_pages,
    merge_blocks,
    paged_attention,
    paged_decode_statistics,
    paged_prompt_statistics,
    past_mask,
)
from .paged_kv_cache import TinyKvPagedCache, TinyKvPagedPool, create_kv_pools
from .pipeline_stage import PipelineStage
from .process_group import Meeting, ProcessGroup, join_launched, launched
from .products import product_ways, quantized_ways, use_native_layers, use_products
from .quantize import (
    dequantize_weights,
    numbers_to_words,
    quantize_weights,
    quantized_matmul_tiled,
    words_to_numbers,
)
from .quantized_weights import (
    QuantizedWeights,
    prepare_weights,
    quantize_matrix,
    quantized_linear,
    quantized_matmul,
    quantized_matmul_device,
)
from .qwen3_attention import Qwen3MultiHeadAttention
from .qwen3_mlp import Qwen3MLP
from .qwen3_tensor_parallel import Qwen3ModelTensorParallel
from .qwen3_week1 import Qwen3ModelWeek1, Qwen3TransformerBlock
from .qwen3_week2 import Qwen3LayerWeek2, Qwen3MLPWeek2, Qwen3ModelWeek2, Step
from .qwen3_week3 import PackedStep, Qwen3LayerWeek3, Qwen3ModelWeek3
from .rms_norm import RMSNorm
from .rope import RoPE
from .router import route
from .sampler import make_sampler
from .tensor_parallel import RowParallelLinear, VocabParallelEmbedding, gather_logits, sum_over_ranks

__all__ = [
    "BatchingKvCache",
    "BiasedLinear",
    "DecodeRuns",
    "DenseLinear",
    "Embedding",
    "ExpertMatrices",
    "ExpertParallelMixture",
    "Linear",
    "Meeting",
    "MixtureOfExperts",
    "NativeMatrix",
    "NativeQuantizedMatrix",
    "PackedEmbedding",
    "PackedMask",
    "PackedStep",
    "PastMask",
    "PastPages",
    "PipelineStage",
    "ProcessGroup",
    "QuantizedWeights",
    "Qwen3LayerWeek2",
    "Qwen3LayerWeek3",
    "Qwen3MLP",
    "Qwen3MLPWeek2",
    "Qwen3ModelTensorParallel",
    "Qwen3ModelWeek1",
    "Qwen3ModelWeek2",
    "Qwen3ModelWeek3",
    "Qwen3MultiHeadAttention",
    "Qwen3TransformerBlock",
    "RMSNorm",
    "RoPE",
    "RowParallelLinear",
    "SimpleMultiHeadAttention",
    "Step",
    "SummedMixture",
    "TinyKvCache",
    "TinyKvFullCache",
    "TinyKvPagedCache",
    "TinyKvPagedPool",
    "VocabParallelEmbedding",
    "attend_runs",
    "attention_statistics",
    "block_mask",
    "cannot_compile",
    "capture_step",
    "causal_mask",
    "chunk_ways",
    "chunked_attention_mask",
    "combine_experts",
    "compile_model",
    "create_batch_cache",
    "create_kv_pools",
    "decode_runs",
    "dequantize_weights",
    "embedding_of",
    "finish_attention",
    "fixed_sizes",
    "flash_attention",
    "flash_attention_device",
    "flash_attention_tiled",
    "fused_attention",
    "gather_logits",
    "gather_pages",
    "grouped_product",
    "grouped_product_by_expert",
    "join_launched",
    "launched",
    "length_mask",
    "linear",
    "linear_layer",
    "make_sampler",
    "mask_tile",
    "merge_attention",
    "merge_blocks",
    "merge_rows",
    "mlp_of",
    "numbers_to_words",
    "own_statistics",
    "packed_attention",
    "packed_mask",
    "paged_attention",
    "paged_decode_statistics",
    "paged_prompt_statistics",
    "past_mask",
    "prepare_weights",
    "product_ways",
    "quantize_matrix",
    "quantize_weights",
    "quantized_linear",
    "quantized_matmul",
    "quantized_matmul_device",
    "quantized_matmul_tiled",
    "quantized_ways",
    "route",
    "run_on_ranks",
    "scaled_dot_product_attention_grouped",
    "scaled_dot_product_attention_simple",
    "segment_mask",
    "silu",
    "simple_generate",
    "simple_generate_with_kv_cache",
    "softmax",
    "sort_by_expert",
    "stack_experts",
    "sum_over_ranks",
    "use_native_layers",
    "use_products",
    "words_to_numbers",
]
