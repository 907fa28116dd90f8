"""Arguments of vLLM, known or refused with the reason; and what options of the engine may be."""

import inspect
from dataclasses import fields

import numpy as np
import pytest

import tiny_llm_ref
from tiny_llm_engine.known_arguments import ANYTHING, CALL_ARGUMENTS, OF_SAMPLING, check_call
from tiny_llm_engine.structured_outputs import StructuredOutputsParams
from tiny_llm_extensions.engine_options import EngineOptions
from tiny_llm_extensions.vllm_arguments import (
    ARGUMENTS,
    RENAMED,
    plain_dtype,
    without_vllms,
)
from tiny_llm_ref import SamplingParams

# Every parameter of vLLM's EngineArgs, and so of LLM; of its SamplingParams; and of LLM.generate and LLM.chat. Those of
# older versions, which scripts still have, are not listed.
OF_LLM = """
    additional_config aggregate_engine_logging all2all_backend allow_deprecated_quantization allowed_local_media_path
    allowed_media_domains async_scheduling attention_backend attention_config block_size calculate_kv_scales
    code_revision collect_detailed_traces compilation_config config_format convert cp_kv_cache_interleave_size
    cpu_offload_gb cpu_offload_params cudagraph_capture_sizes cudagraph_metrics data_parallel_address
    data_parallel_backend data_parallel_external_lb data_parallel_hybrid_lb data_parallel_rank data_parallel_rpc_port
    data_parallel_size data_parallel_size_local data_parallel_start_rank dbo_decode_token_threshold
    dbo_prefill_token_threshold dcp_comm_backend dcp_kv_cache_interleave_size decode_context_parallel_size
    default_mm_loras disable_cascade_attn disable_chunked_mm_input disable_custom_all_reduce
    disable_hybrid_kv_cache_manager disable_log_stats disable_nccl_for_dp_synchronization disable_sliding_window
    distributed_executor_backend distributed_timeout_seconds download_dir dtype ec_transfer_config
    enable_chunked_prefill enable_dbo enable_elastic_ep enable_ep_weight_filter enable_eplb enable_expert_parallel
    enable_flashinfer_autotune enable_layerwise_nvtx_tracing enable_logging_iteration_details enable_lora
    enable_mamba_cache_stochastic_rounding enable_mfu_metrics enable_mm_embeds enable_mm_processor_stats
    enable_prefix_caching enable_prompt_embeds enable_return_routed_experts enable_sleep_mode
    enable_tower_connector_lora enforce_eager eplb_config expert_placement_strategy fail_on_environ_validation
    fully_sharded_loras gdn_prefill_backend generation_config gpu_memory_utilization hf_config_path hf_overrides
    hf_token ignore_patterns interleave_mm_strings io_processor_plugin ir_op_priority kernel_config kv_cache_dtype
    kv_cache_dtype_skip_layers kv_cache_memory_bytes kv_cache_metrics kv_cache_metrics_sample kv_events_config
    kv_offloading_backend kv_offloading_size kv_sharing_fast_prefill kv_transfer_config language_model_only
    limit_mm_per_prompt load_format logits_processors logprobs_mode long_prefill_token_threshold lora_dtype
    lora_target_modules mamba_backend mamba_block_size mamba_cache_dtype mamba_cache_mode mamba_cache_philox_rounds
    mamba_config mamba_ssm_cache_dtype master_addr master_port max_cpu_loras max_cudagraph_capture_size max_logprobs
    max_long_partial_prefills max_lora_rank max_loras max_model_len max_num_batched_tokens max_num_partial_prefills
    max_num_seqs max_parallel_loading_workers media_io_kwargs mm_encoder_attn_backend mm_encoder_attn_dtype
    mm_encoder_fp8_scale_path mm_encoder_fp8_scale_save_margin mm_encoder_fp8_scale_save_path mm_encoder_only
    mm_encoder_tp_mode mm_processor_cache_gb mm_processor_cache_type mm_processor_kwargs
    mm_shm_cache_max_object_size_mb mm_tensor_ipc model model_impl model_loader_extra_config model_weights moe_backend
    nnodes node_rank num_gpu_blocks_override numa_bind numa_bind_cpus numa_bind_nodes offload_backend
    offload_group_size offload_num_in_group offload_params offload_prefetch_step optimization_level
    otlp_traces_endpoint override_attention_dtype override_generation_config performance_mode pipeline_parallel_size
    pooler_config prefill_context_parallel_size prefix_caching_hash_algo profiler_config pt_load_map_location
    quantization quantization_config ray_workers_use_nsight reasoning_config reasoning_parser reasoning_parser_plugin
    renderer_num_workers revision runner safetensors_load_strategy scheduler_cls scheduler_reserve_full_isl
    scheduling_policy seed served_model_name show_hidden_metrics_for_version shutdown_timeout skip_mm_profiling
    skip_tokenizer_init specialize_active_lora speculative_config stream_interval structured_outputs_config
    tensor_parallel_size tokenizer tokenizer_mode tokenizer_revision tokens_only trust_remote_code ubatch_size
    use_tqdm_on_load video_pruning_rate weight_transfer_config worker_cls worker_extension_cls
"""
OF_SAMPLING_PARAMS = """
    allowed_token_ids bad_words detokenize extra_args flat_logprobs frequency_penalty ignore_eos
    include_stop_str_in_output logit_bias logprob_token_ids logprobs max_tokens min_p min_tokens n
    output_kind output_text_buffer_length presence_penalty prompt_logprob_start prompt_logprob_token_ids
    prompt_logprobs repetition_detection repetition_penalty routed_experts_prompt_start seed skip_clone
    skip_reading_prefix_cache skip_special_tokens spaces_between_special_tokens stop stop_token_ids stream_interval
    structured_outputs temperature thinking_token_budget top_k top_p trace_decode_token_ids
"""
OF_CALLS = """
    add_generation_prompt chat_template chat_template_content_format chat_template_kwargs continue_final_message
    guided_options_request lora_request mm_processor_kwargs priority prompt_adapter_request prompt_token_ids
    sampling_params tokenization_kwargs tools use_tqdm
"""


