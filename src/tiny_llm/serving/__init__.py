"""Policy: what to run next, in plain Python over integers. Imports no array library."""

from tiny_llm_engine.answer_text import AnswerText, StopStrings
from tiny_llm_engine.chunk_sizes import LoadChunker
from tiny_llm_engine.events import Event, Part
from tiny_llm_engine.loop_state import NotServing, QueueFull
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
from tiny_llm_engine.request_life import Completion, FifoQueue, RequestQueue, model_call
from tiny_llm_engine.sampling import SamplingParams, plain_ids
from tiny_llm_engine.scheduled import Piece, Scheduled
from tiny_llm_engine.serving_model import BatchCache, KvCache, ServingModel
from tiny_llm_engine.structured_outputs import StructuredOutputsParams
from tiny_llm_extensions.drafts.drafted import Drafted, Proposer, SpeculationCounts
from tiny_llm_extensions.graphs.padding import pad_chunk_reads

from .async_scheduling.placeholders import (
    can_decode_ahead,
    make_room_ahead,
    must_wait,
    num_placeholders,
    pack_ahead,
)
from .batching.hybrid_scheduler import HybridScheduler
from .batching.padded_budget import room_for_prompts, tokens_to_delay
from .batching.sequence import Sequence, inputs_of, pack
from .blocks.block_allocator import BlockAllocator, OutOfBlocks, PrefixCache, block_hash
from .blocks.block_table import BlockTable, flat_blocks
from .buckets.bucket_sizes import bucketize, exponential_ladder, linear_ladder, padding_aware_ladder
from .buckets.buckets import Buckets, make_buckets
from .buckets.padding import pad_decode_reads, pad_inputs
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
from .cold_blocks.cold_blocks import ColdBlocks, KeepingCache, Level
from .cold_blocks.swap_or_compute import blocks_to_bring_back
from .loop.engine_loop import EngineLoop
from .loop.request_stream import RequestStream
from .parallel.expert_exchange import ExchangePlan, exchange_plan
from .parallel.fill_stages import fill_stages
from .parallel.shards import (
    Shard,
    check_tensor_parallel,
    even_part,
    kv_heads_of,
    shard_of,
    stage_layers,
    vocabulary_of,
)
from .policies import (
    POLICIES,
    ChunksOnly,
    DecodeFirst,
    PrefillFirst,
    SarathiServe,
    StaticBatching,
    make_loop,
)
from .policies.aged_queue import AgedQueue
from .policies.mixing import Orca, PacedPrefill
from .policies.slack import SlackScheduler
from .policies.step_profile import StepProfile, profile_steps
from .routing import ReplicaLoads
from .routing.choose_replica import cached_tokens, choose_replica, prefix_hashes
from .speculation.drafts import choose_k, pack_drafts, plan_drafts, rewind, verify
from .speculation.prompt_lookup import NgramIndex, PromptLookup
