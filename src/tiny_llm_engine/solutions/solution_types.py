"""Types of what a solution gives to given code, for the type checker alone.

Given code finds a solution by name and never imports one. So these names come from the reference while types are
checked, and stand for any object at run time. They hold for the learner's package too: its signatures are generated.
"""

from typing import TYPE_CHECKING, Any

__all__ = [
    "AnswerSequence", "Array", "BatchCache", "BlockAllocator", "BlockTable", "Bucket", "Buckets", "Event",
    "HybridScheduler", "Incoming", "KvCache", "Network", "Outbox", "PackedBatch", "PackedModel", "Part", "Piece",
    "PortNames", "Request", "RequestStream", "Sampled", "SamplingParams", "ServingModel", "ServingPackage", "Shard",
    "SplitLoads", "StepProfile", "StructuredOutputsParams",
]  # fmt: skip

Array = Any  # of the port's library: the two array types have nothing in common that could be named

if TYPE_CHECKING:
    from tiny_llm_ref import serving, torch_backend
    from tiny_llm_ref.serving import (
        BatchCache,
        BlockAllocator,
        BlockTable,
        Bucket,
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
        StructuredOutputsParams,
    )
    from tiny_llm_ref.serving import Sequence as AnswerSequence
    from tiny_llm_ref.serving.async_scheduling import placeholders
    from tiny_llm_ref.serving.buckets import buckets, padding
    from tiny_llm_ref.serving.buckets.buckets import Buckets
    from tiny_llm_ref.serving.cold_blocks import swap_or_compute
    from tiny_llm_ref.serving.disaggregation import overlap
    from tiny_llm_ref.serving.disaggregation.incoming import Incoming
    from tiny_llm_ref.serving.disaggregation.outbox import Outbox
    from tiny_llm_ref.serving.disaggregation.split_loads import SplitLoads
    from tiny_llm_ref.serving.parallel import expert_exchange, fill_stages, shards
    from tiny_llm_ref.serving.parallel.shards import Shard
    from tiny_llm_ref.serving.policies import step_profile
    from tiny_llm_ref.serving.policies.step_profile import StepProfile
    from tiny_llm_ref.serving.speculation import drafts
    from tiny_llm_ref.torch_backend import Qwen3ModelWeek3 as Network
    from tiny_llm_ref.torch_backend import grouped_product, mixture

    class ServingPackage:
        """The names of `<solution>.serving` that given code uses.

        A module is not a type, and types.ModuleType has any name. So a class holds the names.
        """

        from tiny_llm_ref.serving import (
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
            QueueFull,
            Request,
            Sampled,
            SamplingParams,
            Sequence,
            StructuredOutputsParams,
            Turns,
        )
        from tiny_llm_ref.serving.cold_blocks.cold_blocks import ColdBlocks, KeepingCache, Level
        from tiny_llm_ref.serving.disaggregation.incoming import Incoming
        from tiny_llm_ref.serving.disaggregation.outbox import Outbox
        from tiny_llm_ref.serving.disaggregation.split_loads import SplitLoads
        from tiny_llm_ref.serving.parallel.shards import Shard
        from tiny_llm_ref.serving.policies import POLICIES
        from tiny_llm_ref.serving.policies.slack import SlackScheduler
        from tiny_llm_ref.serving.speculation.prompt_lookup import PromptLookup

        arrivals = staticmethod(overlap.arrivals)
        batch_generate = staticmethod(serving.batch_generate)
        blocks_to_bring_back = staticmethod(swap_or_compute.blocks_to_bring_back)
        check_tensor_parallel = staticmethod(shards.check_tensor_parallel)
        choose_k = staticmethod(drafts.choose_k)
        even_part = staticmethod(shards.even_part)
        exchange_plan = staticmethod(expert_exchange.exchange_plan)
        flat_blocks = staticmethod(serving.flat_blocks)
        kv_heads_of = staticmethod(shards.kv_heads_of)
        make_buckets = staticmethod(buckets.make_buckets)
        fill_stages = staticmethod(fill_stages.fill_stages)
        can_decode_ahead = staticmethod(placeholders.can_decode_ahead)
        make_room_ahead = staticmethod(placeholders.make_room_ahead)
        pack_ahead = staticmethod(placeholders.pack_ahead)
        pack_drafts = staticmethod(drafts.pack_drafts)
        plan_drafts = staticmethod(drafts.plan_drafts)
        rewind = staticmethod(drafts.rewind)
        verify = staticmethod(drafts.verify)
        pack = staticmethod(serving.pack)
        pad_inputs = staticmethod(padding.pad_inputs)
        plain_ids = staticmethod(serving.plain_ids)
        profile_steps = staticmethod(step_profile.profile_steps)
        sweep_chunk_sizes = staticmethod(serving.sweep_chunk_sizes)
        select_optimal_chunk_size = staticmethod(serving.select_optimal_chunk_size)
        shard_of = staticmethod(shards.shard_of)
        stage_layers = staticmethod(shards.stage_layers)

    class PortNames:
        """The names of `<solution>.<backend>_backend` that given code uses, with the types of the PyTorch port.

        They stand for both ports: where a name has two types, given code hands its values on and looks at none of them.
        """

        from tiny_llm_ref.torch_backend import (
            ConcatenatedKvCache,
            QuantizedWeights,
            Qwen3MLP,
            Qwen3ModelWeek1,
            Qwen3ModelWeek2,
            Qwen3ModelWeek3,
            Qwen3MultiHeadAttention,
            RMSNorm,
            RoPE,
            TinyKvFullCache,
            TinyKvPagedCache,
            sampler,
        )
        from tiny_llm_ref.torch_backend.pipeline_stage import PipelineStage
        from tiny_llm_ref.torch_backend.tensor_parallel import Qwen3ModelTensorParallel

        attend_quantized = staticmethod(torch_backend.attend_quantized)
        attention_statistics = staticmethod(torch_backend.attention_statistics)
        block_mask = staticmethod(torch_backend.block_mask)
        causal_mask = staticmethod(torch_backend.causal_mask)
        chunked_attention_mask = staticmethod(torch_backend.chunked_attention_mask)
        create_batch_cache = staticmethod(torch_backend.create_batch_cache)
        create_kv_pools = staticmethod(torch_backend.create_kv_pools)
        dequantize_weights = staticmethod(torch_backend.dequantize_weights)
        adopt_row = staticmethod(torch_backend.adopt_row)
        fill_placeholders = staticmethod(torch_backend.fill_placeholders)
        finish_attention = staticmethod(torch_backend.finish_attention)
        flash_attention_device = staticmethod(torch_backend.flash_attention_device)
        flash_attention_tiled = staticmethod(torch_backend.flash_attention_tiled)
        grouped_product_by_expert = staticmethod(grouped_product.grouped_product_by_expert)
        linear = staticmethod(torch_backend.linear)
        linear_layer = staticmethod(torch_backend.linear_layer)
        make_sampler = staticmethod(torch_backend.make_sampler)
        merge_attention = staticmethod(torch_backend.merge_attention)
        mlp_of = staticmethod(mixture.mlp_of)
        paged_decode_statistics = staticmethod(torch_backend.paged_decode_statistics)
        prepare_weights = staticmethod(torch_backend.prepare_weights)
        quantize_matrix = staticmethod(torch_backend.quantize_matrix)
        quantize_rows = staticmethod(torch_backend.quantize_rows)
        quantize_weights = staticmethod(torch_backend.quantize_weights)
        quantized_linear = staticmethod(torch_backend.quantized_linear)
        rounding_error = staticmethod(torch_backend.rounding_error)
        route = staticmethod(torch_backend.route)
        scaled_dot_product_attention_grouped = staticmethod(
            torch_backend.scaled_dot_product_attention_grouped
        )
        scaled_dot_product_attention_simple = staticmethod(torch_backend.scaled_dot_product_attention_simple)
        silu = staticmethod(torch_backend.silu)
        simple_generate = staticmethod(torch_backend.simple_generate)
        softmax = staticmethod(torch_backend.softmax)
        sort_by_expert = staticmethod(torch_backend.sort_by_expert)
        stack_experts = staticmethod(mixture.stack_experts)
        words_to_numbers = staticmethod(torch_backend.words_to_numbers)

else:
    globals().update(dict.fromkeys(__all__, object))
