"""Asynchronous scheduling: the next step is planned and submitted before the results of the last one are known."""

from collections import abc
from typing import Any

from tiny_llm_common.packed_model import PackedBatch, PipelinedModel, Sampled
from tiny_llm_common.scheduled import Scheduled

from ..batching.hybrid_scheduler import HybridScheduler
from ..batching.sequence import Sequence
from ..blocks.block_allocator import BlockAllocator
from ..parallel.pipelined_scheduler import PipelinedScheduler
from .placeholders import can_decode_ahead, num_placeholders, pack_ahead


class AsyncScheduler(PipelinedScheduler):
    """Keeps two steps in flight: the host plans one while the device computes the other.

    A decode need not wait for its token: it is planned with a placeholder, which the device fills with what the step
    before has drawn. Ends that depend on a token are found one step late. What the late step has computed of an ended
    request is thrown away, see `InFlight.valid`; blocks may belong to another request at once, since the device
    computes steps in their order.

    Args:
        model: with two stages, which are the steps in flight: `sources` of a batch count the draws of the one before.
        allocator, options: see `StepLoop`. A plan is one call of the model.
    """

    def __init__(self, model: PipelinedModel, allocator: BlockAllocator, **options: Any):
        super().__init__(model, allocator, **options)
        self._drawn: list[Sequence] = []  # for which the batch submitted last draws tokens
        self._committed = 0.0  # when the last results came, in seconds

    def enqueue(self, sequence: Sequence, parent: Sequence | None = None) -> None:
        """See `StepLoop.enqueue`."""
        sequence.decodes_ahead = can_decode_ahead
        super().enqueue(sequence, parent)

    def plan_decodes(self, plan: list[Scheduled]) -> None:
        """Adds one token of each running request that is ready to decode, the oldest first."""
        for sequence in list(self.running):
            if sequence.is_decoding and self.make_room(sequence):
                plan.append(Scheduled(sequence, sequence.num_scheduled, 1))

    def make_room(self, sequence: Sequence) -> bool:
        """Reserves blocks for known tokens and placeholders of a running request; see `HybridScheduler.make_room`."""
        # TASK 4.4.4: as in Task 3.3.4. The device will write keys and values of a placeholder, so it needs its slot.
        tokens = len(sequence.known_tokens) + num_placeholders(sequence)
        missing = sequence.block_table.missing(tokens)
        while not self.allocator.can_allocate(missing, keep_watermark=False):
            youngest = self.running[-1]
            self.preempt(youngest)
            if youngest is sequence:
                return False
        sequence.block_table.reserve(tokens)
        return True

    def pack_call(self, call: abc.Sequence[Scheduled]) -> PackedBatch:
        """A call as a batch whose placeholders come from the batch before it."""
        batch = pack_ahead(call, self._drawn)
        self._drawn = [entry.sequence for entry in call if entry.needs_token]
        return batch

    def commit(self, plan: abc.Sequence[Scheduled], sampled: abc.Sequence[Sampled]) -> None:
        """Records a step. Its time begins when the device had finished the one before it."""
        self.now = max(self.now, self._committed)
        if plan:  # else all of it was late
            super().commit(plan, sampled)
        self._committed = self.now

    def close(self) -> None:
        """See `StepLoop.close`. Returns when the device has finished what is in flight."""
        self.take_back()
        super().close()


def run_ahead(kind: type[HybridScheduler]) -> type[AsyncScheduler]:
    """The class that plans steps as `kind` does, of one call each, and keeps two of them in flight."""
    return type(f"Async{kind.__name__}", (AsyncScheduler, kind), {"__doc__": kind.__doc__})
