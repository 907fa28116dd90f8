"""Policy: what to run next, in plain Python over integers. Imports no array library."""

from tiny_llm_engine.admission import FifoQueue, RequestQueue
from tiny_llm_engine.answer_text import AnswerText, StopStrings
from tiny_llm_engine.chunked_prefill.chunk_sizes import LoadChunker
from tiny_llm_engine.chunked_prefill.serving_model import BatchCache, KvCache, ServingModel
from tiny_llm_engine.events import Event, Part
from tiny_llm_engine.loop_state import NotServing, Piece, QueueFull
from tiny_llm_engine.packed_model import (
    Bucket,
    FlatBlocks,
    PackedBatch,
    PackedInputs,
    PackedModel,
    PastReads,
    PipelinedModel,
    Sampled,
)
from tiny_llm_engine.request_life import Completion, model_call
from tiny_llm_engine.sampling import SamplingParams, plain_ids
from tiny_llm_engine.scheduled import Scheduled
from tiny_llm_engine.solutions.later import imported_later
from tiny_llm_engine.structured_outputs import StructuredOutputsParams

from .batching.hybrid_scheduler import HybridScheduler
from .batching.padded_budget import room_for_prompts, tokens_to_delay
from .batching.sequence import Sequence, pack
from .blocks.block_allocator import BlockAllocator, OutOfBlocks, PrefixCache, block_hash
from .blocks.block_table import BlockTable, flat_blocks
from .chunked_prefill import batch_generate
from .chunked_prefill.adaptive_chunker import AdaptiveChunker
from .chunked_prefill.batch import Batch
from .chunked_prefill.chunk import Chunk, next_chunk, select_optimal_chunk_size
from .chunked_prefill.chunked_prefill import batch_generate_with_chunked_prefill
from .chunked_prefill.chunked_prefill_metrics import ChunkedPrefillMetrics, percentile
from .chunked_prefill.chunked_prefill_scheduler import ChunkedPrefillScheduler
from .chunked_prefill.priority_scheduler import PriorityScheduler
from .chunked_prefill.request import Request
from .chunked_prefill.sweep import sweep_chunk_sizes
from .chunked_prefill.turns import Turns
from .loop.engine_loop import EngineLoop
from .loop.request_stream import RequestStream

__getattr__ = imported_later(
    __name__,
    {
        "tiny_llm_extensions.drafts.drafted": "Drafted Proposer SpeculationCounts",
        "tiny_llm_extensions.graphs.padding": "pad_chunk_reads",
        ".async_scheduling.placeholders": (
            "can_decode_ahead make_room_ahead must_wait num_placeholders pack_ahead"
        ),
        ".buckets.bucket_sizes": "bucketize exponential_ladder linear_ladder padding_aware_ladder",
        ".buckets.buckets": "Buckets make_buckets",
        ".buckets.padding": "pad_decode_reads pad_inputs",
        ".cold_blocks.cold_blocks": "ColdBlocks KeepingCache Level",
        ".cold_blocks.swap_or_compute": "blocks_to_bring_back",
        ".disaggregation.incoming": "Incoming",
        ".disaggregation.outbox": "Outbox",
        ".disaggregation.overlap": "arrivals",
        ".disaggregation.split_loads": "SplitLoads",
        ".parallel.expert_exchange": "ExchangePlan exchange_plan",
        ".parallel.fill_stages": "fill_stages",
        ".parallel.shards": (
            "Shard check_tensor_parallel even_part kv_heads_of shard_of stage_layers vocabulary_of"
        ),
        ".policies": "POLICIES ChunksOnly DecodeFirst PrefillFirst SarathiServe StaticBatching",
        ".policies.aged_queue": "AgedQueue",
        ".policies.mixing": "Orca PacedPrefill",
        ".policies.slack": "SlackScheduler",
        ".policies.step_profile": "StepProfile profile_steps",
        ".routing": "ReplicaLoads",
        ".routing.choose_replica": "cached_tokens choose_replica prefix_hashes",
        ".speculation.drafts": "choose_k pack_drafts plan_drafts rewind verify",
        ".speculation.prompt_lookup": "NgramIndex PromptLookup",
    },
)
