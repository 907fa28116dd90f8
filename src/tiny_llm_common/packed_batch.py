"""A step in one row of tokens: what the scheduler gives to the model. Given."""

from dataclasses import dataclass, field
from typing import Any

from .sampling import SamplingParams


@dataclass(frozen=True)
class PackedBatch:
    """R requests in T rows; the rows of a request stand together, in the order of its text.

    Args:
        token_ids: (T,) ids.
        positions: (T,) each token's position in its own text.
        slots: (T,) where its keys and values go.
        query_start: (R + 1,) first row of each request, and T.
        context_lens: (R,) tokens of each request that earlier steps have computed.
        block_tables: R tables, each with the request's blocks in the order of its text.
        sample_rows: (K,) rows whose next token is wanted.
        sampling: (K,) how to draw it.
        requests: (K,) the `Sequence` of each sampled row, if one of them wants its logits changed; empty otherwise.
    """

    token_ids: list[int] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)
    slots: list[int] = field(default_factory=list)
    query_start: list[int] = field(default_factory=lambda: [0])
    context_lens: list[int] = field(default_factory=list)
    block_tables: list[list[int]] = field(default_factory=list)
    sample_rows: list[int] = field(default_factory=list)
    sampling: list[SamplingParams] = field(default_factory=list)
    requests: list[Any] = field(default_factory=list)

    @property
    def spans(self) -> list[tuple[int, int]]:
        """For each request its first row, and the row after its last."""
        return list(zip(self.query_start, self.query_start[1:], strict=False))

    @property
    def segments(self) -> list[int]:
        """(T,) the request of each row."""
        return [index for index, span in enumerate(self.spans) for _ in range(*span)]

    def past_pages(self, page_size: int) -> tuple[int, int]:
        """Pages that requests of several rows read, and those that requests of one row read."""
        several = single = 0
        for (start, stop), context in zip(self.spans, self.context_lens, strict=True):
            pages = -(-context // page_size)
            several, single = (several, single + pages) if stop - start == 1 else (several + pages, single)
        return several, single