PARAMETERS = {
    "LLM": (OF_LLM, tiny_llm_ref.LLM.__init__, ARGUMENTS, tiny_llm_ref.LLM),
    "SamplingParams": (OF_SAMPLING_PARAMS, SamplingParams, OF_SAMPLING, SamplingParams),
    "calls": (OF_CALLS, tiny_llm_ref.LLM.chat, CALL_ARGUMENTS, lambda **given: check_call(given)),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("names", "own", "known", "make_it"), PARAMETERS.values(), ids=PARAMETERS)
def test_every_parameter_of_vllms_is_known_or_refused_with_its_reason(names, own, known, make_it):
    options = (each.name for each in fields(EngineOptions))
    ours = {*inspect.signature(own).parameters, *options, "tokenizer", *RENAMED}
    assert not set(names.split()) - ours - known.keys()
    assert not known.keys() & (ours - {"tokenizer"}), "neither ours and refused"
    for name, (values, reason) in known.items():
        assert reason
        if values is not ANYTHING:
            with pytest.raises(ValueError, match=f"^{name} is .*: .*; leave it out"):
                make_it(**{name: "another value"})


@pytest.mark.filterwarnings("error")
def test_arguments_of_vllm_that_change_nothing_are_named_once():
    given = {"trust_remote_code": True, "swap_space": 4, "tokenizer": "m", "seed": None, "block_size": 8}
    with pytest.warns(UserWarning, match="^LLM: no effect here: swap_space, tokenizer, trust_remote_code$"):
        assert without_vllms("m", given) == {"block_size": 8}
    assert without_vllms("m", {"num_gpu_blocks_override": 5, "seed": 3}) == {"num_blocks": 5, "seed": 3}
    assert without_vllms("m", {"max_num_seqs": None, "enable_prefix_caching": None}) == {}
    for name, (values, _) in ARGUMENTS.items():
        with pytest.warns(UserWarning, match=name):
            assert without_vllms("m", {name: values[-1] if values else None}) == {}
    everything = {name: values[-1] for name, (values, _) in OF_SAMPLING.items() if values}
    assert SamplingParams(**everything, n=2) == SamplingParams(n=2)
    assert StructuredOutputsParams(regex="a", disable_any_whitespace=False) == StructuredOutputsParams(
        regex="a"
    )


REFUSED = [
    ({"data_parallel_size": 2}, "data_parallel_size is 2: an engine is one copy of the model; .* give 1"),
    ({"data_parallel_size": True}, "data_parallel_size is True: an engine is one copy of the model"),
    ({"kv_cache_dtype": "fp8_e5m2"}, "kv_cache_dtype is 'fp8_e5m2': give one of auto, int8, fp8_e4m3"),
    ({"tokenizer": "other"}, "tokenizer is 'other': the tokenizer is the model's own"),
    (
        {"logits_processors": ["x"]},
        "logits_processors is .*: logits are not changed by callers; leave it out",
    ),
    ({"enable_lora": True}, "enable_lora is True: there are no adapters"),
    (
        {"long_prefill_token_threshold": -1},
        "long_prefill_token_threshold is -1: give tokens of a chunk, or 0",
    ),
]


@pytest.mark.parametrize(("options", "says"), REFUSED)
def test_other_arguments_of_vllm_are_refused_by_name(options, says):
    with pytest.raises(ValueError, match=says):
        tiny_llm_ref.LLM("tiny-qwen3", **options)


def test_types_by_vllms_names():
    names = {"half": "float16", "float": "float32", "bfloat16": "bfloat16", "torch.float16": "float16"}
    assert {name: plain_dtype(name) for name in names} == names


NO_NUMBER = {"num_speculative_tokens": True}
WRONG_OPTIONS = {
    "block_size": [*((value, "a whole number") for value in (True, 2.0, "8")), (0, "at least 1")],
    "gpu_memory_utilization": [
        ("0.5", "a number"),
        (True, "a number"),
        (1.5, "a share above 0 and at most 1"),
    ],
    "enable_prefix_caching": [(1, "True or False"), ("yes", "True or False")],
    "scale_chunks_by_load": [(np.int64(1), "True or False")],
    "seed": [(False, "a whole number"), (-1, "a whole number from 0 to")],
    "max_model_len": [(np.float32(8), "a whole number"), (np.bool_(True), "a whole number")],
    "policy": [(3, "a text")],
    "speculative_config": [(True, "an object, or None"), (NO_NUMBER, "a whole number")],
}


@pytest.mark.parametrize("name", WRONG_OPTIONS)
def test_a_type_is_reported_as_a_type_and_a_range_as_a_range(name):
    for value, wanted in WRONG_OPTIONS[name]:
        with pytest.raises(ValueError, match=f"{name}.*: give {wanted}"):
            EngineOptions(**{name: value})


def test_options_may_be_numbers_of_other_libraries():
    foreign = {"block_size": np.int64(8), "enforce_eager": np.bool_(True)}
    foreign["gpu_memory_utilization"] = np.float32(0.5)
    options = EngineOptions(**foreign, speculative_config={"num_speculative_tokens": np.int32(3)})
    assert options.speculation.num_speculative_tokens == 3
    for name in foreign:
        assert type(getattr(options, name)) in (int, float, bool) and getattr(options, name) == foreign[name]
