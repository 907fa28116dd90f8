"""What a model is to the policy: a few sizes, caches that it can make, and one call that runs a step."""

from collections.abc import Sequence
from typing import Protocol

from .sampling import SamplingParams


class TinyKvCache(Protocol):
    """The keys and values of one request in one layer, as the policy sees them: a length that can shrink and end."""

    offset: int  # tokens held

    def rewind(self, n: int) -> None:
        """Forgets the last n tokens."""

    def release(self) -> None:
        """Gives the memory back. Whoever made a cache calls it, on every way out."""


class BatchCache(Protocol):
    """The keys and values of all running requests in one layer: one slot a request, one row of the batch a slot."""

    def add_request(self, prefilled: TinyKvCache, slot: int) -> None:
        """Copies a request's prompt into a free slot."""

    def remove_request(self, slot: int) -> None:
        """Makes a slot free again."""

    def release(self) -> None:
        """Gives the memory of all slots back."""


class ServingModel(Protocol):
    """What schedulers run: lists of integers in, one token a sampled row out. A runner is one, or a test's fake."""

    num_hidden_layers: int
    max_model_len: int  # tokens that it reads at most, prompt and answer together
    vocab_size: int  # token ids are below it

    def create_kv_cache(self, max_seq_len: int | None = None) -> list[TinyKvCache]:
        """Empty caches for one request of at most `max_seq_len` tokens, one a layer."""

    def create_batch_cache(self, max_active_requests: int, max_seq_len: int) -> list[BatchCache]:
        """Empty caches for a batch of so many slots, one a layer."""

    def step(
        self,
        tokens: Sequence[Sequence[int]],
        offsets: Sequence[int],
        kv_cache: Sequence[TinyKvCache] | Sequence[BatchCache],
        *,
        sample_rows: Sequence[int],
        sampling: Sequence[SamplingParams | None] | None = None,
    ) -> list[int]:
        """Runs the model once and extends the caches.

        Args:
            tokens: one row of L tokens (a prompt, or a piece of one), or a row of one token for every slot of a
                batch. An idle slot is [].
            offsets: of each row, how many tokens its cache held before.
            kv_cache: one cache a layer, of a request or of the batch.
            sample_rows: the rows whose last token is followed by a new one.
            sampling: how to draw, one for each sampled row; None is greedy.

        Returns:
            One token a sampled row, in their order. Without sampled rows the head is not run and nothing is read. When
            this returns the device has done the step, so that the time it took can be learnt from.
        """
