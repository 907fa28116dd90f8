"""The share of padding in what a model computed."""

from dataclasses import dataclass

from ..solution_types import Bucket, PackedBatch


@dataclass
class PaddingWaste:
    """Rows and pages requested, and rows and pages computed.

    Args:
        tokens, padded_tokens: rows of all calls.
        pages, padded_pages: pages that attention read in all calls, in one layer.
    """

    tokens: int = 0
    padded_tokens: int = 0
    pages: int = 0
    padded_pages: int = 0

    def count(self, batch: PackedBatch, bucket: Bucket | None, page_size: int) -> None:
        """Add a call.

        Args:
            batch: the requested batch.
            bucket: the bucket that it was padded to; None if it was not padded.
            page_size: tokens per page.
        """
        tokens, pages = len(batch.token_ids), sum(batch.past_pages(page_size))
        self.tokens += tokens
        self.pages += pages
        self.padded_tokens += tokens if bucket is None else bucket.tokens
        self.padded_pages += pages if bucket is None or bucket.chunk_pages is None else sum(bucket.size[1:])

    def since(self, earlier: "PaddingWaste") -> "PaddingWaste":
        """The counts since `earlier`."""
        before = vars(earlier)
        return PaddingWaste(**{name: value - before[name] for name, value in vars(self).items()})

    @property
    def token_share(self) -> float:
        """The share of padding among the rows."""
        return 1 - self.tokens / self.padded_tokens if self.padded_tokens else 0.0

    @property
    def page_share(self) -> float:
        """The share of padding among the pages."""
        return 1 - self.pages / self.padded_pages if self.padded_pages else 0.0
