"""The last stage of a pipeline, in the process that plans: it announces a batch to all stages and draws its tokens."""

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from ...solution_types import Array, Bucket, PackedBatch, Sampled
from ..packed_runner import PackedRunner


class PipelinedRunner(PackedRunner):
    """A `PipelinedModel`: batches that are submitted pass the other stages while this one computes earlier ones.

    Args:
        options: see `PackedRunner`; `ranks` are the other stages.
    """

    def __init__(self, *arguments: Any, **options: Any):
        super().__init__(*arguments, **options)
        self.num_stages = self.ranks.size
        self._submitted: deque[tuple[PackedBatch, Callable, Sequence[Array]]] = deque()

    def run(self, batch: PackedBatch) -> list[Sampled]:
        """See `PackedModel.run`. Only while no batch is submitted."""
        self.submit(batch)
        return self.collect()

    def submit(self, batch: PackedBatch) -> None:
        """See `PipelinedModel.submit`.

        Raises:
            RankError: a stage is gone.
        """
        bucket = None if self.buckets is None else self.buckets.of(batch)
        self._announce(batch, bucket)
        self.waste.count(batch, bucket, self.block_size)

    def collect(self) -> list[Sampled]:
        """See `PipelinedModel.collect`.

        Raises:
            RankError: a stage is gone.
        """
        batch, forward, inputs = self._submitted.popleft()
        self.ranks.group.end_planning()
        with self.backend_module.inference(), self.ranks.group.computing():
            with self.ranks.computing():
                logits = self._finish_with_ranks(forward(*inputs))
            return [] if logits is None else self._choose(batch, logits)

    def _compute(self, batch: PackedBatch, bucket: Bucket | None) -> list[Sampled]:
        self._announce(batch, bucket)
        return self.collect()

    def _announce(self, batch: PackedBatch, bucket: Bucket | None) -> None:
        self.ranks.announce(batch, bucket)
        with self.backend_module.inference():
            # Made now: before the batch is computed here, its blocks may belong to another request.
            self._submitted.append((batch, self._forward_of(bucket), self._inputs(batch, bucket)))
