"""The shapes that the steps of an engine can have: what is padded and compiled, and the warm-up before any request."""

import warnings
from collections.abc import Iterable
from typing import Any

from tiny_llm_engine.arrays.windows import inner_layer
from tiny_llm_engine.engine_options import EngineLimits
from tiny_llm_engine.machine.progress_bar import warm_up_bar
from tiny_llm_engine.machine.user_cache import user_cache
from tiny_llm_engine.packed_runner import PackedRunner
from tiny_llm_engine.solutions.port import Port
from tiny_llm_engine.solutions.solution_types import Bucket, Buckets, Network, PackedBatch, ServingPackage

from ..engine_options import EngineOptions
from ..gaudi.lone_prompts import buckets_of_lone_prompts
from ..given import given_of
from ..nvidia.text_steps import decode_sizes, put_texts_on
from ..parallel.other_ranks import OtherRanks
from ..runners import packed_runner
from .pad_batch import pad_batch
from .padded_steps import warm_up, warm_up_on

BY_DEFAULT = ("hpu", "cuda")  # on a CPU and in MLX, compiling takes minutes and a C++ compiler

FREE_SHAPES = 4  # at most, of graphs that take any number of rows, see `shapes_without_buckets`


def will_compile(port: Port, enforce_eager: bool | None) -> bool:
    """Whether the engine compiles its model.

    Args:
        enforce_eager: True never compiles, False always, and None on the devices that gain most.

    Raises:
        ValueError: compilation is asked for, and something is missing on this machine. With None it warns instead.
    """
    if enforce_eager or (enforce_eager is None and port.device not in BY_DEFAULT):
        return False
    missing = given_of(port).cannot_compile(port.device)
    if missing is None:
        return True
    if enforce_eager is False:
        raise ValueError(f"enforce_eager=False: {missing}; or leave it out to run without compiling")
    warnings.warn(f"nothing is compiled, so steps take longer: {missing}", stacklevel=2)
    return False


def keep_compiled(port: Port) -> None:
    """Let the compiler keep its results from run to run in the user's cache folder, unless it has one already."""
    try:
        port.backend_module.keep_compiled(user_cache())
    except OSError:  # no home, or none that can be written: each run compiles again
        return


def shapes_without_buckets(
    names: ServingPackage, most: int, decodes: Iterable[int], longest: int, pad_block: int, block_size: int
) -> list[PackedBatch]:
    """Batches that warm up graphs for any number of rows: one row, several, and as many as a step has.

    Decodes have a context, so that the code that reads it is compiled as well. One row has a separate graph, and so
    have numbers of rows for which the model chooses another product, as it does for quantised weights.

    Args:
        names: of the solution's `serving`.
        most: tokens of a step.
        decodes: requests of each step of decodes.
        longest: tokens of a prompt, at most: a position beyond them is in no table.
    """
    # Three keys with the row itself: a compiler takes a size of 1 for a constant.
    lone = [[(1, min(2, longest - 1))] * count for count in decodes]
    chunks = [
        [(min(longest, count - start), 0) for start in range(0, count, longest)]
        for count in {min(2, most), most}
    ]
    return [pad_batch(names, pad_block, block_size, requests) for requests in lone + chunks]


# On an HPU, the largest step that is captured as a whole: its rows, and the slots of the pages that its chunks read.
# vLLM's Gaudi plug-in has the same sum, and as its limit the token budget, which is 2,048 by default. Graphs of long
# prompts take gigabytes there, and launching operators is a small part of such a step. Not measured by us.
MOST_CAPTURED = 2048


