"""Policy: what to run next, in plain Python over integers. Imports no array library."""

from .adaptive_chunker import AdaptiveChunker
from .answer_text import AnswerText
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
from .hybrid_scheduler import HybridScheduler
from .model import BatchCache, KvCache, PackedModel, Sampled, ServingModel
from .packing import PackedBatch, PackedInputs, Scheduled, pack
from .past_reads import PastReads
from .prefix_cache import PrefixCache, block_hash
from .priority_scheduler import PriorityScheduler
from .request import Request, model_call
from .request_queue import FifoQueue, RequestQueue
from .sampling import SamplingParams
from .sequence import Sequence
from .stop_strings import StopStrings
from .sweep import sweep_chunk_sizes
from .turns import Turns

__all__ = [
    "AdaptiveChunker",
    "AnswerText",
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
    "HybridScheduler",
    "KvCache",
    "OutOfBlocks",
    "PackedBatch",
    "PackedInputs",
    "PackedModel",
    "Part",
    "PastReads",
    "PrefixCache",
    "PriorityScheduler",
    "Request",
    "RequestQueue",
    "Sampled",
    "SamplingParams",
    "Scheduled",
    "Sequence",
    "ServingModel",
    "StopStrings",
    "Turns",
    "batch_generate",
    "batch_generate_with_chunked_prefill",
    "block_hash",
    "flat_blocks",
    "model_call",
    "next_chunk",
    "pack",
    "percentile",
    "select_optimal_chunk_size",
    "sweep_chunk_sizes",
]
