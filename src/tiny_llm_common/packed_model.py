"""The model as the policy of Week 3 sees it: one call for all of a step."""

from dataclasses import dataclass
from typing import Protocol

from .packed_batch import PackedBatch


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
