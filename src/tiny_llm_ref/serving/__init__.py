"""Policy: what to run next, in plain Python over integers. Imports no array library."""

from .batch import Batch
from .batch_generate import batch_generate
from .chunk import Chunk, next_chunk
from .chunked_prefill import batch_generate_with_chunked_prefill
from .chunked_prefill_scheduler import ChunkedPrefillScheduler
from .completion import Completion
from .events import Event
from .model import BatchCache, ServingModel, TinyKvCache
from .request import Request
from .request_queue import FifoQueue, RequestQueue
from .sampling import SamplingParams
from .stop_strings import StopStrings

__all__ = [
    "Batch",
    "BatchCache",
    "Chunk",
    "ChunkedPrefillScheduler",
    "Completion",
    "Event",
    "FifoQueue",
    "Request",
    "RequestQueue",
    "SamplingParams",
    "ServingModel",
    "StopStrings",
    "TinyKvCache",
    "batch_generate",
    "batch_generate_with_chunked_prefill",
    "next_chunk",
]