class StepShapes:
    """Decides which steps are padded and whether the model is compiled, and makes the runner for it.

    Args:
        names: the module `serving` of the solution.
        has_texts: whether attention reads block tables, see `why_no_texts`: then only steps of decodes are padded.

    Raises:
        ValueError: the model should be compiled, which this machine cannot do.
    """

    def __init__(
        self,
        port: Port,
        names: ServingPackage,
        options: EngineOptions,
        limits: EngineLimits,
        num_blocks: int,
        *,
        has_texts: bool = False,
    ):
        self.port, self.names, self.options, self.limits = port, names, options, limits
        self.num_blocks, self.has_texts = num_blocks, has_texts
        self.is_compiled = will_compile(port, options.enforce_eager)
        self.buckets = self._make_buckets()

    def _make_buckets(self) -> Buckets | None:
        """The shapes of all steps; None when nothing is padded."""
        if self.has_texts:
            return None
        options, limits = self.options, self.limits
        fixed = given_of(self.port).fixed_sizes(self.port.device) if self.is_compiled else ("pages",)
        strategy = options.bucketing_strategy or ("exponential" if "tokens" in fixed else None)
        if strategy is None:
            return None
        rows, speculation = options.max_num_seqs, options.speculation
        if speculation is not None:  # every draft has a sampled row
            rows = max(rows, 1 + speculation.num_speculative_tokens)
        sizes = limits.max_num_batched_tokens, rows, limits.max_model_len, options.block_size
        shares_nothing = not options.enable_prefix_caching
        policy = options.policy if speculation is None else None
        known = limits_of_steps(policy, limits.has_chunks, self.num_blocks) if shares_nothing else {}
        return self.names.make_buckets(strategy, *sizes, pad_pages="pages" in fixed, **known)

    def new_runner(
        self, network: Network, ranks: OtherRanks | None = None, first_blocks: int | None = None
    ) -> PackedRunner:
        """A runner of the network; with its parts compiled, the first run of each shape compiles them.

        Args:
            network: `Qwen3ModelWeek3`, or a rank's part of it.
            ranks: the others, which this rank's runner announces its batches to.
            first_blocks: blocks with which the pools begin; all of them when None.
        """
        names = "kv_cache_dtype", "async_scheduling"
        capture: dict[str, Any] = {name: getattr(self.options, name) for name in names}
        if self.is_compiled:
            keep_compiled(self.port)
            where = self.port.device, max(FREE_SHAPES, self.num_shapes)
            network = given_of(self.port).compile_model(network, *where)
            # A graph cannot contain what the host reads.
            if all(getattr(inner_layer(each).mlp, "reads_no_count", True) for each in network.layers):
                capture["capture"] = lambda forward: given_of(self.port).capture_step(forward, *where)
                capture["is_captured"] = self.is_captured
        runner = packed_runner(
            self.port,
            network,
            first_blocks or self.num_blocks,
            self.options.block_size,
            buckets=self.buckets,
            ranks=ranks,
            most_blocks=self.num_blocks,
            **capture,
        )
        runner.max_model_len = self.limits.max_model_len
        if self.has_texts:
            put_texts_on(runner, self.names, self.options.max_num_seqs)
        return runner

    def is_captured(self, bucket: Bucket | None) -> bool:
        """Whether steps of a bucket are captured as a whole, where the device captures steps."""
        if bucket is None or self.port.device != "hpu":
            return bucket is not None or not self.has_texts  # what has no shape is not captured
        return bucket.tokens + (bucket.chunk_pages or 0) * self.options.block_size <= MOST_CAPTURED

    def warm_up(self, runner: PackedRunner) -> None:
        """Run every shape that a step can have once, with a progress bar on a terminal."""
        with warm_up_bar() as on_progress:
            if self.buckets is not None:
                warm_up(runner, on_progress, self._lone_prompts())
            else:
                warm_up_on(runner, self._free_shapes(), on_progress)

    def _lone_prompts(self) -> list[tuple[PackedBatch, Bucket]]:
        """A prompt alone in each bucket where it has a graph of its own."""
        if self.port.device != "hpu":
            return []
        batch = pad_batch(self.names, self.num_blocks, self.options.block_size, [(2, 0)])
        return [(batch, bucket) for bucket in buckets_of_lone_prompts(self.buckets)]

    @property
    def largest_bias(self) -> tuple[int, int]:
        """Queries and keys of the largest bias of a padded step on a Gaudi: its rows, and the pages that chunks read.

        At 2³¹ bytes it is computed in several calls, see `fused.fused_attention`.
        """
        listed = [] if self.buckets is None else self.buckets.warm_up_list()
        sizes = [(b.tokens, b.tokens + (b.chunk_pages or 0) * self.options.block_size) for b in listed]
        return max(sizes, key=lambda size: size[0] * size[1], default=(0, 0))

    def _free_shapes(self) -> list[PackedBatch]:
        options, limits = self.options, self.limits
        seqs, longest = options.max_num_seqs, limits.max_model_len
        decodes = decode_sizes(seqs) if self.has_texts else {1, min(2, seqs)}
        sizes = limits.max_num_batched_tokens, decodes, longest
        return shapes_without_buckets(self.names, *sizes, self.num_blocks, options.block_size)

    @property
    def num_shapes(self) -> int:
        """Shapes of a step that are compiled or captured."""
        if not self.is_compiled:
            return 0
        if self.buckets is None:
            return len(self._free_shapes())
        return len(self.buckets.warm_up_list()) + len(self._lone_prompts())


def limits_of_steps(policy: str | None, has_chunks: bool, num_blocks: int) -> dict[str, int]:
    """Upper limits of any step when no two requests share a block, see `Buckets`.

    Args:
        policy, num_blocks: of the engine; None if a decode may have several rows, so that any request reads as a chunk.
        has_chunks: whether a prompt may be computed in parts.
    """
    limits = {"num_pages": num_blocks}
    if policy not in ("hybrid", "separate"):
        return limits
    if not has_chunks:  # whole prompts, in steps of their own
        return {**limits, "chunk_readers": 0, "decode_readers": 0}
    # One prompt at a time is computed in part. In a call of chunks alone, its last token is a request of one row.
    return {**limits, "chunk_readers": 1, **({"decode_readers": 1} if policy == "separate" else {})}
