"""Policy: what to run next, in plain Python over integers. Imports no array library."""

from .adaptive_chunker import AdaptiveChunker
from .answer_text import AnswerText
from .batch import Batch
from .batch_generate import batch_generate
from .block_allocator import BlockAllocator, OutOfBlocks
from .block_table import BlockTable
from .bucket import Bucket
from .buckets import Buckets, make_buckets
from .chunk import Chunk, next_chunk
from .chunk_size import select_optimal_chunk_size
from .chunked_prefill import batch_generate_with_chunked_prefill
from .chunked_prefill_metrics import ChunkedPrefillMetrics, percentile
from .chunked_prefill_scheduler import ChunkedPrefillScheduler
from .completion import Completion
from .engine_loop import EngineLoop, NotServing, QueueFull
from .events import Event, Part
from .flat_blocks import FlatBlocks, flat_blocks
from .hybrid_scheduler import HybridScheduler
from .ladders import bucketize, exponential_ladder, linear_ladder, padding_aware_ladder
from .model import BatchCache, KvCache, PackedModel, Sampled, ServingModel
from .packed_batch import PackedBatch
from .packed_inputs import PackedInputs
from .packing import Scheduled, pack
from .padded_budget import room_for_prompts, tokens_to_delay
from .padding import pad_chunk_reads, pad_decode_reads
from .past_reads import PastReads
from .policies import POLICIES, make_scheduler
from .policies.aged_queue import AgedQueue
from .policies.chunks_only import ChunksOnly
from .policies.decode_first import DecodeFirst
from .policies.orca import Orca
from .policies.paced_prefill import PacedPrefill
from .policies.prefill_first import PrefillFirst
from .policies.sarathi_serve import SarathiServe
from .policies.slack import SlackScheduler
from .policies.static_batching import StaticBatching
from .policies.whole_prompts import WholePrompts
from .prefix_cache import PrefixCache, block_hash
from .priority_scheduler import PriorityScheduler
from .request import Request, model_call
from .request_queue import FifoQueue, RequestQueue
from .request_stream import Piece, RequestStream
from .sampling import SamplingParams
from .sequence import Sequence
from .step_profile import StepProfile, profile_steps
from .stop_strings import StopStrings
from .sweep import sweep_chunk_sizes
from .turns import Turns

__all__ = [
    "POLICIES",
    "AdaptiveChunker",
    "AgedQueue",
    "AnswerText",
    "Batch",
    "BatchCache",
    "BlockAllocator",
    "BlockTable",
    "Bucket",
    "Buckets",
    "Chunk",
    "ChunkedPrefillMetrics",
    "ChunkedPrefillScheduler",
    "ChunksOnly",
    "Completion",
    "DecodeFirst",
    "EngineLoop",
    "Event",
    "FifoQueue",
    "FlatBlocks",
    "HybridScheduler",
    "KvCache",
    "NotServing",
    "Orca",
    "OutOfBlocks",
    "PacedPrefill",
    "PackedBatch",
    "PackedInputs",
    "PackedModel",
    "Part",
    "PastReads",
    "Piece",
    "PrefillFirst",
    "PrefixCache",
    "PriorityScheduler",
    "QueueFull",
    "Request",
    "RequestQueue",
    "RequestStream",
    "Sampled",
    "SamplingParams",
    "SarathiServe",
    "Scheduled",
    "Sequence",
    "ServingModel",
    "SlackScheduler",
    "StaticBatching",
    "StepProfile",
    "StopStrings",
    "Turns",
    "WholePrompts",
    "batch_generate",
    "batch_generate_with_chunked_prefill",
    "block_hash",
    "bucketize",
    "exponential_ladder",
    "flat_blocks",
    "linear_ladder",
    "make_buckets",
    "make_scheduler",
    "model_call",
    "next_chunk",
    "pack",
    "pad_chunk_reads",
    "pad_decode_reads",
    "padding_aware_ladder",
    "percentile",
    "profile_steps",
    "room_for_prompts",
    "select_optimal_chunk_size",
    "sweep_chunk_sizes",
    "tokens_to_delay",
]
