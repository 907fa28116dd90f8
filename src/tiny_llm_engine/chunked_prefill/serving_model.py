"""The model as the policy sees it: a few sizes, its caches, and one call for each kind of work."""

from collections.abc import Sequence
from typing import Protocol

from ..sampling import SamplingParams


class KvCache(Protocol):
    """The keys and values of one request in one layer, as the policy sees them."""

    offset: int  # tokens held

    def rewind(self, n: int) -> None:
        """Drops the last n tokens."""

    def release(self) -> None:
        """Frees the memory. The owner of a cache calls it once, on every exit."""


class BatchCache(Protocol):
    """The keys and values of all running requests in one layer: one slot per request, one row of the batch per slot."""

    def add_request(self, prefilled: KvCache, slot: int) -> None:
        """Copies a request's prompt into a free slot."""

    def remove_request(self, slot: int) -> None:
        """Frees a slot."""

    def release(self) -> None:
        """Frees the memory of all slots."""


class ServingModel(Protocol):
    """A model as schedulers run it: integers in, integers out. `ModelRunner` is one, and so are tests' fakes.

    Both calls extend their caches and return when the device is done, so that a caller can measure their time.
    """

    num_hidden_layers: int
    max_model_len: int  # maximum number of tokens, prompt and answer together
    vocab_size: int  # token ids are smaller than this

    def create_kv_cache(self, max_seq_len: int | None = None) -> list[KvCache]:
        """Empty caches for one request of at most `max_seq_len` tokens, one per layer."""
        ...

    def create_batch_cache(self, max_active_requests: int, max_seq_len: int) -> list[BatchCache]:
        """Empty caches for a batch with this many slots, one per layer."""
        ...

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
            offset: number of prompt tokens before these, which the cache holds.
            kv_cache: the request's own caches, one per layer.
            sampling: how to draw the new token; None is greedy.
            sample: whether a new token is needed after the last one, so that the head has to run.

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
            tokens: the last token of each slot's request; None for an idle slot.
            offsets: number of tokens that the cache holds of each; 0 for an idle slot.
            kv_cache: the batch's caches, one per layer.
            sampling: how to draw for each slot; None is greedy, for one slot or for all.

        Returns:
            The new token of each slot; None for an idle one.
        """
        ...
