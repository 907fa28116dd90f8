"""How an engine plans its steps: the policy with all that it was given."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

from tiny_llm_engine.engine_options import EngineLimits
from tiny_llm_engine.packed_runner import PackedRunner
from tiny_llm_engine.solutions.solution_types import (
    AnswerSequence,
    BlockAllocator,
    Event,
    ServingPackage,
    StepProfile,
)
from tiny_llm_engine.step_loop import StepLoop

from .cold_blocks.cold_store import ColdStore
from .drafts.speculation import Speculation
from .engine_options import EngineOptions
from .growing_pool import GrowingPool
from .kv_transfer.connected_loop import ConnectedLoop
from .kv_transfer.protocol import KVConnector
from .make_loop import make_loop

TILE = 64  # tokens: what sizes that a policy chooses are multiples of


@dataclass(frozen=True)
class Planning:
    """Makes the loop of an engine, and another one when its prefix cache is reset.

    Args:
        names: the module `serving` of the solution.
        profile: what steps cost, for the policy "slack".
        speculation: makes and checks drafts; None for an engine without them.
        cold: blocks outside the pool, if any.
        growing: lets the pool grow; None where it has all its blocks.
        connector: shares keys and values with other engines, if any.
    """

    names: ServingPackage
    options: EngineOptions
    limits: EngineLimits
    profile: StepProfile | None
    speculation: Speculation | None
    cold: ColdStore | None = None
    growing: GrowingPool | None = None
    connector: KVConnector | None = None

    def loop(
        self, runner: PackedRunner, clock: Callable[[], float], on_event: Callable[[Event], object]
    ) -> StepLoop[AnswerSequence]:
        """A loop with empty blocks and an empty queue."""
        options, names, drafts = self.options, self.names, self.speculation
        allocator: BlockAllocator = names.BlockAllocator(
            runner.num_blocks, options.block_size, enable_prefix_caching=options.enable_prefix_caching
        )
        cold = None if self.cold is None else self.cold.parts(names)
        if cold is not None:
            allocator.prefix_cache = names.KeepingCache(cast(Any, cold.blocks))
        loop = make_loop(
            names,
            options.policy,
            runner,
            allocator,
            max_num_batched_tokens=self.limits.max_num_batched_tokens,
            max_num_seqs=options.max_num_seqs,
            enable_chunked_prefill=options.enable_chunked_prefill,
            long_prefill_token_threshold=options.long_prefill_token_threshold,
            queue=cast(Any, names.PriorityScheduler()) if options.scheduling_policy == "priority" else None,
            cold=cold,
            buckets=runner.buckets,
            chunker=self._load_chunker() if options.scale_chunks_by_load else None,
            drafts=None if drafts is None else drafts.proposals,
            async_scheduling=options.async_scheduling,
            clock=clock,
            on_event=on_event,
            **self._slack_options(),
        )
        if self.growing is not None:
            self.growing.put_on(loop)
        if self.connector is not None:
            ConnectedLoop.put_on(loop, self.connector)
        return loop

    def _slack_options(self) -> dict[str, Any]:
        if self.profile is None:
            return {}
        tile = min(TILE, self.limits.max_num_batched_tokens)
        return {"profile": self.profile, "latency_target": self.options.latency_target, "tile": tile}

    def _load_chunker(self) -> Any:
        """Chunks in multiples of a tile, up to what a step has beside the most decodes."""
        largest = max(1, self.limits.max_num_batched_tokens - self.options.max_num_seqs)
        tile = min(TILE, largest)
        return self.names.LoadChunker(range(tile, largest + 1, tile))
