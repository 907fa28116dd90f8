"""Opens Week 3's engine around one loaded model: makes its parts in their order, with measurements in between."""

import time
from collections.abc import Callable
from typing import Any

from tiny_llm_engine.engine_options import EngineLimits
from tiny_llm_engine.llm_engine import LLMEngine
from tiny_llm_engine.packed_runner import PackedRunner
from tiny_llm_engine.solutions.port import Port
from tiny_llm_engine.solutions.solution_types import AnswerSequence, Network

from .cold_blocks.cold_store import ColdStore, open_cold_store
from .drafts.speculation import Speculation, draft_model
from .engine_options import EngineOptions, limits_of
from .given import given_of
from .grammars.grammar import Grammars
from .graphs.step_shapes import StepShapes
from .growing_pool import GrowingPool, typical_blocks
from .kv_transfer.connector import TinyConnector, open_connector
from .nvidia.text_steps import attention_in_words, why_no_texts
from .parallel.other_ranks import OtherRanks
from .planning import Planning
from .profiling.engine_profiling import block_bytes_of, measured_num_blocks, measured_profile
from .profiling.product_choice import choose_products

NO_PROMPT_ROWS = (
    "prompt_logprobs needs steps of any number of sampled rows, and these are padded: use enforce_eager=True without "
    "bucketing_strategy"
)


def open_engine(
    port: Port,
    network: Network,
    tokenizer: Any,
    options: EngineOptions,
    *,
    ranks: OtherRanks | None = None,
    draft_network: Network | None = None,
    model: str | None = None,
    weights: str | None = None,
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
        weights: names them, for engines that read each other's blocks, see `weights_name`.
        clock: seconds, for events and metrics.
        warm_up: runs every shape of a step once, if the model is compiled.

    Raises:
        OSError: the port of `kv_transfer_config` is taken.
        RankError: a rank is gone.
        ValueError: the options contradict each other or the model, or no KV block fits.
    """
    names, ranks = port.serving, ranks or OtherRanks()
    limits = limits_of(options, names, network.config)
    products = put_fast_paths(port, network, options, ranks)
    num_blocks = measured_num_blocks(port, names, network, options, limits, ranks)
    no_texts = why_no_texts(port, network, options)
    shapes = StepShapes(port, names, options, limits, num_blocks, has_texts=no_texts is None)
    start = time.perf_counter()
    ranks.make_pools(num_blocks)
    grows = may_grow(options, shapes, ranks)
    first = typical_blocks(options.max_num_seqs, options.block_size, num_blocks) if grows else num_blocks
    runner = shapes.new_runner(network, ranks, first)
    growing = GrowingPool(runner, block_bytes_of(port, network, options)) if grows else None
    cold = open_cold_store(port, runner, options, model)
    if shapes.is_compiled:
        warm_up(shapes, runner)
    profile = measured_profile(names, runner, options, limits) if options.policy == "slack" else None
    speculation = _speculation(port, runner, options, limits, draft_network)
    setup_seconds = time.perf_counter() - start  # most of it compiles, if anything is compiled
    connector = None
    if options.kv_transfer_config is not None:
        given = options.kv_transfer_config
        connector = open_connector(port, runner, options.kv_cache_dtype, given, weights)
    planning = Planning(names, options, limits, profile, speculation, cold, growing, connector)
    engine = LLMEngine(
        port, tokenizer, options, limits, runner, planning.loop, products, setup_seconds, clock
    )
    engine.extensions |= {"shapes": shapes, "ranks": ranks}
    if port.device == "cuda":
        engine.extensions["attention"] = attention_in_words(no_texts)
    put_grammars_on(engine)
    if growing is not None:
        engine.extensions["growing"] = growing
    if speculation is not None:
        engine.extensions["drafts"] = speculation.proposals
    if runner.buckets is not None:
        engine.on_request["prompt_logprobs"] = refuse_prompt_logprobs
    if cold is not None:
        put_cold_store_on(engine, cold)
    if connector is not None:
        put_connector_on(engine, connector)
    engine.on_close.insert(0, ranks.close)
    return engine


def may_grow(options: EngineOptions, shapes: StepShapes, ranks: OtherRanks) -> bool:
    """Whether an engine's pool begins small: on a CPU, without a number of blocks.

    Graphs and buckets know the pool's size, other pools are as large as this one, copies or a step may be in flight
    while the next one is planned, and "slack" counts the free blocks by itself. Such engines have all blocks at once.
    """
    port = shapes.port
    in_ram = port.backend_module.device_memory(port.device) is None
    is_plain = in_ram and not shapes.is_compiled and shapes.buckets is None
    is_alone = ranks.size == 1 and not options.async_scheduling and not options.keeps_cold_blocks
    counts_none = options.policy != "slack" and options.speculation is None
    return options.num_blocks is None and is_plain and is_alone and counts_none


def put_grammars_on(engine: LLMEngine) -> None:
    """Let answers follow grammars."""
    grammars = engine.extensions["grammars"] = Grammars(engine.tokenizer, engine.runner.vocab_size)
    engine.on_request["structured_outputs"] = grammars.constrain


def put_cold_store_on(engine: LLMEngine, cold: ColdStore) -> None:
    """Let an engine keep blocks outside its pool."""
    engine.extensions["cold"] = cold
    engine.runner.before.append(lambda batch: cold.make(batch.moves))
    engine.listeners.append(cold.on_event)
    engine.on_reset.append(cold.forget)
    engine.on_close.append(cold.close)


def put_connector_on(engine: LLMEngine, connector: TinyConnector) -> None:
    """Let an engine share keys and values with others."""
    engine.extensions["kv_transfer"] = connector
    engine.on_request["extra_args"] = connector.check
    engine.listeners.append(connector.on_event)
    engine.on_close.append(connector.shutdown)


def refuse_prompt_logprobs(sequence: AnswerSequence) -> None:
    """End an answer that wants what steps with a fixed number of sampled rows do not have."""
    sequence.fail(NO_PROMPT_ROWS)


def put_fast_paths(port: Port, network: Network, options: EngineOptions, ranks: OtherRanks) -> str:
    """Put the fastest products and layers of this machine on a network; returns the products in words."""
    if options.kv_cache_dtype != "auto" and port.device == "cpu":
        given_of(port).kernels.prepare(options.kv_cache_dtype)
    # Several ranks share the cores, so that what one of them measures says little.
    wanted = options.cpu_products if ranks.size == 1 else "usual"
    products = choose_products(port, network, wanted, options.enforce_eager is False)
    given_of(port).use_native_layers(network)
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
