"""The model as the policy of Week 3 sees it: one call for all of a step, in one row of tokens. Given."""

from dataclasses import dataclass, field
from typing import Any, Protocol

from .sampling import SamplingParams


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
    prompt_rows: list[PromptRow] = field(default_factory=list)

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
