"""Options of our engine and its load, as bench-throughput and bench-serve have them; names as in vLLM."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from tiny_llm_engine.models.weights.random_weights import SHAPES, check_layers
from tiny_llm_engine.solutions.solution import resolve_serving
from tiny_llm_extensions.arguments import json_object, whole_number
from tiny_llm_extensions.engine_options import KV_CACHE_DTYPES, EngineOptions

from .options import count, flag, option, switch


def policies() -> list[str]:
    """The names of all policies of the scheduler."""
    return ["hybrid", "separate", *resolve_serving("ref").POLICIES]


# Other ways to run our own engine, as options of it.
VARIANTS: dict[str, dict[str, Any]] = {
    "unchunked": {"enable_chunked_prefill": False, "max_num_batched_tokens": None},
    **{name: {"policy": name} for name in policies()},
    "uncached": {"enable_prefix_caching": False},
    "undrafted": {"speculative_config": None},
    "synchronous": {"async_scheduling": False},
    "plain-kv": {"kv_cache_dtype": "auto"},
    "single": {"tensor_parallel_size": 1, "pipeline_parallel_size": 1},
}


@dataclass(frozen=True)
class EnginePlan:
    """Options of the load and of our engine."""

    input_len: int = count(128, "tokens of a prompt", also=("--random-input-len",))
    output_len: int = count(32, "tokens of an answer", also=("--random-output-len",))
    seed: int = option(0, "of prompts and arrivals", type=whole_number(0))
    max_num_batched_tokens: int | None = count(None, "tokens of a step of our engine")
    max_num_seqs: int = count(16, "requests that run at a time")
    enable_chunked_prefill: bool = switch(True, "else whole prompts first")
    policy: str = option("hybrid", "one forward per step, or two; or of Day 3.5", choices=policies())
    scale_chunks_by_load: bool = switch(False, "smaller chunks, the more requests decode beside them")
    enforce_eager: bool | None = switch(None, "run the model as it is written, or compile it first")
    bucketing_strategy: str | None = option(
        None, "pad steps to few shapes", choices=["exponential", "linear", "padding-aware"]
    )
    cpu_products: str | None = option(
        None, "of bf16 matrices on a CPU: measured here, or by its flags", choices=["measured", "usual"]
    )
    activations: str | None = option(
        None,
        "of products with quantised weights on a CPU; default: what is faster",
        choices=["int8", "float"],
    )
    block_size: int = count(128, "tokens of a KV block")
    num_blocks: int | None = count(None, "KV blocks; default: what fits")
    kv_cache_dtype: str = option("auto", "how keys and values are kept", choices=KV_CACHE_DTYPES)
    tensor_parallel_size: int = count(1, "devices that hold a part of every matrix each (Day 3.7)")
    enable_expert_parallel: bool = flag("these devices share the experts of a mixture (Day 4.2)")
    pipeline_parallel_size: int = count(1, "devices that hold some of the layers each (Day 3.7)")
    async_scheduling: bool = switch(False, "plan a step while the last one computes (Day 4.4)")
    speculative_config: Mapping[str, Any] | None = option(
        None, "how drafts are made (Day 4.3), as an object in JSON", type=json_object, metavar="JSON"
    )
    config: str | None = option(
        None, "instead of --model: a shape with random weights", choices=sorted(SHAPES)
    )
    random_weights: bool = flag("read only the shape of --model")
    layers: int | None = count(None, "with random weights: fewer layers than the shape has")

    @property
    def has_random_weights(self) -> bool:
        """Whether weights are random. Raises ValueError if `layers` are given and they are not."""
        return check_layers(self.config, self.random_weights, self.layers)

    def engine_options(self) -> dict[str, Any]:
        """The fields that are options of the engine."""
        return {
            each.name: getattr(self, each.name) for each in fields(EngineOptions) if hasattr(self, each.name)
        }
