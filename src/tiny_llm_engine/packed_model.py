"""The model as the policy of Week 3 sees it: a batch in one row of tokens, and what a model takes of it. Given."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from .sampling import SamplingParams


class FlatBlocks(NamedTuple):
    """N blocks of several requests, one after the other; five lists of N integers, or arrays made of them.

    Args:
        block_list: the block's number, its page in the pool.
        block_groups: the request that reads it, as its place among the tables; the number of tables in padding.
        block_usage: one more than the last slot of the block that is read; 0 in padding.
        block_starts: the first slot of the block that is read; 0 but at the edge of a sliding window.
        first_positions: the position in its text of the token in the block's first slot.
    """

    block_list: Any  # a NamedTuple cannot be generic before Python 3.11
    block_groups: Any
    block_usage: Any
    block_starts: Any
    first_positions: Any


@dataclass(frozen=True)
class PastReads:
    """P rows of a step and the N pages that they read; lists of integers, or arrays made of them.

    Args:
        rows: (P,) rows of the batch.
        groups: (P,) the request of each row, as `blocks.block_groups` calls it.
        blocks: five of (N,), see `flat_blocks`.
    """

    rows: Any
    groups: Any
    blocks: FlatBlocks

    def map(self, convert: Callable[[list], Any]) -> "PastReads":
        """The same with every list converted."""
        return PastReads(convert(self.rows), convert(self.groups), FlatBlocks(*map(convert, self.blocks)))


READS = 2 + len(FlatBlocks._fields)  # arrays of a `PastReads`


@dataclass(frozen=True)
class Texts:
    """The texts of R requests, for a kernel that reads pages by a block table; lists, or arrays made of them.

    Args:
        row_starts: (R + 1,) first row of each request, and T.
        key_starts: (R + 1,) sums of `lengths`, from 0 on.
        lengths: (R,) tokens of each text, those of this step included.
        tables: (R, P) the blocks of each text in its order, then the pad block.
    """

    row_starts: Any
    key_starts: Any
    lengths: Any
    tables: Any

    def map(self, convert: Callable[[list], Any]) -> "Texts":
        """The same with every list converted."""
        return Texts(*map(convert, vars(self).values()))


TEXTS = len(Texts.__dataclass_fields__)


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
        lone_prompt: (1,) the rows of a prompt that has no past and is alone in its step; None in other steps, and
            where no kernel asks for it.
        texts: what such a kernel reads instead of `chunks` and the reads of decodes; None without one.
    """

    token_ids: Any
    positions: Any
    slots: Any
    segments: Any
    sample_rows: Any
    chunks: PastReads | None
    decodes: PastReads | None
    window_decodes: PastReads | None = None
    lone_prompt: Any = None
    texts: Texts | None = None

    def map(self, convert: Callable[[list], Any]) -> "PackedInputs":
        """The same with every list converted, for example to arrays of a device."""

        def one(part: Any) -> Any:
            is_record = isinstance(part, PastReads | Texts)
            return None if part is None else part.map(convert) if is_record else convert(part)

        return PackedInputs(**{name: one(part) for name, part in vars(self).items()})

    def flatten(self) -> list[Any]:
        """All arrays in a fixed order, with None for each that is missing: the inputs of a captured step."""
        flat = [self.token_ids, self.positions, self.slots, self.segments, self.sample_rows]
        for reads in (self.chunks, self.decodes, self.window_decodes):
            flat += [None] * READS if reads is None else [reads.rows, reads.groups, *reads.blocks]
        texts = [None] * TEXTS if self.texts is None else vars(self.texts).values()
        return [*flat, *texts, self.lone_prompt]

    @classmethod
    def of(cls, flat: Sequence[Any]) -> "PackedInputs":
        """The inputs that `flatten` has made this list of."""
        texts, lone_prompt = flat[-1 - TEXTS : -1], flat[-1]
        reads = [reads_of(flat[start : start + READS]) for start in range(5, len(flat) - 1 - TEXTS, READS)]
        parts = [*flat[:5], *reads, lone_prompt, None if texts[0] is None else Texts(*texts)]
        return cls(*parts)


def reads_of(flat: Sequence[Any]) -> PastReads | None:
    """The arrays of a `PastReads`; None if they are missing."""
    rows, groups, *blocks = flat
    return None if rows is None else PastReads(rows, groups, FlatBlocks(*blocks))


