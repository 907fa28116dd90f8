"""The policies of the literature and of this course, by name: Day 3.5.

All are the loop of Day 3.3 with another plan. The day's tasks are the profile of steps and the budget
under a target (`step_profile`), Orca, paced prefill, ageing, slack and preemption by class; the other
policies are given.
"""

from typing import Any

from tiny_llm_common.packed_model import PackedModel

from ..batching.hybrid_scheduler import HybridScheduler
from ..blocks.block_allocator import BlockAllocator
from ..parallel.pipelined_scheduler import PipelinedScheduler
from .chunks_only import ChunksOnly
from .decode_first import DecodeFirst
from .orca import Orca
from .paced_prefill import PacedPrefill
from .prefill_first import PrefillFirst
from .sarathi_serve import SarathiServe
from .slack import SlackScheduler
from .static_batching import StaticBatching

POLICIES: dict[str, type[HybridScheduler]] = {
    "static": StaticBatching,
    "decode-first": DecodeFirst,
    "prefill-first": PrefillFirst,
    "orca": Orca,
    "chunks-only": ChunksOnly,
    "sarathi": SarathiServe,
    "paced": PacedPrefill,
    "slack": SlackScheduler,
}


def make_scheduler(
    name: str, model: PackedModel, allocator: BlockAllocator, /, **options: Any
) -> HybridScheduler:
    """A scheduler by the name of its policy.

    Args:
        name: a key of `POLICIES`; or "hybrid" or "separate", which are `HybridScheduler` with and without mixed steps.
        model, allocator, options: as the policy's class takes them. A model in several stages needs "hybrid".

    Raises:
        ValueError: there is no such policy, or an option is out of range.
    """
    stages: Any = model
    if getattr(model, "num_stages", 1) > 1:
        if name != "hybrid":
            raise ValueError(f'policy is {name!r}: with pipeline_parallel_size above 1 give "hybrid"')
        return PipelinedScheduler(stages, allocator, **options)
    if name in ("hybrid", "separate"):
        return HybridScheduler(model, allocator, mixed_steps=name == "hybrid", **options)
    if name not in POLICIES:
        raise ValueError(f"policy is {name!r}: give one of {', '.join(['hybrid', 'separate', *POLICIES])}")
    return POLICIES[name](model, allocator, **options)
