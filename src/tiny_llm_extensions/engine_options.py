"""The options of an engine with all that can be put on it."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tiny_llm_engine.engine_options import NEEDS_CHUNKS, EngineLimits, PlainOptions, check_count
from tiny_llm_engine.models.layer_weights import ModelShape
from tiny_llm_engine.solutions.solution_types import ServingPackage

from .drafts.speculative_config import SpeculativeConfig
from .kv_transfer.config import KVTransferConfig

KV_CACHE_DTYPES = "auto", "int8", "fp8_e4m3"
NVIDIA_BLOCK = 256  # tokens: a block is a page of torch's kernel on CUDA, which takes multiples of it


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
        check_count("tensor_parallel_size", self.tensor_parallel_size)
        check_count("pipeline_parallel_size", self.pipeline_parallel_size)
        if self.tensor_parallel_size > 1 and self.pipeline_parallel_size > 1:
            raise ValueError(
                "tensor_parallel_size and pipeline_parallel_size are both above 1: choose one of them, for all ranks "
                "form one group"
            )
        if self.has_stages and self.policy != "hybrid":
            raise ValueError(
                f'pipeline_parallel_size is for policy="hybrid", and the policy is {self.policy!r}'
            )
        if self.speculation is not None:
            self._check_speculation()
        if self.async_scheduling:
            self._check_async()
        self._check_cold()
        if self.kv_transfer_config is not None:
            self._check_transfer(KVTransferConfig.of(self.kv_transfer_config))
        if self.cpu_products not in (None, "measured", "usual"):
            raise ValueError(f'cpu_products is {self.cpu_products!r}: give "measured" or "usual"')
        if self.activations not in (None, "int8", "int16", "float"):
            raise ValueError(f'activations is {self.activations!r}: give "int8", "int16" or "float"')
        if self.kv_cache_dtype == "fp8":
            object.__setattr__(self, "kv_cache_dtype", "fp8_e4m3")
        if self.kv_cache_dtype not in KV_CACHE_DTYPES:
            names = ", ".join(KV_CACHE_DTYPES)
            raise ValueError(f"kv_cache_dtype is {self.kv_cache_dtype!r}: give one of {names}")
        if self.scheduling_policy not in ("fcfs", "priority"):
            raise ValueError(f'scheduling_policy is {self.scheduling_policy!r}: give "fcfs" or "priority"')
        if self.latency_target is not None and self.policy != "slack":
            raise ValueError(f'latency_target is for policy="slack", and the policy is {self.policy!r}')
        if not 0 <= (self.max_step_seconds or 0) < math.inf:
            raise ValueError(f"max_step_seconds is {self.max_step_seconds}: give seconds, or 0")
        if not 0 < self.gpu_memory_utilization <= 1:
            raise ValueError(
                f"gpu_memory_utilization is {self.gpu_memory_utilization}: give a share above 0 and at most 1"
            )

    def _check_speculation(self) -> None:
        if self.has_stages:
            raise ValueError(
                "speculative_config and pipeline_parallel_size: a stage cannot check drafts yet; leave one of them out"
            )
        if self.policy not in ("hybrid", "separate"):
            raise ValueError(
                f'speculative_config is for policy="hybrid" or "separate", and the policy is {self.policy!r}'
            )

    def _check_async(self) -> None:
        for name, excludes, reason in (
            (
                "speculative_config",
                self.speculation is not None,
                "drafts follow a token that is not known yet",
            ),
            ("pipeline_parallel_size", self.has_stages, "the stages have steps in flight already"),
            (
                "tensor_parallel_size",
                self.tensor_parallel_size > 1,
                "only the first rank knows what it has drawn",
            ),
            ("policy", self.policy == "separate", '"separate" computes a step in two calls'),
        ):
            if excludes:
                raise ValueError(f"async_scheduling and {name}: {reason}; leave one of them out")

    def _check_cold(self) -> None:
        for name in ("kv_offloading_size", "kv_offloading_folder_size", "num_quantized_blocks"):
            if not 0 <= (value := getattr(self, name)) < 2**31:
                raise ValueError(f"{name} is {value}: give at least 0")
        if self.num_quantized_blocks and self.kv_cache_dtype != "auto":
            raise ValueError(
                "num_quantized_blocks: all blocks are quantised by kv_cache_dtype; leave one of them out"
            )
        if self.keeps_cold_blocks and not self.enable_prefix_caching:
            raise ValueError("kv_offloading_size keeps cached blocks: leave enable_prefix_caching on")
        if self.keeps_cold_blocks and self.num_ranks > 1:
            raise ValueError(
                "kv_offloading_size: blocks that several ranks hold in parts cannot be put away yet; leave it out"
            )

    def _check_transfer(self, config: KVTransferConfig) -> None:
        reads = config.is_kv_consumer
        for name, excludes, reason in (
            ("tensor_parallel_size", self.num_ranks > 1, "several ranks hold blocks in parts"),
            ("async_scheduling", reads and self.async_scheduling, "a step in flight may write to its blocks"),
            ("kv_offloading_size", reads and self.keeps_cold_blocks, "a planned copy may read its blocks"),
        ):
            if excludes:
                raise ValueError(f"kv_transfer_config and {name}: {reason}; leave one of them out")

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
