"""What limits the prompts of a step besides the budget, for example an adaptive chunker. Given."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from tiny_llm_common.events import Event

from .packing import Scheduled

if TYPE_CHECKING:  # of Day 2.7, and of the learner's choice
    from ..chunked_prefill.chunk_size import Chunker


class PromptRule(Protocol):
    """Part of a plan's making that a scheduler may have any number of."""

    def limit(self, left: int, decodes: int) -> int:
        """Of `left` tokens of prompts, how many the step may have beside its decodes."""
        ...

    def trim(self, plan: list[Scheduled], calls: Sequence[Sequence[Scheduled]]) -> None:
        """Shortens the chunks of a whole plan, which is computed in these calls."""


class PadsSteps(Protocol):
    """What the calls of a step are padded to: the `Buckets` of Day 3.4."""

    def check_limits(self, budget: int, max_num_seqs: int, mixed_steps: bool) -> None:
        """Raises a ValueError when the sizes do not fit these limits."""

    def prompt_rule(self, mixed_steps: bool, has_chunks: bool) -> PromptRule:
        """Counts padded tokens: what the model computes.

        Args:
            mixed_steps: whether a step is one call.
            has_chunks: whether a prompt may be cut.
        """
        ...


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
