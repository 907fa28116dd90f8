"""What a model is to the policy: a few sizes, caches that it can make, and one call for each kind of work."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from .sampling import SamplingParams

if TYPE_CHECKING:
    from .packing import PackedBatch


class KvCache(Protocol):
    """The keys and values of one request in one layer, as the policy sees them: a length that can shrink and end."""

    offset: int  # tokens held

    def rewind(self, n: int) -> None:
        """Forgets the last n tokens."""

    def release(self) -> None:
        """Gives the memory back. Whoever made a cache calls it once, on every way out."""


class BatchCache(Protocol):
    """The keys and values of all running requests in one layer: one slot per request, one row of the batch per slot."""

    def add_request(self, prefilled: KvCache, slot: int) -> None:
        """Copies a request's prompt into a free slot."""

    def remove_request(self, slot: int) -> None:
        """Makes a slot free again."""

    def release(self) -> None:
        """Gives the memory of all slots back."""


class ServingModel(Protocol):
    """What schedulers run: integers in, integers out. A `ModelRunner` is one, or a test's fake.

    Both calls extend their caches, and return when the device is done: a caller may learn from the time they took.
    """

    num_hidden_layers: int
    max_model_len: int  # the most tokens that it reads, prompt and answer together
    vocab_size: int  # token ids are below it

    def create_kv_cache(self, max_seq_len: int | None = None) -> list[KvCache]:
        """Empty caches for one request of at most `max_seq_len` tokens, one per layer."""

    def create_batch_cache(self, max_active_requests: int, max_seq_len: int) -> list[BatchCache]:
        """Empty caches for a batch with this many slots, one per layer."""

    def prefill(
        self,
        tokens: Sequence[int],
        offset: int,
        kv_cache: Sequence[KvCache],
        *,
        sampling: SamplingParams | None = None,
        sample: bool,
    ) -> int | None:
        """Computes a prompt, or a piece of one.

        Args:
            tokens: the ids.
            offset: tokens of the prompt before these, which the cache holds.
            kv_cache: the request's own, one per layer.
            sampling: how to draw the new token; None is greedy.
            sample: whether a new token follows the last one, so that the head has to run.

        Returns:
            The new token, or None without `sample`.
        """

    def decode(
        self,
        tokens: Sequence[int | None],
        offsets: Sequence[int],
        kv_cache: Sequence[BatchCache],
        *,
        sampling: Sequence[SamplingParams | None] | None = None,
    ) -> list[int | None]:
        """Computes one more token of every running request. All lists have one entry per slot.

        Args:
            tokens: the last token of each slot's request; None is an idle slot.
            offsets: tokens that the cache holds of each; 0 for an idle slot.
            kv_cache: the batch's, one per layer.
            sampling: how to draw for each slot; None is greedy, for a slot or for all of them.

        Returns:
            The new token of each slot; None for an idle one.
        """


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


class PackedModel(Protocol):
    """What the scheduler of Week 3 runs: one call for all of a step. A `PackedRunner` is one, or a test's fake."""

    num_hidden_layers: int
    max_model_len: int  # the most tokens that it reads, prompt and answer together
    vocab_size: int  # token ids are below it

    def run(self, batch: PackedBatch) -> list[Sampled]:
        """Computes all rows of a batch and writes their keys and values into their slots; returns when that is done.

        Returns:
            One for each of `batch.sample_rows`.
        """
