"""The options of an engine with all that can be put on it."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from tiny_llm_engine.engine_options import NEEDS_CHUNKS, EngineLimits, PlainOptions, check_count
from tiny_llm_engine.models.layer_weights import ModelShape
from tiny_llm_engine.solutions.solution_types import ServingPackage

from .drafts.speculative_config import SpeculativeConfig
from .kv_transfer.config import KVTransferConfig

NVIDIA_BLOCK = 256  # tokens: a block is a page of torch's kernel on CUDA, which takes multiples of it
KV_CACHE_DTYPES = "auto", "int8", "fp8_e4m3"
CHOICES = {
    "kv_cache_dtype": KV_CACHE_DTYPES,
    "scheduling_policy": ("fcfs", "priority"),
    "cpu_products": (None, "measured", "usual"),
    "activations": (None, "int8", "int16", "float"),
}
POLICIES = {  # of options that not every policy has
    "pipeline_parallel_size": ("hybrid",),
    "speculative_config": ("hybrid", "separate"),
    "latency_target": ("slack",),
}
PAIRS = (  # of options that exclude each other, and the reason
    ("tensor_parallel_size", "pipeline_parallel_size", "all ranks form one group"),
    ("speculative_config", "pipeline_parallel_size", "a stage cannot check drafts yet"),
    ("async_scheduling", "speculative_config", "drafts follow a token that is not known yet"),
    ("async_scheduling", "pipeline_parallel_size", "the stages have steps in flight already"),
    ("async_scheduling", "tensor_parallel_size", "only the first rank knows what it has drawn"),
    ("async_scheduling", "policy=separate", "this policy computes a step in two calls"),
    ("kv_offloading_size", "tensor_parallel_size", "blocks of several ranks cannot be put away yet"),
    ("kv_offloading_size", "pipeline_parallel_size", "blocks of several ranks cannot be put away yet"),
    ("kv_offloading_size", "enable_prefix_caching=False", "what is put away are cached blocks"),
    ("num_quantized_blocks", "kv_cache_dtype", "all blocks are quantised already"),
    ("kv_transfer_config", "tensor_parallel_size", "several ranks hold blocks in parts"),
    ("kv_transfer_config", "pipeline_parallel_size", "several ranks hold blocks in parts"),
    ("kv_transfer_config that reads", "async_scheduling", "a step in flight may write to its blocks"),
    ("kv_transfer_config that reads", "kv_offloading_size", "a planned copy may read its blocks"),
)


@dataclass(frozen=True)
class EngineOptions(PlainOptions):
    """The options of the engine. `LLM` takes each of them by keyword.

    Args:
        num_blocks: KV blocks, all of them from the start. None takes what fits, see `blocks_that_fit`; on a CPU the
            pool then begins small and grows to that, see `GrowingPool`.
        gpu_memory_utilization: share of the device's memory for weights, activations and KV blocks together. A CPU does
            not ask for it: its pool is a quarter of the free RAM.
        kv_cache_dtype: how keys and values are kept. "auto" keeps them in the model's type; "int8" in eight bits, with
            a scale for each token and head; "fp8_e4m3", or "fp8", in eight bits without scales.
        kv_offloading_size: GiB of the host's memory for cached blocks that the pool has no room for (Day 4.5).
        kv_offloading_folder: where blocks go that this memory has no room for; None drops them. Several engines may
            share it, and the next one with the same model finds them again.
        kv_offloading_folder_size: GiB that this engine has there at most.
        num_quantized_blocks: blocks of the device's memory for cached blocks in int8. They go there first, and on in
            that form: more of them fit, and what comes back is rounded.
        scheduling_policy: "fcfs" serves requests in the order of their arrival; "priority" serves interactive requests
            before batch ones.
        policy: how steps are planned: "hybrid" mixes chunks and decodes in one forward, "separate" computes the same
            plan in two; or a name of the policies of Day 3.5.
        latency_target: seconds between two tokens of an answer, for the policy "slack", which measures steps first.
        max_step_seconds: target for the steps of a server without `max_num_batched_tokens` while answers are read: it
            cuts their chunks, as measured here (in bf16 another size may change a token). 0 is 512 tokens, as for
            batches. None reads TINY_LLM_MAX_STEP_SECONDS, and is 0.25.
        scale_chunks_by_load: whether the chunks of a step shrink with the share of `max_num_seqs` that decodes in it;
            see `LoadChunker`.
        enforce_eager: True runs the model as it is written; False compiles it before the first request, which takes
            seconds or minutes; None compiles it on an HPU and on CUDA.
        bucketing_strategy: how steps are padded to few shapes: "exponential", "linear" or "padding-aware". None pads
            nothing, unless something is compiled for fixed shapes: then it is "exponential".
        cpu_products: of bf16 matrices on a CPU, in MLX also of float32. "measured" measures the ways to compute them
            once on each machine and keeps the result; "usual" decides by the processor's flags, in MLX for its own
            product; None reads TINY_LLM_PRODUCTS, and is "measured".
        activations: of products with quantised weights on a CPU. "int8" rounds them in groups, for the kernel of Day
            4.1, and "int16" to 16 bits, which takes up to 1.4 times as long; "float" does not, as before that day. None
            measures "int16" and "float" once on each machine, and is "float" where `cpu_products` is "usual", or where
            weights are stored quantised and `dtype` is "float32". "int8" is never the default: of SmolLM2's tokens it
            changes the most probable one in 1 of 25 cases.
        tensor_parallel_size: devices that each hold a part of every matrix and compute each step together, one process
            each. On a CPU the processes share the cores.
        enable_expert_parallel: whether these devices share the experts of a mixture, and not every expert's matrices.
        pipeline_parallel_size: devices that each hold some of the layers, one process each, and compute different steps
            at the same time. For the policy "hybrid".
        async_scheduling: whether the next step is planned while this one computes (Day 4.4): for an accelerator, which
            else waits for Python between two steps. For all policies but "separate", and for one device without drafts.
            On a CPU the two share the cores.
        speculative_config: how drafts are made, see `SpeculativeConfig`; None makes none (Day 4.3). For the policies
            "hybrid" and "separate".
        kv_transfer_config: how this engine shares keys and values with others, see `KVTransferConfig`; None shares
            nothing (Day 4.6). For one device.

    Further ones are those of `PlainOptions`.

    Raises:
        ValueError: a value is out of range, or two options exclude each other.
    """

    gpu_memory_utilization: float = 0.9
    kv_cache_dtype: str = "auto"
    kv_offloading_size: float = 0.0
    kv_offloading_folder: str | None = None
    kv_offloading_folder_size: float = 16.0
    num_quantized_blocks: int = 0
    scheduling_policy: str = "fcfs"
    policy: str = "hybrid"
    latency_target: float | None = None
    max_step_seconds: float | None = None
    scale_chunks_by_load: bool = False
    enforce_eager: bool | None = None
    bucketing_strategy: str | None = None
    cpu_products: str | None = None
    activations: str | None = None
    tensor_parallel_size: int = 1
    enable_expert_parallel: bool = False
    pipeline_parallel_size: int = 1
    async_scheduling: bool = False
    speculative_config: Mapping[str, Any] | None = None
    kv_transfer_config: Mapping[str, Any] | None = None

    def __post_init__(self):
        super().__post_init__()
        if self.kv_cache_dtype == "fp8":
            object.__setattr__(self, "kv_cache_dtype", "fp8_e4m3")
        check_count("tensor_parallel_size", self.tensor_parallel_size)
        check_count("pipeline_parallel_size", self.pipeline_parallel_size)
        for name, choices in CHOICES.items():
            if (value := getattr(self, name)) not in choices:
                raise ValueError(f"{name} is {value!r}: give one of {', '.join(filter(None, choices))}")
        for name in ("kv_offloading_size", "kv_offloading_folder_size", "num_quantized_blocks"):
            if not 0 <= (value := getattr(self, name)) < 2**31:
                raise ValueError(f"{name} is {value}: give at least 0")
        if not 0 <= (self.max_step_seconds or 0) < math.inf:
            raise ValueError(f"max_step_seconds is {self.max_step_seconds}: give seconds, or 0")
        if not 0 < self.gpu_memory_utilization <= 1:
            raise ValueError(
                f"gpu_memory_utilization is {self.gpu_memory_utilization}: give a share above 0 and at most 1"
            )
        self._check_together(self._used())

    def _used(self) -> set[str]:
        """What has another value than its default, as `PAIRS` calls it."""
        used = {each.name for each in fields(self) if getattr(self, each.name) != each.default}
        used |= {f"policy={self.policy}", f"enable_prefix_caching={self.enable_prefix_caching}"}
        if self.keeps_cold_blocks:
            used.add("kv_offloading_size")
        if (
            self.kv_transfer_config is not None
            and KVTransferConfig.of(self.kv_transfer_config).is_kv_consumer
        ):
            used.add("kv_transfer_config that reads")
        if self.speculative_config is not None:
            SpeculativeConfig.of(self.speculative_config)  # it is checked
        return used

    def _check_together(self, used: set[str]) -> None:
        for name, policies in POLICIES.items():
            if name in used and self.policy not in policies:
                known = " or ".join(f'"{policy}"' for policy in policies)
                raise ValueError(f"{name} is for policy={known}, and the policy is {self.policy!r}")
        for first, second, reason in PAIRS:
            if first in used and second in used:
                raise ValueError(f"{first} and {second}: {reason}; leave one of them out")

    @property
    def keeps_cold_blocks(self) -> bool:
        """Whether blocks have a place outside the pool."""
        return bool(self.kv_offloading_size or self.kv_offloading_folder or self.num_quantized_blocks)

    @property
    def speculation(self) -> SpeculativeConfig | None:
        """The checked `speculative_config`.

        Raises:
            ValueError: it is wrong.
        """
        return None if self.speculative_config is None else SpeculativeConfig.of(self.speculative_config)

    @property
    def num_ranks(self) -> int:
        """Processes that compute the model together."""
        return self.tensor_parallel_size * self.pipeline_parallel_size

    @property
    def has_stages(self) -> bool:
        """Whether ranks share the layers, and not every matrix."""
        return self.pipeline_parallel_size > 1


def options_on(device: str, given: Mapping[str, Any]) -> EngineOptions:
    """The options of an engine on a device; `block_size` has another default on CUDA.

    Args:
        given: fields of `EngineOptions`.

    Raises:
        ValueError: as `EngineOptions`.
    """
    usual = {"block_size": NVIDIA_BLOCK} if device == "cuda" else {}
    return EngineOptions(**{**usual, **given})


def check_policy(names: ServingPackage, policy: str) -> None:
    """Check that there is such a policy.

    Args:
        names: the module `serving` of a solution.

    Raises:
        ValueError: the name is unknown; the message lists the known ones.
    """
    policies = ["hybrid", "separate", *names.POLICIES]
    if policy not in policies:
        raise ValueError(f"policy is {policy!r}: give one of {', '.join(policies)}")


def limits_of(options: EngineOptions, names: ServingPackage, config: ModelShape) -> EngineLimits:
    """The limits of an engine.

    Args:
        names: the module `serving` of its solution.

    Raises:
        ValueError: the model reads fewer tokens than are asked for, or what needs chunks has none.
    """
    kind = names.POLICIES.get(options.policy, names.HybridScheduler)
    limits = EngineLimits.of(options, config, kind.cuts_prompts)
    if options.scale_chunks_by_load and not limits.has_chunks:
        raise ValueError(f"scale_chunks_by_load {NEEDS_CHUNKS}")
    return limits
