"""Buckets: the few shapes that a packed step may have, and which of them a load can meet."""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

from tiny_llm_engine.packed_model import Bucket, PackedBatch
from tiny_llm_extensions.policies.prompt_rules import PaddedSteps, PaddingRule

from ..batching.padded_budget import room_for_prompts, tokens_to_delay
from .bucket_sizes import STRATEGIES, bucketize, exponential_ladder


@dataclass(frozen=True)
class Buckets(PaddedSteps):
    """Every shape that the steps of an engine may have. `make_buckets` chooses the sizes.

    There are two kinds of steps. In a step of decodes every request has one row. A step with chunks has other bucket
    sizes of tokens, larger ones, and as many rows to sample as requests may run. So the number of rows follows from the
    number of tokens, and is no further axis.

    Args:
        decode_tokens: bucket sizes of T in a step of decodes; ends with `max_num_seqs`.
        chunk_tokens: bucket sizes of T in a step with chunks; ends with the token budget.
        decode_pages: bucket sizes of the pages that a step of decodes reads; None does not pad pages.
        chunk_pages: bucket sizes of the pages that a step with chunks reads: by chunks, and by requests of one row.
        max_num_seqs: requests that run at the same time.
        page_size: tokens per page.
        pages_per_request: pages of the longest text.
        chunk_readers: requests of several rows that may read a past in the same step.
        decode_readers: requests of one row that may read a past in a step with chunks.
        num_pages: pages that all requests of a step can read together; None when pages may be shared.
    """

    decode_tokens: Sequence[int]
    chunk_tokens: Sequence[int]
    decode_pages: Sequence[int] | None
    chunk_pages: Sequence[int] | None
    max_num_seqs: int
    page_size: int
    pages_per_request: int
    chunk_readers: int
    decode_readers: int
    num_pages: int | None = None

    def of(self, batch: PackedBatch) -> Bucket:
        """The bucket of a batch.

        Raises:
            ValueError: the batch has more tokens or pages than the largest sizes.
        """
        chunk_pages, decode_pages = batch.past_pages(self.page_size)
        # TASK 3.4.4: the sizes of decodes, or those of steps with a request of several rows.
        # Where requests of one row read pages, and in every step of decodes, each of `rows` counts as a page at least.
        # In a step with chunks there may be no past of a kind: 0 stays 0, which is a separate shape.
        raise NotImplementedError("week 3 day 4 task 4: Buckets.of")

    def is_step_with_chunks(self, bucket: Bucket) -> bool:
        """Whether some step with chunks has this bucket, whose numbers are bucket sizes or 0."""
        fewest = self._fewest_pages(bucket)
        if fewest is None:
            return False
        chunk_pages, decode_pages = fewest
        # TASK 3.4.5: how many requests does it take to read the fewest pages that are padded to this bucket?
        # One request reads `pages_per_request` at most. It has two rows or more in a chunk, else one; a chunk without
        # a past has its rows too. The options limit the readers, the requests, the rows, and the pages of all.
        raise NotImplementedError("week 3 day 4 task 5: Buckets.is_step_with_chunks")

    def _fewest_pages(self, bucket: Bucket) -> tuple[int, int] | None:
        """The fewest pages of both kinds that are padded to those of a bucket; None if no step has it. Given."""
        assert self.chunk_pages is not None, "asked of buckets that pad pages alone"
        least = bucketize(bucket.rows, self.chunk_pages)  # each row counts as a page
        assert bucket.chunk_pages is not None and bucket.decode_pages is not None
        if 0 < bucket.decode_pages < least:
            return None
        decodes = 1 if bucket.decode_pages == least else one_more(bucket.decode_pages, self.chunk_pages)
        return one_more(bucket.chunk_pages, self.chunk_pages), decodes

    def warm_up_list(self) -> list[Bucket]:
        """All buckets that a batch can have, and no others; the largest first.

        The largest comes first: it fails at once where memory is short, and the others reuse its memory.
        """
        if self.chunk_pages is None or self.decode_pages is None:
            return self._without_pages()
        # TASK 3.4.6: steps of decodes with the pages that this many requests can read; then steps with chunks.
        # In a step of decodes a bucket of rows reads at least a page each, and `pages_per_request` each at most. In a
        # step with chunks 0 pages are a shape as well. No duplicates, and sorted by `size`.
        raise NotImplementedError("week 3 day 4 task 6: Buckets.warm_up_list")

    # GIVEN: a limit that the day does not teach.
    def _most_pages(self, requests: int) -> int:
        """Maximum number of pages that this many requests can read together."""
        pages = requests * self.pages_per_request
        return pages if self.num_pages is None else min(pages, self.num_pages)

    def prompt_rule(self, mixed_steps: bool, has_chunks: bool) -> PaddingRule:
        """What padding takes from the prompts of a step, see `PadsSteps`. Given."""
        options = {"mixed_steps": mixed_steps, "has_chunks": has_chunks}
        return PaddingRule(self, room_for_prompts, tokens_to_delay, **options)

    def _without_pages(self) -> list[Bucket]:
        tokens = sorted({*self.decode_tokens, *self.chunk_tokens}, reverse=True)
        return [Bucket(count, min(count, self.max_num_seqs)) for count in tokens]


def one_more(size: int, sizes: Sequence[int]) -> int:
    """The smallest value that is padded to a size; 0 for 0. Given."""
    return max((below for below in (0, *sizes) if below < size), default=-1) + 1


def make_buckets(
    strategy: str,
    max_num_batched_tokens: int,
    max_num_seqs: int,
    max_model_len: int,
    page_size: int,
    *,
    pad_pages: bool = True,
    chunk_readers: int | None = None,
    decode_readers: int | None = None,
    num_pages: int | None = None,
) -> Buckets:
    """The buckets of an engine, from its options. Given.

    Args:
        strategy: "exponential", "linear" or "padding-aware".
        max_num_batched_tokens, max_num_seqs, max_model_len, page_size: as the scheduler and the pools have them.
        pad_pages: False where only the rows of a step are compiled for fixed shapes, and attention is not.
        chunk_readers, decode_readers: see `Buckets`; None is `max_num_seqs`.
        num_pages: see `Buckets`.

    Raises:
        ValueError: there is no such strategy.
    """
    if strategy not in STRATEGIES:
        raise ValueError(f"bucketing_strategy is {strategy!r}: choose {', '.join(STRATEGIES)}")
    make = STRATEGIES[strategy]
    longest, chunk = -(-max_model_len // page_size), max(1, max_num_batched_tokens // page_size)
    most_pages, pages = max_num_seqs * longest, None
    if pad_pages:
        # Beside the products of a chunk padded pages cost little, so their sizes are far apart, whatever the strategy.
        count = max(2, math.ceil(math.log(most_pages / min(chunk, most_pages), 4)) + 1)
        pages = exponential_ladder(min(chunk, most_pages), most_pages, count)
    return Buckets(
        decode_tokens=make(1, max_num_seqs, max_num_seqs),
        chunk_tokens=make(min(2 * max_num_seqs, max_num_batched_tokens), page_size, max_num_batched_tokens),
        decode_pages=make(1, max_num_seqs, most_pages) if pad_pages else None,
        chunk_pages=pages,
        max_num_seqs=max_num_seqs,
        page_size=page_size,
        pages_per_request=longest,
        chunk_readers=max_num_seqs if chunk_readers is None else chunk_readers,
        decode_readers=max_num_seqs if decode_readers is None else decode_readers,
        num_pages=num_pages,
    )
