"""Opens Week 3's engine around one loaded model: makes its parts in their order, with measurements in between."""

import time
from collections.abc import Callable
from typing import Any

from ..solution_types import Network
from .cold_store import open_cold_store
from .engine_options import EngineLimits, EngineOptions
from .llm_engine import LLMEngine
from .packed_runner import OtherRanks, PackedRunner
from .planning import Planning
from .port import Port
from .profiling.attention_choice import has_chunk_kernel
from .profiling.engine_profiling import measured_num_blocks, measured_profile
from .profiling.product_choice import choose_products
from .speculation.speculation import Speculation, draft_model
from .step_shapes import StepShapes


def open_engine(
    port: Port,
    network: Network,
    tokenizer: Any,
    options: EngineOptions,
    *,
    ranks: OtherRanks | None = None,
    draft_network: Network | None = None,
    model: str | None = None,
    clock: Callable[[], float] = time.perf_counter,
    warm_up: Callable[[StepShapes, PackedRunner], None] = StepShapes.warm_up,
) -> LLMEngine:
    """The engine of a model that is loaded.

    Args:
        network: `Qwen3ModelWeek3` of it, or this rank's part.
        options: see `EngineOptions`.
        ranks: the others that hold a part of the model, if any. The engine ends them.
        draft_network: `Qwen3ModelWeek3` of the draft model, if the options name one.
        model: names the model, for blocks in a folder, see `model_name`.
        clock: seconds, for events and metrics.
        warm_up: runs every shape of a step once, if the model is compiled.

    Raises:
        RankError: a rank is gone.
        ValueError: the options contradict each other or the model, or no KV block fits.
    """
    names, ranks = port.serving, ranks or OtherRanks()
    limits = EngineLimits.of(options, names, network.config)
    products = put_fast_paths(port, network, options, ranks)
    num_blocks = measured_num_blocks(port, names, network, options, limits, ranks)
    shapes = StepShapes(port, names, options, limits, num_blocks)
    start = time.perf_counter()
    ranks.make_pools(num_blocks)
    runner = shapes.new_runner(network, ranks)
    cold = open_cold_store(port, runner, options, model)
    if cold is not None:
        runner.make_moves = cold.make
    if shapes.is_compiled:
        warm_up(shapes, runner)
    profile = measured_profile(names, runner, options, limits) if options.policy == "slack" else None
    speculation = _speculation(port, runner, options, limits, draft_network)
    setup_seconds = time.perf_counter() - start  # most of it compiles, if anything is compiled
    planning = Planning(names, options, limits, profile, speculation, cold)
    return LLMEngine(port, tokenizer, shapes, runner, planning, ranks, products, setup_seconds, clock)


def put_fast_paths(port: Port, network: Network, options: EngineOptions, ranks: OtherRanks) -> str:
    """Put the fastest products and layers of this machine on a network; returns the products in words."""
    if options.kv_cache_dtype != "auto" and port.device == "cpu":
        port.given.kernels.prepare(options.kv_cache_dtype)
    # Several ranks share the cores, so that what one of them measures says little.
    wanted = options.cpu_products if ranks.size == 1 else "usual"
    products = choose_products(port, network, wanted, options.enforce_eager is False)
    port.given.use_native_layers(network, has_chunk_kernel(port, wanted))
    return products


def _speculation(
    port: Port,
    runner: PackedRunner,
    options: EngineOptions,
    limits: EngineLimits,
    draft_network: Network | None,
) -> Speculation | None:
    config = options.speculation
    if config is None:
        return None
    if config.method == "ngram":
        proposer = port.serving.PromptLookup(*config.lookup)
    else:
        assert draft_network is not None  # the options name one
        proposer = draft_model(port, draft_network, options, limits, runner)
    return Speculation(port.serving, options, limits, runner, config, proposer)
