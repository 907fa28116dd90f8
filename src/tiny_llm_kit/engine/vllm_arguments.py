"""Arguments of vLLM's `LLM` that this engine does not have: those that may be given anyway, and why others may not."""

import warnings
from collections.abc import Mapping
from os import PathLike
from typing import Any

from tiny_llm_common.known_arguments import ANYTHING, Table, check_argument, table, without_known

ADAPTERS = "there are no adapters"
BALANCING = "experts stay where they are"
CODE = "no code of a model is run"
CONFIG = "config.json is taken as it is"
CONTEXT = "a context is on one device"
DEVICES = "ranks are processes on this machine"
EXPERTS = "kernels are those of the array library"
FILES = "weights are safetensors"
GENERATES = "this engine generates"
GRAPHS = "bucketing_strategy and enforce_eager say what is compiled"
HUB = "models come from a folder or from the hub's cache"
KV = "an engine keeps its own keys and values"
LOGS = "nothing is logged here; the server has metrics"
OFFLOAD = "weights and KV blocks stay on the device"
ONE_COPY = "an engine is one copy of the model"
OTHER_LAYERS = "there are no layers of this kind"
SERVER = "it is an option of a server"
TEXTS = "this engine reads texts"
WRAPPED = "the scheduler and the workers are the course's own"
# For each argument the values that change nothing here (None never does), and the reason: those of today's vLLM, then
# those of its older versions.
ARGUMENTS: Table = table(
    ("trust_remote_code code_revision", ANYTHING, CODE),
    ("tokenizer_mode", ANYTHING, "there is one kind of tokenizer"),
    ("skip_tokenizer_init", (False,), "the tokenizer is always read"),
    ("tokenizer_revision revision download_dir hf_token", (), HUB),
    ("served_model_name", ANYTHING, "it is a name for the server"),
    ("hf_config_path rope_scaling rope_theta", (), CONFIG),
    ("hf_overrides model_loader_extra_config", ({},), CONFIG),
    ("model_weights", ("",), FILES),
    ("load_format", ("auto", "safetensors"), FILES),
    ("safetensors_load_strategy pt_load_map_location ignore_patterns", ANYTHING, FILES),
    ("use_tqdm_on_load max_parallel_loading_workers", ANYTHING, "weights are read one after the other"),
    ("quantization_config", ({},), "quantization and config.json say what is quantised"),
    ("allow_deprecated_quantization", (False,), "quantization says what is quantised"),
    ("quantization_param_path", (), "quantization says what is quantised"),
    ("config_format", ("auto", "hf"), "models are in Hugging Face's layout"),
    ("model_impl", ("auto", "vllm"), "the network is the course's own"),
    ("task runner", ("auto", "generate"), GENERATES),
    ("convert", ("auto", "none"), GENERATES),
    ("pooler_config override_pooler_config", (), GENERATES),
    ("generation_config", ("auto", "vllm"), "defaults are those of SamplingParams"),
    ("override_generation_config", ({},), "defaults are those of SamplingParams"),
    ("enable_prompt_embeds enable_return_routed_experts tokens_only", (False,), "prompts are texts or token ids"),
    ("io_processor_plugin", ("",), "there are no plugins"),
    ("renderer_num_workers", (1,), "prompts are encoded one after the other"),
    ("chat_template", (), "the template is the model's own"),
    ("logits_processors", ([], ()), "logits are not changed by callers"),
    ("logits_processor_pattern", (), "logits are not changed by callers"),
    ("logprobs_mode", ("raw_logprobs",), "logprobs are those of the model's own softmax"),
    ("max_logprobs", ANYTHING, "there is no limit"),
    ("structured_outputs_config reasoning_config", ({},), "structured_outputs is a parameter of a request"),
    ("reasoning_parser reasoning_parser_plugin", ("",), "an answer of LLM is one text; the server splits thoughts off"),
    ("guided_decoding_backend", ANYTHING, "there is one library for grammars"),
    ("guided_decoding_disable_fallback guided_decoding_disable_any_whitespace", (False,), "schemas say it"),
    ("guided_decoding_disable_additional_properties", (False,), "schemas say it"),
    # steps and memory
    ("max_num_partial_prefills max_long_partial_prefills", (1,), "max_num_seqs limits the prompts in progress"),
    ("async_scheduling", (False,), "the scheduler waits for each step"),
    ("scheduler_reserve_full_isl", (True,), "a request is admitted when there are blocks for all its tokens"),
    ("stream_interval", (1,), "there is no streaming here"),
    ("disable_chunked_mm_input", (False,), TEXTS),
    ("scheduler_cls worker_cls", ("auto",), WRAPPED),
    ("worker_extension_cls", ("",), WRAPPED),
    ("additional_config external_parameters", ({},), WRAPPED),
    ("num_scheduler_steps", (1,), "every step is scheduled"),
    ("multi_step_stream_outputs", ANYTHING, "every step is scheduled"),
    ("scheduler_delay_factor", (0.0, 0), "a step begins when the last one has ended"),
    ("preemption_mode", ("recompute",), "preempted requests are computed again"),
    ("swap_space", ANYTHING, "preempted requests are computed again"),
    ("num_lookahead_slots", (0,), "speculative_config says how many drafts there are"),
    ("block_manager use_v2_block_manager", ANYTHING, "there is one block manager"),
    ("disable_hybrid_kv_cache_manager", ANYTHING, "there is one kind of KV cache"),
    ("prefix_caching_hash_algo", ANYTHING, "prefixes are compared by their tokens"),
    ("kv_cache_dtype", ("auto",), "the KV cache has the type of the model"),
    ("calculate_kv_scales kv_sharing_fast_prefill", (False,), "the KV cache has the type of the model"),
    ("kv_cache_dtype_skip_layers", ([], ()), "the KV cache has the type of the model"),
    ("kv_cache_memory_bytes", (), "num_blocks says how large the KV cache is"),
    ("kv_transfer_config kv_events_config ec_transfer_config weight_transfer_config", (), KV),
    ("cpu_offload_gb offload_group_size", (0, 0.0), OFFLOAD),
    ("offload_backend", ("auto",), OFFLOAD),
    ("offload_num_in_group offload_prefetch_step", (1,), OFFLOAD),
    ("cpu_offload_params offload_params", (set(),), OFFLOAD),
    ("kv_offloading_size", (), OFFLOAD),
    ("kv_offloading_backend", ("native",), OFFLOAD),
    ("disable_sliding_window", (False,), "the model's configuration decides"),
    ("enable_sleep_mode", (False,), "close() gives the memory back"),
    ("shutdown_timeout", ANYTHING, "close() ends every request at once"),
    # what computes
    ("compilation_config", (), "enforce_eager=False compiles"),
    ("optimization_level performance_mode", ANYTHING, GRAPHS),
    ("cudagraph_capture_sizes", ([], ()), GRAPHS),
    ("max_cudagraph_capture_size max_seq_len_to_capture max_context_len_to_capture", ANYTHING, GRAPHS),
    ("attention_backend attention_config", ({},), "attention is the course's own"),
    ("override_attention_dtype", (), "attention is the course's own"),
    ("disable_cascade_attn", ANYTHING, "attention is the course's own"),
    ("kernel_config ir_op_priority", ({},), EXPERTS),
    ("moe_backend all2all_backend", ("auto", "allgather_reducescatter"), EXPERTS),
    ("enable_flashinfer_autotune gdn_prefill_backend", ANYTHING, EXPERTS),
    ("mamba_config", ({},), OTHER_LAYERS),
    ("mamba_cache_dtype mamba_ssm_cache_dtype mamba_block_size mamba_cache_mode mamba_backend", ANYTHING, OTHER_LAYERS),
    ("enable_mamba_cache_stochastic_rounding mamba_cache_philox_rounds", ANYTHING, OTHER_LAYERS),
    ("disable_custom_all_reduce", ANYTHING, "sums over the ranks are those of the array library"),
    ("disable_async_output_proc", ANYTHING, "results are taken after each step"),
    # several devices
    ("distributed_executor_backend", ("uni", "mp"), DEVICES),
    ("ray_workers_use_nsight worker_use_ray engine_use_ray", (False,), DEVICES),
    ("nnodes", (1,), DEVICES),
    ("node_rank", (0,), DEVICES),
    ("master_addr master_port distributed_timeout_seconds", ANYTHING, DEVICES),
    ("numa_bind", (False,), DEVICES),
    ("numa_bind_nodes numa_bind_cpus", ANYTHING, DEVICES),
    ("data_parallel_size data_parallel_size_local", (1,), ONE_COPY),
    ("data_parallel_rank data_parallel_start_rank", (0,), ONE_COPY),
    ("data_parallel_address data_parallel_rpc_port data_parallel_backend", ANYTHING, ONE_COPY),
    ("data_parallel_hybrid_lb data_parallel_external_lb", (False,), ONE_COPY),
    ("disable_nccl_for_dp_synchronization enable_multimodal_encoder_data_parallel", ANYTHING, ONE_COPY),
    ("prefill_context_parallel_size decode_context_parallel_size", (1,), CONTEXT),
    ("dcp_comm_backend dcp_kv_cache_interleave_size cp_kv_cache_interleave_size", ANYTHING, CONTEXT),
    ("enable_dbo enable_elastic_ep", (False,), "a step is one batch"),
    ("ubatch_size", (0, 1), "a step is one batch"),
    ("dbo_decode_token_threshold dbo_prefill_token_threshold", ANYTHING, "a step is one batch"),
    ("enable_eplb enable_ep_weight_filter", (False,), BALANCING),
    ("eplb_config", ({},), BALANCING),
    ("expert_placement_strategy", ("linear",), BALANCING),
    ("num_redundant_experts", (0,), BALANCING),
    ("eplb_window_size eplb_step_interval eplb_log_balancedness", ANYTHING, BALANCING),
    # adapters
    ("enable_lora enable_lora_bias fully_sharded_loras enable_tower_connector_lora", (False,), ADAPTERS),
    ("specialize_active_lora enable_prompt_adapter", (False,), ADAPTERS),
    ("max_loras max_lora_rank max_cpu_loras lora_dtype lora_extra_vocab_size", ANYTHING, ADAPTERS),
    ("long_lora_scaling_factors lora_target_modules default_mm_loras qlora_adapter_name_or_path", (), ADAPTERS),
    ("max_prompt_adapters max_prompt_adapter_token", ANYTHING, ADAPTERS),
    # images, sound and films
    ("allowed_local_media_path", ("",), TEXTS),
    ("allowed_media_domains", ([], ()), TEXTS),
    ("limit_mm_per_prompt mm_processor_kwargs media_io_kwargs", ({},), TEXTS),
    ("language_model_only", ANYTHING, TEXTS),
    ("enable_mm_embeds interleave_mm_strings mm_encoder_only", (False,), TEXTS),
    ("skip_mm_profiling disable_mm_preprocessor_cache mm_processor_cache_gb mm_processor_cache_type", ANYTHING, TEXTS),
    ("mm_shm_cache_max_object_size_mb mm_encoder_tp_mode mm_encoder_attn_backend", ANYTHING, TEXTS),
    ("mm_encoder_attn_dtype", ANYTHING, TEXTS),
    ("mm_encoder_fp8_scale_path mm_encoder_fp8_scale_save_path mm_encoder_fp8_scale_save_margin", ANYTHING, TEXTS),
    ("video_pruning_rate mm_tensor_ipc enable_mm_processor_stats", ANYTHING, TEXTS),
    # drafts, by their older names
    ("speculative_model num_speculative_tokens ngram_prompt_lookup_max ngram_prompt_lookup_min", (),
     "speculative_config says how drafts are made"),
    ("speculative_draft_tensor_parallel_size speculative_max_model_len", (), "speculative_config says it"),
    # what is said
    ("disable_log_stats disable_log_requests aggregate_engine_logging", ANYTHING, LOGS),
    ("enable_logging_iteration_details enable_mfu_metrics enable_layerwise_nvtx_tracing", ANYTHING, LOGS),
    ("kv_cache_metrics kv_cache_metrics_sample cudagraph_metrics show_hidden_metrics_for_version", ANYTHING, LOGS),
    ("otlp_traces_endpoint collect_detailed_traces profiler_config", (), LOGS),
    ("fail_on_environ_validation", ANYTHING, "no environment variable of vLLM's is read"),
    ("disable_frontend_multiprocessing", ANYTHING, SERVER),
)  # fmt: skip
OWN_TEMPLATE = "the model's own chat template is used"
# Likewise of its methods `generate` and `chat`.
CALL_ARGUMENTS: Table = table(
    ("lora_request prompt_adapter_request", (), ADAPTERS),
    (
        "priority",
        ([], ()),
        'scheduling_policy="priority" has two classes, and LLM serves interactive requests',
    ),
    ("prompt_token_ids", (), "token ids are prompts themselves"),
    ("guided_options_request", (), "structured_outputs is a parameter of SamplingParams"),
    ("tokenization_kwargs mm_processor_kwargs", ({},), TEXTS),
    ("chat_template", (), OWN_TEMPLATE),
    ("chat_template_content_format", ("auto", "string"), OWN_TEMPLATE),
    ("continue_final_message", (False,), OWN_TEMPLATE),
)
RENAMED = {"num_gpu_blocks_override": "num_blocks"}
DTYPES = {"half": "float16", "float": "float32"}  # vLLM's shorter names