@dataclass(frozen=True)
class PromptRow:
    """A row of a prompt whose request asks what the model thought of the token after it.

    Args:
        sequence: of the solution, which takes the answer by `take_prompt_sampled`.
        position: of the row, in the prompt.
    """

    sequence: Any
    position: int


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
        sample_rows: (K,) rows whose next token is wanted; after these those of `prompt_rows`, whose logits are.
        sampling: (K,) how to draw it.
        requests: (K,) the `Sequence` of each sampled row, if one of them wants its logits changed; empty otherwise.
        prompt_rows: whose next token is in the prompt, and gets its log-probability.
        sources: (T,) which token of the batch submitted before it a row computes, by its place among that batch's
            draws; -1 where `token_ids` has it. Empty if all are known (Day 4.4).
        moves: copies of blocks to be made before anything is computed (Day 4.5). Who makes one takes it out.
    """

    token_ids: list[int] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)
    slots: list[int] = field(default_factory=list)
    query_start: list[int] = field(default_factory=[0].copy)
    context_lens: list[int] = field(default_factory=list)
    block_tables: list[list[int]] = field(default_factory=list)
    sample_rows: list[int] = field(default_factory=list)
    sampling: list[SamplingParams] = field(default_factory=list)
    requests: list[Any] = field(default_factory=list)
    prompt_rows: list[PromptRow] = field(default_factory=list)
    sources: list[int] = field(default_factory=list)
    moves: list[Any] = field(default_factory=list)

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


@dataclass(frozen=True)
class Sampled:
    """A token that the model has chosen.

    Args:
        token: its id.
        logprob: its log-probability, if the request asked for it.
        top_logprobs: log-probabilities of the most probable tokens by id, if the request asked for them.
    """

    token: int
    logprob: float | None = None
    top_logprobs: dict[int, float] | None = None


class PipelinedModel(Protocol):
    """A `PackedModel` in stages: a batch is submitted, and its tokens are collected later, in the same order."""

    num_hidden_layers: int
    max_model_len: int
    vocab_size: int
    num_stages: int  # batches that are computed at the same time; others wait

    def run(self, batch: PackedBatch) -> list[Sampled]:
        """See `PackedModel.run`. Only while no batch is submitted."""
        ...

    def submit(self, batch: PackedBatch) -> None:
        """Sends a batch to the stages, and does not wait."""
        ...

    def collect(self) -> list[Sampled]:
        """Waits for the oldest batch; returns one for each of its `sample_rows`."""
        ...

    def abandon(self) -> None:
        """Waits until no stage computes a batch any more; nobody collects those that were submitted."""
        ...


class CallGivenUp(RuntimeError):
    """A call of the model was given up before it computed: no request has lost anything, and all is planned again."""


class PackedModel(Protocol):
    """What the scheduler of Week 3 runs: one call for all of a step. A `PackedRunner` is one, or a test's fake."""

    num_hidden_layers: int
    max_model_len: int  # maximum number of tokens, prompt and answer together
    vocab_size: int  # token ids are smaller than this

    def run(self, batch: PackedBatch) -> list[Sampled]:
        """Computes all rows of a batch and writes their keys and values; returns when that is done.

        Returns:
            One for each of `batch.sample_rows`.
        """
        ...


def past_reads(
    spans: Sequence[tuple[int, int]],
    context_lens: Sequence[int],
    block_tables: Sequence[Sequence[int]],
    page_size: int,
    pad_block: int,
    window: int | None,
    flat_blocks: Callable[..., FlatBlocks],
) -> PastReads | None:
    """What some requests of a step read; None when none of them has a past.

    Args:
        spans: for each request its first row, and the row after its last.
        context_lens: for each request the tokens that earlier steps have computed.
        block_tables: for each request its blocks in the order of its text.
        page_size: tokens per page.
        pad_block: the page of padding.
        window: how many tokens a token sees, itself included; None is all. Pages that have left the window of a
            request's first row are not listed.
        flat_blocks: lists blocks, see Task 3.2.1.
    """
    readers = [index for index, context in enumerate(context_lens) if context]
    if not readers:
        return None
    contexts = [context_lens[index] for index in readers]
    first_seen = None if window is None else [max(context + 1 - window, 0) for context in contexts]
    rows = [(row, group) for group, index in enumerate(readers) for row in range(*spans[index])]
    tables = [block_tables[index] for index in readers]
    blocks = flat_blocks(tables, contexts, page_size, pad_block=pad_block, first_seen=first_seen)
    return PastReads([row for row, _ in rows], [group for _, group in rows], blocks)


def inputs_of(
    batch: PackedBatch,
    page_size: int,
    pad_block: int,
    window: int | None,
    flat_blocks: Callable[..., FlatBlocks],
) -> PackedInputs:
    """What a model computes of a batch, as lists.

    Args:
        page_size, pad_block: the pools' page size, and the block that padding reads and writes.
        window: how many tokens are seen in layers with a sliding window; None if the model has no such layers.
        flat_blocks: lists blocks, see Task 3.2.1.
    """

    def reads(single: bool, window: int | None = None) -> PastReads | None:
        """The past that requests of one row read, or those of several."""
        chosen = [i for i, (start, stop) in enumerate(batch.spans) if (stop - start == 1) == single]
        spans, contexts = [batch.spans[i] for i in chosen], [batch.context_lens[i] for i in chosen]
        tables = [batch.block_tables[i] for i in chosen]
        return past_reads(spans, contexts, tables, page_size, pad_block, window, flat_blocks)

    own = batch.token_ids, batch.positions, batch.slots, batch.segments, batch.sample_rows or None
    return PackedInputs(*own, reads(False), reads(True), None if window is None else reads(True, window))
