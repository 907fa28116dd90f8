"""The MLX port: Apple silicon, and Linux CPUs. Every public name of the course, in one place."""

from functools import partial

from tiny_llm_engine.arrays.mlx import kv_pools
from tiny_llm_engine.arrays.mlx.kv_pools import TinyKvPagedPool
from tiny_llm_engine.arrays.mlx.masks import length_mask
from tiny_llm_engine.arrays.mlx.paged_kv_cache import TinyKvPagedCache
from tiny_llm_engine.solutions.later import imported_later

from .attention import (
    SimpleMultiHeadAttention,
    causal_mask,
    scaled_dot_product_attention_grouped,
    scaled_dot_product_attention_simple,
)
from .basics import Embedding, PackedEmbedding, RMSNorm, embedding_of, linear, linear_layer, silu, softmax
from .batching_kv_cache import BatchingKvCache, create_batch_cache
from .chunked_attention_mask import chunked_attention_mask
from .concatenated_kv_cache import ConcatenatedKvCache
from .device_kernels import KERNELS as KERNELS  # to which it has added the sets of Days 2.4 and 2.5
from .fill_placeholders import fill_placeholders
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
from .kv_cache import TinyKvCache, TinyKvFullCache
from .packed_attention import (
    PackedMask,
    PastPages,
    merge_rows,
    own_statistics,
    packed_attention,
    packed_mask,
    segment_mask,
)
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
from .quantize import (
    dequantize_weights,
    numbers_to_words,
    quantize_weights,
    quantized_matmul_tiled,
    words_to_numbers,
)
from .quantized_kv import attend_quantized, quantize_rows, rounding_error
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
from .qwen3_week1 import Qwen3ModelWeek1, Qwen3TransformerBlock
from .qwen3_week2 import Qwen3LayerWeek2, Qwen3MLPWeek2, Qwen3ModelWeek2, Step
from .qwen3_week3 import PackedStep, Qwen3LayerWeek3, Qwen3ModelWeek3
from .rope import RoPE
from .router import combine_experts, route, sort_by_expert
from .sampler import make_sampler

create_kv_pools = partial(kv_pools.create_kv_pools, quantize_rows=quantize_rows)

__getattr__ = imported_later(
    __name__,
    {
        "..native": "NATIVE",
        ".expert_parallel": "run_on_ranks",
        ".grouped_product": "grouped_matmul grouped_product_by_expert",
        ".mixture": "ExpertParallelMixture MixtureOfExperts SummedMixture mlp_of stack_experts",
        ".pipeline_stage": "PipelineStage",
        ".received_rows": "adopt_row",
        ".tensor_parallel": (
            "Qwen3ModelTensorParallel RowParallelLinear VocabParallelEmbedding gather_logits sum_over_ranks"
        ),
    },
)
