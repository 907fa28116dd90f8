"""From a plan to one row of tokens: chunks and decodes of many requests, end to end, for one forward."""

from collections import abc
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from .flat_blocks import FlatBlocks
from .padding import pad_chunk_reads, pad_decode_reads, pad_to
from .past_reads import PastReads, past_reads
from .sampling import SamplingParams
from .sequence import Sequence

if TYPE_CHECKING:
    from .buckets import Bucket

READS = 2 + len(FlatBlocks._fields)  # arrays of a `PastReads`


@dataclass(frozen=True)
class Scheduled:
    """An entry of a plan: the tokens of one request that the step computes.

    Its properties say what the entry is until `commit` has taken the new tokens.

    Args:
        sequence: the request.
        start: position of the first token.
        size: how many; all of them are known.
    """

    sequence: Sequence
    start: int
    size: int

    @property
    def stop(self) -> int:
        """Position after the last token."""
        return self.start + self.size

    @property
    def needs_token(self) -> bool:
        """Whether it ends with the last token that is known, so that the model has to choose the next one."""
        return self.stop == len(self.sequence.known_tokens)

    @property
    def is_decode(self) -> bool:
        """Whether it is the last token of an answer, and nothing else."""
        return self.size == 1 and self.needs_token and self.start >= self.sequence.num_prompt_tokens


def check_plan(plan: abc.Sequence[Scheduled]) -> None:
    """Raises a ValueError when one request has two entries. Given."""
    planned: set[Sequence] = set()
    for entry in plan:
        if entry.sequence in planned:
            raise ValueError(
                f"request {entry.sequence.request_id} is planned twice in one step: `plan_step` adds one entry for a"
                " request, so call `plan_decodes` and `plan_prompts` at most once each"
            )
        planned.add(entry.sequence)


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
    """

    token_ids: list[int] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)
    slots: list[int] = field(default_factory=list)
    query_start: list[int] = field(default_factory=lambda: [0])
    context_lens: list[int] = field(default_factory=list)
    block_tables: list[list[int]] = field(default_factory=list)
    sample_rows: list[int] = field(default_factory=list)
    sampling: list[SamplingParams] = field(default_factory=list)

    @property
    def spans(self) -> list[tuple[int, int]]:
        """For each request its first row, and the row after its last."""
        return list(zip(self.query_start, self.query_start[1:], strict=False))

    @property
    def segments(self) -> list[int]:
        """(T,) the request of each row."""
        return [index for index, span in enumerate(self.spans) for _ in range(*span)]

    def _reads(self, single: bool, page_size: int, pad_block: int, window: int | None) -> PastReads | None:
        """The past that requests of one row read, or those of several; see `past_reads`."""
        chosen = [i for i, (start, stop) in enumerate(self.spans) if (stop - start == 1) == single]
        parts = (self.spans, self.context_lens, self.block_tables)
        return past_reads(*([part[i] for i in chosen] for part in parts), page_size, pad_block, window)

    def past_pages(self, page_size: int) -> tuple[int, int]:
        """Pages that requests of several rows read, and those that requests of one row read."""
        pages = [0, 0]
        for (start, stop), context in zip(self.spans, self.context_lens, strict=True):
            pages[stop - start == 1] += -(-context // page_size)
        return pages[0], pages[1]

    def inputs(
        self, page_size: int, pad_block: int, window: int | None = None, bucket: "Bucket | None" = None
    ) -> "PackedInputs":
        """What a model computes of it, as lists.

        Args:
            page_size, pad_block: of the pools.
            window: how many tokens are seen in layers with a sliding window; None if the model has no such layers.
            bucket: what the lists are padded to, see `PackedInputs.padded`; None does not pad.
        """
        inputs = PackedInputs(
            self.token_ids,
            self.positions,
            self.slots,
            self.segments,
            self.sample_rows or None,
            self._reads(False, page_size, pad_block, None),
            self._reads(True, page_size, pad_block, None),
            None if window is None else self._reads(True, page_size, pad_block, window),
        )
        return inputs if bucket is None else inputs.padded(bucket, page_size, pad_block, window is not None)


@dataclass(frozen=True)
class PackedInputs:
    """A packed batch as a model takes it: lists of integers, or arrays made of them.

    Args:
        token_ids, positions, slots: (T,), see `PackedBatch`.
        segments: (T,) the request of each row.
        sample_rows: (K,) rows that reach the head; None when no row is sampled.
        chunks: what the rows of chunks read; None when no chunk has a past.
        decodes: what requests of one row read; None when none has a past.
        window_decodes: the same in layers with a sliding window; None if the model has no such layers.
    """

    token_ids: Any
    positions: Any
    slots: Any
    segments: Any
    sample_rows: Any
    chunks: PastReads | None
    decodes: PastReads | None
    window_decodes: PastReads | None = None

    def map(self, convert: Callable[[list], Any]) -> "PackedInputs":
        """The same with every list converted, for example to arrays of a device."""

        def one(part):
            return (
                None if part is None else part.map(convert) if isinstance(part, PastReads) else convert(part)
            )

        return PackedInputs(**{name: one(part) for name, part in vars(self).items()})

    def padded(
        self, bucket: "Bucket", page_size: int, pad_block: int, has_window: bool = False
    ) -> "PackedInputs":
        """A copy with every list padded to the length in the bucket. Results of the real rows do not change.

        Args:
            bucket: at least as large as the batch, see `Buckets.of`.
            page_size, pad_block: of the pools. Keys and values of padding go to the pad block, which is never read.
            has_window: whether the model has layers with a sliding window.
        """
        tokens, rows, pages = bucket.tokens, bucket.rows, bucket.decode_pages
        # TASK 3.4.8: rows of padding have a segment of their own: they see only themselves, and no other row sees them.
        # Their slot is in the pad block. A sampled row more is dropped after the step, so it may be any row.
        raise NotImplementedError("week 3 day 4 task 8: PackedInputs.padded")

    def flatten(self) -> list[Any]:
        """All arrays in a fixed order, with None for each that is missing: the inputs of a captured step."""
        flat = [self.token_ids, self.positions, self.slots, self.segments, self.sample_rows]
        for reads in (self.chunks, self.decodes, self.window_decodes):
            flat += [None] * READS if reads is None else [reads.rows, reads.groups, *reads.blocks]
        return flat

    @classmethod
    def of(cls, flat: abc.Sequence[Any]) -> "PackedInputs":
        """The inputs that `flatten` has made this list of."""
        own, parts = flat[: -3 * READS], [flat[len(flat) - n * READS :][:READS] for n in (3, 2, 1)]
        reads = [None if part[0] is None else PastReads(*part[:2], FlatBlocks(*part[2:])) for part in parts]
        return cls(*own, *reads)


def pack(plan: abc.Sequence[Scheduled]) -> PackedBatch:
    """Puts the tokens of all entries into one row. The entries may come in any order.

    Args:
        plan: entries of different requests, whose blocks are reserved.
    """
    batch = PackedBatch()
    # TASK 3.3.2: for each entry its tokens, their positions and slots, where the next entry begins, and its past.
    # A row is sampled only when it holds the last token that is known. In the middle of a prompt the prompt follows.
    raise NotImplementedError("week 3 day 3 task 2: pack")
    # END TASK
    return batch
