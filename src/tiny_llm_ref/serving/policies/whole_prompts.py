"""What the policies before chunked prefill have in common: a prompt is computed in one step."""

from typing import Any

from tiny_llm_common.packed_model import PackedModel

from ..batching.hybrid_scheduler import HybridScheduler
from ..blocks.block_allocator import BlockAllocator


class WholePrompts(HybridScheduler):
    """A scheduler without chunks: its budget holds the longest prompt. Options as `HybridScheduler` takes them."""

    def __init__(self, model: PackedModel, allocator: BlockAllocator, **options: Any):
        super().__init__(model, allocator, **{**options, "enable_chunked_prefill": False})
