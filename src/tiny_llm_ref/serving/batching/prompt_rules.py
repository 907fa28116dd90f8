"""What limits the prompts of a step besides the budget: an adaptive chunker, and padding. Given."""

from collections.abc import Sequence
from typing import Protocol

from ..buckets.buckets import Buckets
from ..chunked_prefill.chunk_size import Chunker
from ..requests.events import Event
from .packing import Scheduled
from .padded_budget import delay_padding, least_budget, room_for_prompts


class PromptRule(Protocol):
    """Part of a plan's making that a scheduler may have any number of."""

    def limit(self, left: int, decodes: int) -> int:
        """Of `left` tokens of prompts, how many the step may have beside its decodes."""
        ...

    def trim(self, plan: list[Scheduled], calls: Sequence[Sequence[Scheduled]]) -> None:
        """Shortens the chunks of a whole plan, which is computed in these calls."""


class ChunkerRule:
    """Lets a chunker choose, from what steps with chunks have cost. A listener of the scheduler.

    Args:
        chunker: for example an `AdaptiveChunker`.
        max_num_seqs: requests that run at the same time.
    """

    def __init__(self, chunker: Chunker, max_num_seqs: int):
        self.chunker, self.max_num_seqs = chunker, max_num_seqs

    def limit(self, left: int, decodes: int) -> int:
        """See `PromptRule`. Without decodes nobody waits for the chunks."""
        return (
            min(left, self.chunker.select_chunk_size(left, decodes / self.max_num_seqs)) if decodes else left
        )

    def trim(self, plan: list[Scheduled], calls: Sequence[Sequence[Scheduled]]) -> None:
        """Nothing to shorten."""

    def __call__(self, event: Event) -> None:
        """Tells the chunker what a step with chunks has cost."""
        tokens = sum(part.tokens for part in event.parts if part.kind == "chunk")
        if tokens:
            self.chunker.observe(tokens, event.seconds)


class PaddingRule:
    """Counts padded tokens, which is what the model computes (Day 3.4).

    Args:
        buckets: what the calls are padded to.
        mixed_steps: whether a step is one call.
        has_chunks: whether a prompt may be cut.
    """

    def __init__(self, buckets: Buckets, *, mixed_steps: bool, has_chunks: bool):
        self.buckets, self.mixed_steps, self.has_chunks = buckets, mixed_steps, has_chunks

    def limit(self, left: int, decodes: int) -> int:
        """See `PromptRule`."""
        budget = max(left + decodes, least_budget(self.buckets, self.mixed_steps))
        return room_for_prompts(budget, decodes, self.buckets, separate=not self.mixed_steps)

    def trim(self, plan: list[Scheduled], calls: Sequence[Sequence[Scheduled]]) -> None:
        """See `PromptRule`."""
        if self.has_chunks:
            delay_padding(plan, calls, self.buckets)
