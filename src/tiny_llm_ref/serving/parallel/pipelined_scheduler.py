"""Hybrid batches in a pipeline: several micro-batches in flight, one for each stage."""

from collections import abc, deque
from typing import Any, cast

from tiny_llm_common.in_flight import InFlight
from tiny_llm_common.moves import CopyFailed
from tiny_llm_common.packed_model import PipelinedModel, Sampled
from tiny_llm_common.scheduled import Scheduled

from ..batching.hybrid_scheduler import HybridScheduler
from ..batching.sequence import Sequence
from ..blocks.block_allocator import BlockAllocator


class PipelinedScheduler(HybridScheduler):
    """`HybridScheduler` for a model in stages: the next plan does not wait until the last one is computed.

    A stage computes micro-batches in the order in which they were submitted, so what is written into a block by an
    earlier one is there when a later one reads it. Therefore the next chunk of a prompt may follow at once, and the
    blocks of a request that ends or is preempted may be given to another one at once. A decode waits for its token.

    Args:
        model: in stages. A plan is made while fewer micro-batches than stages are in flight; a plan of two calls may
            add one more.
        allocator, options: see `StepLoop`.
    """

    def __init__(self, model: PipelinedModel, allocator: BlockAllocator, **options: Any):
        super().__init__(model, allocator, **options)
        self.in_flight: deque[InFlight] = deque()
        self._is_planning = False

    @property
    def stages(self) -> PipelinedModel:
        """The model."""
        return cast(PipelinedModel, self.model)

    def has_work_remaining(self) -> bool:
        """Whether a request waits or runs, or a micro-batch is in flight."""
        return bool(self.in_flight) or super().has_work_remaining()

    def step(self) -> bool:
        """Submits micro-batches until each stage has one, then records the results of the oldest.

        Returns:
            Whether anything was computed or has to be planned again; when not, no work remains.
        """
        try:
            self.fill()
            if not self.in_flight:
                return self.waiting.returns.wait()
            sampled = self.stages.collect()
        except BaseException as error:
            self.cancel_plan() if self._is_planning else self.cancel(self.take_back(), error)
            if isinstance(error, CopyFailed):
                return True
            raise
        oldest = self.in_flight.popleft()
        self.now = oldest.start
        self.commit(*oldest.valid(sampled))
        return True

    def fill(self) -> None:
        """Plans and submits micro-batches while a stage has none, and something can be planned."""
        # TASK 3.7.8: `plan`, its `calls`; for each an `InFlight`, then `submit`, then `num_in_flight` of its requests.
        # Once submitted, a chunk's keys will be in their blocks before a later micro-batch reads them.
        while len(self.in_flight) < self.stages.num_stages and (plan := self.plan(self.clock())):
            for call in self.calls(plan):
                self.in_flight.append(InFlight.of(call, self.now))
                self.stages.submit(self.packed(call))
                for entry in call:
                    entry.sequence.num_in_flight += entry.size

    def plan(self, now: float) -> list[Scheduled]:
        """Decides what the next micro-batch computes; see `HybridScheduler.plan`."""
        self._is_planning = True  # also if a listener raises
        plan = super().plan(now)
        self._is_planning = False
        return plan

    def share_of_decodes(self) -> int:
        """Decodes of one micro-batch, at most: so that those that run are divided among all stages."""
        return -(-len(self.running) // self.stages.num_stages)

    def plan_decodes(self, plan: list[Scheduled]) -> None:
        """Adds decodes as Day 3.3 does, and leaves those beyond this micro-batch's share to the next one."""
        super().plan_decodes(plan)
        del plan[self.share_of_decodes() :]

    def plan_chunk(self, plan: list[Scheduled], sequence: Sequence, left: int) -> int:
        """Adds the next tokens of a request, unless all that it knows is on its way."""
        return super().plan_chunk(plan, sequence, left) if sequence.num_uncomputed > 0 else 0

    def commit(self, plan: abc.Sequence[Scheduled], sampled: abc.Sequence[Sampled]) -> None:
        """Records what a micro-batch has computed; later chunks of its prompts stay in flight."""
        for entry in plan:
            entry.sequence.num_in_flight -= entry.size
        super().commit(plan, sampled)

    def preempt(self, sequence: Sequence) -> None:
        """See `HybridScheduler.preempt`. What is in flight of the request is dropped when it comes back."""
        sequence.num_in_flight = 0
        super().preempt(sequence)

    def cancel_plan(self) -> None:
        """Forgets a plan that was not submitted; micro-batches in flight stay there."""
        self._is_planning = False
        on_the_way = {entry.sequence for each in self.in_flight for entry in each.plan}
        for sequence in self.running:
            if sequence not in on_the_way:
                sequence.end_call()

    def take_back(self) -> list[Scheduled]:
        """Everything that is in flight, which no stage computes any more."""
        self.stages.abandon()
        lost = [entry for each in self.in_flight for entry in each.plan]
        for entry in lost:
            entry.sequence.num_in_flight = 0
        self.in_flight.clear()
        return lost

    def abort_all(self) -> None:
        """Ends every request that has not ended, in flight or not. Not in a step."""
        self.take_back()
        super().abort_all()
