"""The runners of a port: a model with the sampler, the shapes and the tables that belong to it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import ModuleType
from typing import TYPE_CHECKING, Any

from tiny_llm_engine.backend import Backend
from tiny_llm_engine.backends.candidate_filter import CandidateFilter
from tiny_llm_engine.backends.seeded_sampling import SeededSampler
from tiny_llm_engine.model_runner import ModelRunner
from tiny_llm_engine.packed_runner import PackedRunner

from .asynchronous.async_runner import AsyncRunner
from .gaudi.lone_prompts import put_lone_prompts_on
from .graphs.padded_steps import put_buckets_on, put_capture_on
from .parallel.other_ranks import OtherRanks, put_ranks_on
from .parallel.pipelined_runner import PipelinedRunner

if TYPE_CHECKING:
    from tiny_llm_engine.solution_types import Bucket, Buckets, ServingPackage

# On a Gaudi each shape is a program of its own.
GAUDI_SHAPES = {"prompt_bucket": 128, "pad_last": "chunk", "chunk_sizes": (128, 256, 512)}


def model_runner(
    solution: ModuleType, backend_module: Backend, device: str, model: Any, **options: Any
) -> ModelRunner:
    """A `ModelRunner` for a model of Week 2, with these options.

    Args:
        solution: one port of a solution, whose samplers it takes.
        backend_module: `backend_mlx` or `backend_torch`.
        device: the model's device.
        model: `Qwen3ModelWeek2` of this port.
    """
    shapes = GAUDI_SHAPES if device == "hpu" else {}
    of_solution = {"sampler": solution.make_sampler, "create_batch_cache": solution.create_batch_cache}
    options = {**of_solution, **shapes, **options}
    return ModelRunner(model, backend_module, device, **options)


def packed_runner(
    solution: ModuleType,
    backend_module: Backend,
    device: str,
    serving: ServingPackage,
    model: Any,
    num_blocks: int,
    block_size: int,
    kv_cache_dtype: str = "auto",
    async_scheduling: bool = False,
    buckets: Buckets | None = None,
    capture: Callable[[Callable], Callable] | None = None,
    is_captured: Callable[[Bucket | None], bool] = lambda bucket: True,
    ranks: OtherRanks | None = None,
    **options: Any,
) -> PackedRunner:
    """A `PackedRunner` for a model of Week 3, with these options; see `model_runner`.

    Args:
        serving: the policy of the solution.
        model: `Qwen3ModelWeek3` of this port.
        block_size: tokens per block.
        kv_cache_dtype: see `EngineOptions`.
        async_scheduling: whether the next step is planned while this one computes.
        buckets: every call is padded to one of them; None pads nothing.
        capture, is_captured: see `put_capture_on`; None captures nothing.
        ranks: the others that compute every batch too, if any.
    """
    candidates = CandidateFilter(solution.sampler, backend_module) if device == "cpu" else None
    options = {
        "sampler": SeededSampler(solution.sampler, backend_module, device, candidates),
        "sampled": serving.Sampled,
        "inputs_of": serving.inputs_of,
        "arrays_of": serving.PackedInputs.of,
        "create_kv_pools": partial(solution.create_kv_pools, kv_cache_dtype=kv_cache_dtype),
        **options,
    }
    kind = PackedRunner
    if ranks is not None and ranks.has_stages:
        kind, options["ranks"] = PipelinedRunner, ranks
    elif async_scheduling:
        kind, options["fill_placeholders"] = AsyncRunner, solution.fill_placeholders
    runner = kind(model, backend_module, device, num_blocks=num_blocks, block_size=block_size, **options)
    if buckets is not None:
        put_buckets_on(runner, buckets, serving.pad_inputs)
    if device == "hpu":
        put_lone_prompts_on(runner)
    if capture is not None:
        put_capture_on(runner, capture, is_captured)
    if ranks is not None and ranks.size > 1 and kind is not PipelinedRunner:
        put_ranks_on(runner, ranks)
    return runner
