"""Measurements before an engine's first request: memory of the largest step, and cost of steps."""

from tiny_llm_engine.engine_options import EngineLimits
from tiny_llm_engine.machine.ram import release_heap
from tiny_llm_engine.packed_runner import PackedRunner
from tiny_llm_engine.solutions.port import Port
from tiny_llm_engine.solutions.solution_types import Array, Network, PackedBatch, ServingPackage, StepProfile

from ..engine_options import EngineOptions
from ..graphs.pad_batch import pad_batch
from ..parallel.other_ranks import OtherRanks
from ..runners import packed_runner
from .kv_budget import blocks_that_fit, check_pool, kv_bytes_per_token
from .step_timer import SIZES, StepTimer, fit_line

# The default of VLLM_GRAPH_RESERVED_MEM in vLLM's Gaudi plug-in. Not measured by us.
GRAPH_SHARE = 0.1


def measured_num_blocks(
    port: Port,
    names: ServingPackage,
    network: Network,
    options: EngineOptions,
    limits: EngineLimits,
    ranks: OtherRanks,
) -> int:
    """The KV blocks that the options ask for, or that fit beside the weights and the largest step.

    See `blocks_that_fit`.

    Raises:
        ValueError: not a single block fits, or not as many as are asked for.
    """
    port.backend_module.release_memory(port.device)
    release_heap()
    size, longest = options.block_size, limits.max_model_len
    block_bytes = block_bytes_of(port, network, options)
    if port.device == "cpu":
        block_bytes *= ranks.size  # all pools are in the RAM of this machine
    if options.num_blocks is not None:
        check_pool(port.backend_module, port.device, options.num_blocks, block_bytes)
        return options.num_blocks

    def peak_bytes() -> int:
        if ranks.size > 1:
            ranks.make_pools(1, is_profiled=True)
        runner = packed_runner(port, network, 1, size, ranks=ranks, kv_cache_dtype=options.kv_cache_dtype)
        batch = profiling_batch(names, limits.max_num_batched_tokens, options.max_num_seqs, longest, size)

        def run() -> Array:
            runner.run(batch)
            return port.array([0])

        return port.peak_bytes(run)

    return blocks_that_fit(
        port.backend_module,
        port.device,
        block_bytes,
        options.max_num_seqs * -(-longest // size),  # all requests at their longest
        options.gpu_memory_utilization,
        peak_bytes,
        0.0 if options.enforce_eager else GRAPH_SHARE,
    )


def block_bytes_of(port: Port, network: Network, options: EngineOptions) -> int:
    """Bytes of a KV block in all layers of this process."""
    kinds = port.float_dtype, len(network.layers), options.kv_cache_dtype
    return options.block_size * kv_bytes_per_token(network.config, *kinds)


def profiling_batch(
    names: ServingPackage, count: int, rows: int, longest: int, block_size: int
) -> PackedBatch:
    """The largest step: `count` tokens of prompts of maximum length, with `rows` sampled rows and every filter.

    For a pool of one block: all its keys are read from and written to the pad block.
    """
    sizes = [min(longest, count - start) for start in range(0, count, longest)]
    batch = pad_batch(names, 1, block_size, [(size, longest - size) for size in sizes], sampled=0)
    batch.sample_rows.extend(range(max(0, count - rows), count))
    batch.sampling.extend([names.SamplingParams(1.0, top_p=0.9, top_k=50)] * len(batch.sample_rows))
    return batch


def measured_profile(
    names: ServingPackage, runner: PackedRunner, options: EngineOptions, limits: EngineLimits
) -> StepProfile:
    """Measure the cost of steps here; each decode has half of its context, or what the blocks hold.

    Returns:
        A `StepProfile` of the solution.
    """
    seqs = max(options.max_num_seqs, 2)
    context = min(limits.max_model_len // 2, runner.most_blocks * options.block_size // seqs) - 1
    timer = StepTimer(names, runner, options.block_size, max(context, 1))
    largest = min(limits.max_num_batched_tokens, limits.max_model_len)
    sizes = sorted({*(size for size in SIZES if size < largest), -(-largest // 2), largest})

    def seconds(tokens: int, decodes: int) -> float:
        """Seconds of a step; more decodes than may run at a time cost as much as that maximum.

        The line of one request needs such a step.
        """
        at_most = options.max_num_seqs
        return timer.seconds(*((at_most, at_most) if decodes > at_most else (tokens, decodes)))

    return names.profile_steps(seconds, sizes, fit_line, [1, seqs])
