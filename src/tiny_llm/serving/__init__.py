"""Policy: what to run next, in plain Python over integers. Imports no array library."""

from .batch import Batch
from .batch_generate import Completion, batch_generate
from .events import Event
from .model import BatchCache, ServingModel, TinyKvCache
from .request import Request
from .sampling import SamplingParams
from .stop_strings import StopStrings

__all__ = [
    "Batch",
    "BatchCache",
    "Completion",
    "Event",
    "Request",
    "SamplingParams",
    "ServingModel",
    "StopStrings",
    "TinyKvCache",
    "batch_generate",
]
