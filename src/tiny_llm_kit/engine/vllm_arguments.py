"""Arguments of vLLM's `LLM` that this engine does not have: those that may be given anyway, and why others may not."""

import warnings
from collections.abc import Mapping
from os import PathLike
from typing import Any

ANYTHING = (...,)
NO_HUB = "models come from a folder or from the hub's cache"
TEXT_ONLY = "this engine reads texts"
# For each argument the values that change nothing here (None never does), and the reason.
ARGUMENTS: dict[str, tuple[tuple[Any, ...], str]] = {
    "trust_remote_code": (ANYTHING, "no code of a model is run"),
    "tokenizer_mode": (ANYTHING, "there is one kind of tokenizer"),
    "swap_space": (ANYTHING, "preempted requests are computed again"),
    "disable_log_stats": (ANYTHING, "nothing is logged"),
    "disable_custom_all_reduce": (ANYTHING, "sums over the ranks are those of the array library"),
    "max_seq_len_to_capture": (ANYTHING, "bucketing_strategy decides what is compiled"),
    "use_v2_block_manager": (ANYTHING, "there is one block manager"),
    "served_model_name": (ANYTHING, "it is a name for the server"),
    "max_logprobs": (ANYTHING, "there is no limit"),
    "load_format": (("auto", "safetensors"), "weights are safetensors"),
    "config_format": (("auto", "hf"), "models are in Hugging Face's layout"),
    "model_impl": (("auto", "vllm"), "the network is the course's own"),
    "task": (("auto", "generate"), "this engine generates"),
    "runner": (("auto", "generate"), "this engine generates"),
    "convert": (("auto", "none"), "this engine generates"),
    "generation_config": (("auto", "vllm"), "defaults are those of SamplingParams"),
    "data_parallel_size": ((1,), "an engine is one copy of the model"),
    "distributed_executor_backend": (("uni", "mp"), "ranks are processes on this machine"),
    "kv_cache_dtype": (("auto",), "the KV cache has the type of the model"),
    "cpu_offload_gb": ((0,), "weights stay on the device"),
    "max_num_partial_prefills": ((1,), "the policy decides how many prompts are computed in chunks"),
    "num_scheduler_steps": ((1,), "every step is scheduled"),
    "async_scheduling": ((False,), "the scheduler waits for each step"),
    "enable_lora": ((False,), "there are no adapters"),
    "skip_tokenizer_init": ((False,), "the tokenizer is always read"),
    "enable_sleep_mode": ((False,), "close() gives the memory back"),
    "disable_sliding_window": ((False,), "the model's configuration decides"),
    "allowed_local_media_path": (("",), TEXT_ONLY),
    "limit_mm_per_prompt": (({},), TEXT_ONLY),
    "mm_processor_kwargs": (({},), TEXT_ONLY),
    "hf_overrides": (({},), "config.json is taken as it is"),
    "rope_scaling": ((), "config.json is taken as it is"),
    "rope_theta": ((), "config.json is taken as it is"),
    "revision": ((), NO_HUB),
    "tokenizer_revision": ((), NO_HUB),
    "download_dir": ((), NO_HUB),
    "hf_token": ((), NO_HUB),
    "chat_template": ((), "the template is the model's own"),
    "logits_processors": (([],), "logits are not changed by callers"),
    "compilation_config": ((), "enforce_eager=False compiles"),
    "kv_transfer_config": ((), "an engine keeps its own keys and values"),
}
OWN_TEMPLATE = "the model's own chat template is used"
# Likewise of its methods `generate` and `chat`.
CALL_ARGUMENTS: dict[str, tuple[tuple[Any, ...], str]] = {
    "lora_request": ((), "there are no adapters"),
    "prompt_adapter_request": ((), "there are no adapters"),
    "tools": (([],), "no tools are called"),
    "chat_template": ((), OWN_TEMPLATE),
    "chat_template_content_format": (("auto", "string"), OWN_TEMPLATE),
    "chat_template_kwargs": (({},), OWN_TEMPLATE),
    "continue_final_message": ((False,), OWN_TEMPLATE),
    "mm_processor_kwargs": (({},), TEXT_ONLY),
}
RENAMED = {"num_gpu_blocks_override": "num_blocks"}


def without_vllms(model: str | PathLike[str], options: Mapping[str, Any]) -> dict[str, Any]:
    """The options of this engine among the arguments of a script for vLLM.

    Says once, in a warning, which arguments change nothing here.

    Args:
        model: what `LLM` was asked for; a `tokenizer` must be the same.

    Raises:
        ValueError: an argument of vLLM's has a value that would change something.
    """
    table = ARGUMENTS | {"tokenizer": ((str(model),), "the tokenizer is the model's own")}
    kept = {RENAMED.get(name, name): value for name, value in options.items() if name not in table}
    if kept.get("seed", 0) is None:  # vLLM's default
        del kept["seed"]
    ignored = options.keys() - kept.keys() - RENAMED.keys() - {"seed"}
    for name in sorted(ignored):
        check_argument(name, options[name], *table[name])
    if ignored:
        warnings.warn(f"LLM: no effect here: {', '.join(sorted(ignored))}", stacklevel=3)
    return kept


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


def check_argument(name: str, value: Any, values: tuple[Any, ...], reason: str) -> None:
    """Raise ValueError unless this value of an argument of vLLM's changes nothing here."""
    value = str(value) if isinstance(value, PathLike) else value
    if value is not None and values is not ANYTHING and value not in values:
        instead = f", or give {values[0]!r}" if values else ""
        raise ValueError(f"{name} is {value!r}: {reason}; leave it out{instead}")
