"""Types of what a solution gives the kit, for the type checker alone.

The kit finds a solution by name and never imports one. So these names come from the reference while types are checked,
and stand for any object at run time. They hold for the learner's package too: its signatures are generated.
"""

from typing import TYPE_CHECKING, Any

__all__ = [
    "AnswerSequence",
    "Array",
    "BatchCache",
    "BlockAllocator",
    "BlockTable",
    "Bucket",
    "Buckets",
    "Event",
    "HybridScheduler",
    "KvCache",
    "PackedBatch",
    "PackedModel",
    "Part",
    "Piece",
    "Request",
    "RequestStream",
    "Sampled",
    "SamplingParams",
    "ServingModel",
    "ServingPackage",
    "Shard",
    "StepProfile",
    "StructuredOutputsParams",
]

Array = Any  # of the port's library: the two array types have nothing in common that could be named

if TYPE_CHECKING:
    from tiny_llm_ref import serving
    from tiny_llm_ref.serving import (
        BatchCache,
        BlockAllocator,
        BlockTable,
        Bucket,
        Buckets,
        Event,
        HybridScheduler,
        KvCache,
        PackedBatch,
        PackedModel,
        Part,
        Piece,
        Request,
        RequestStream,
        Sampled,
        SamplingParams,
        ServingModel,
        Shard,
        StepProfile,
        StructuredOutputsParams,
    )
    from tiny_llm_ref.serving import Sequence as AnswerSequence

    class ServingPackage:
        """The names of `<solution>.serving` that the kit uses.

        A module is no type, and types.ModuleType has any name. So a class holds the names.
        """

        from tiny_llm_ref.serving import (
            POLICIES,
            AdaptiveChunker,
            Batch,
            BlockAllocator,
            BlockTable,
            Bucket,
            ChunkedPrefillMetrics,
            ChunkedPrefillScheduler,
            EngineLoop,
            HybridScheduler,
            LoadChunker,
            NotServing,
            PackedBatch,
            PackedInputs,
            PriorityScheduler,
            PromptLookup,
            QueueFull,
            Request,
            Sampled,
            SamplingParams,
            Sequence,
            Shard,
            SlackScheduler,
            SpeculationCounts,
            SpeculativeScheduler,
            StructuredOutputsParams,
            Turns,
        )

        batch_generate = staticmethod(serving.batch_generate)
        check_tensor_parallel = staticmethod(serving.check_tensor_parallel)
        choose_k = staticmethod(serving.choose_k)
        even_part = staticmethod(serving.even_part)
        exchange_plan = staticmethod(serving.exchange_plan)
        flat_blocks = staticmethod(serving.flat_blocks)
        inputs_of = staticmethod(serving.inputs_of)
        kv_heads_of = staticmethod(serving.kv_heads_of)
        make_buckets = staticmethod(serving.make_buckets)
        make_scheduler = staticmethod(serving.make_scheduler)
        pack = staticmethod(serving.pack)
        pad_inputs = staticmethod(serving.pad_inputs)
        plain_ids = staticmethod(serving.plain_ids)
        profile_steps = staticmethod(serving.profile_steps)
        sweep_chunk_sizes = staticmethod(serving.sweep_chunk_sizes)
        select_optimal_chunk_size = staticmethod(serving.select_optimal_chunk_size)
        shard_of = staticmethod(serving.shard_of)
        stage_layers = staticmethod(serving.stage_layers)

else:
    globals().update(dict.fromkeys(__all__, object))
