"""Policy: what to run next, in plain Python over integers. Imports no array library."""

from .adaptive_chunker import AdaptiveChunker
from .batch import Batch
from .batch_generate import batch_generate
from .block_allocator import BlockAllocator, OutOfBlocks
from .block_table import BlockTable
from .chunk import Chunk, next_chunk
from .chunk_size import select_optimal_chunk_size
from .chunked_prefill import batch_generate_with_chunked_prefill
from .chunked_prefill_metrics import ChunkedPrefillMetrics, percentile
from .chunked_prefill_scheduler import ChunkedPrefillScheduler
from .completion import Completion
from .events import Event, Part
from .flat_blocks import FlatBlocks, flat_blocks
from .model import BatchCache, KvCache, ServingModel
from .prefix_cache import PrefixCache, block_hash
from .priority_scheduler import PriorityScheduler
from .request import Request, model_call
from .request_queue import FifoQueue, RequestQueue
from .sampling import SamplingParams
from .stop_strings import StopStrings
from .sweep import sweep_chunk_sizes
from .turns import Turns

__all__ = [
    "AdaptiveChunker",
    "Batch",
    "BatchCache",
    "BlockAllocator",
    "BlockTable",
    "Chunk",
    "ChunkedPrefillMetrics",
    "ChunkedPrefillScheduler",
    "Completion",
    "Event",
    "FifoQueue",
    "FlatBlocks",
    "KvCache",
    "OutOfBlocks",
    "Part",
    "PrefixCache",
    "PriorityScheduler",
    "Request",
    "RequestQueue",
    "SamplingParams",
    "ServingModel",
    "StopStrings",
    "Turns",
    "batch_generate",
    "batch_generate_with_chunked_prefill",
    "block_hash",
    "flat_blocks",
    "model_call",
    "next_chunk",
    "percentile",
    "select_optimal_chunk_size",
    "sweep_chunk_sizes",
]