def without_vllms(model: str | PathLike[str], options: Mapping[str, Any]) -> dict[str, Any]:
    """The options of this engine among the arguments of a script for vLLM. None is an option's default, as in vLLM.

    Says once, in a warning, which arguments change nothing here.

    Args:
        model: what `LLM` was asked for; a `tokenizer` must be the same.

    Raises:
        ValueError: an argument of vLLM's has a value that would change something.
    """
    known = {**ARGUMENTS, **table(("tokenizer", (str(model),), "the tokenizer is the model's own"))}
    kept = without_known(options, known)
    if ignored := options.keys() - kept.keys():
        warnings.warn(f"LLM: no effect here: {', '.join(sorted(ignored))}", stacklevel=3)
    return {RENAMED.get(name, name): value for name, value in kept.items() if value is not None}


def plain_dtype(dtype: Any) -> str:
    """The name of a type by vLLM's names, or of PyTorch's own type."""
    name = str(dtype).removeprefix("torch.")
    return DTYPES.get(name, name)


def check_call(given: Mapping[str, Any]) -> None:
    """Check further arguments of `generate` and `chat`.

    Raises:
        TypeError: vLLM has no such argument either.
        ValueError: its value would change something.
    """
    for name, value in given.items():
        if name not in CALL_ARGUMENTS:
            raise TypeError(f"there is no argument {name}")
        check_argument(name, value, *CALL_ARGUMENTS[name])
