"""The shape of a packed step. Given."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Bucket:
    """The shape of a packed step, which is the key of a compiled graph.

    Args:
        tokens: T, rows of the step.
        rows: rows that may be sampled, and that may read a past of their own; at most `tokens`.
        chunk_pages: pages that chunks read; 0 when no chunk has a past, None when such pages are not padded.
        decode_pages: pages that requests of one row read; 0 when none has a past, None when they are not padded.
    """

    tokens: int
    rows: int
    chunk_pages: int | None = None
    decode_pages: int | None = None

    @property
    def size(self) -> tuple[int, int, int]:
        """For comparisons: rows first, then pages."""
        return self.tokens, self.chunk_pages or 0, self.decode_pages or 0
