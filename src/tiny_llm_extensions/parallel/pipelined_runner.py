"""The last stage of a pipeline, in the process that plans: it announces a batch to all stages and draws its tokens."""

from collections import deque
from contextlib import suppress
from typing import Any

from tiny_llm_engine.packed_model import PackedInputs
from tiny_llm_engine.packed_runner import Forward, PackedRunner
from tiny_llm_engine.solutions.solution_types import Array, Bucket, PackedBatch, Sampled

from .other_ranks import OtherRanks, RankError, finish_together


class PipelinedRunner(PackedRunner):
    """A `PipelinedModel`: batches that are submitted pass the other stages while this one computes earlier ones.

    Args:
        ranks: the other stages.
        arguments, options: see `PackedRunner`.
    """

    def __init__(self, *arguments: Any, ranks: OtherRanks, **options: Any):
        super().__init__(*arguments, **options)
        self.ranks, self.num_stages = ranks, ranks.size
        self._submitted: deque[tuple[PackedBatch, Forward, PackedInputs]] = deque()

    def run(self, batch: PackedBatch) -> list[Sampled]:
        """See `PackedModel.run`. Only while no batch is submitted."""
        self.submit(batch)
        return self.collect()

    def submit(self, batch: PackedBatch) -> None:
        """See `PipelinedModel.submit`.

        Raises:
            RankError: a stage is gone.
        """
        bucket = self.bucket_of(batch)
        self._announce(batch, bucket)
        self.waste.count(batch, bucket, self.block_size)

    def collect(self) -> list[Sampled]:
        """See `PipelinedModel.collect`.

        Raises:
            RankError: a stage is gone.
        """
        with self.backend_module.inference():
            batch, logits = self._finish_oldest()
            return [] if logits is None else self._choose(batch, logits)

    def abandon(self) -> None:
        """See `PipelinedModel.abandon`. The other stages send what was submitted, so it is computed here as well."""
        while self._submitted:
            with suppress(RankError), self.backend_module.inference():
                self._finish_oldest()

    def _finish_oldest(self) -> tuple[PackedBatch, Array | None]:
        batch, forward, inputs = self._submitted.popleft()
        self.ranks.group.end_planning()
        with self.ranks.group.computing(), self.ranks.computing():
            return batch, finish_together(self, forward(inputs))

    def compute(self, batch: PackedBatch, bucket: Bucket | None) -> list[Sampled]:
        self._announce(batch, bucket)
        return self.collect()

    def _announce(self, batch: PackedBatch, bucket: Bucket | None) -> None:
        with self.backend_module.inference():
            # Made now: before the batch is computed here, its blocks may belong to another request.
            submitted = batch, self.forward_of(bucket), self._inputs(batch, bucket)
        self.ranks.announce(batch, bucket)  # last: what the other stages compute is computed here
        self._submitted.append(submitted)
