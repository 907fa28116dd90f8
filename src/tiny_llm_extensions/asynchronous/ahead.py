"""Asynchronous scheduling, put on a loop: a step is planned before the results of the last one are known (Day 4.4)."""

from collections.abc import Callable, Sequence
from functools import partial

from tiny_llm_engine.packed_model import PackedBatch
from tiny_llm_engine.request_life import SequenceState
from tiny_llm_engine.scheduled import Scheduled
from tiny_llm_engine.solutions.solution_types import ServingPackage
from tiny_llm_engine.step_loop import StepLoop

from ..parallel.pipeline import Pipeline


class Ahead:
    """Keeps two steps in flight: the host plans one while the device computes the other.

    A decode need not wait for its token: it is planned with a placeholder, which the device fills with what the step
    before has drawn. Ends that depend on a token are found one step late. What the late step has computed of an ended
    request is thrown away, see `InFlight.valid`; blocks may belong to another request at once, since the device
    computes steps in their order.

    Args:
        loop: whose steps overlap. Its model has two stages, which are the steps in flight: `sources` of a batch count
            the draws of the one before. A plan is one call of the model.
        names: the module `serving` of the solution, with the tasks of Day 4.4.
    """

    def __init__(self, loop: StepLoop, names: ServingPackage):
        self.loop = loop
        self._can_decode_ahead: Callable[..., bool] = names.can_decode_ahead
        self._pack_ahead: Callable[..., PackedBatch] = names.pack_ahead
        self._drawn: list[SequenceState] = []  # for which the batch submitted last draws tokens

    @classmethod
    def put_on(cls, loop: StepLoop, names: ServingPackage) -> "Ahead":
        """Overlaps the steps of a loop."""
        made, scheduler = cls(loop, names), loop.scheduler
        loop.calls = Pipeline(loop, names.fill_stages, is_serial=True)
        loop.pack = made.pack
        loop.hooks.request.append(made.let_decode)
        scheduler.plan_decodes = made.plan_decodes
        make_room: Callable[..., bool] = names.make_room_ahead
        scheduler.make_room = partial(make_room, scheduler)
        return made

    def let_decode(self, sequence: SequenceState) -> None:
        """Lets a request decode while tokens of it are in flight."""
        sequence.decodes_ahead = self._can_decode_ahead

    def plan_decodes(self, plan: list[Scheduled]) -> None:
        """Adds one token of each running request that is ready to decode, the oldest first."""
        for sequence in list(self.loop.running):
            if sequence.is_decoding and self.loop.scheduler.make_room(sequence):
                plan.append(Scheduled(sequence, sequence.num_scheduled, 1))

    def pack(self, call: Sequence[Scheduled]) -> PackedBatch:
        """A call as a batch whose placeholders come from the batch before it."""
        batch = self._pack_ahead(call, self._drawn)
        self._drawn = [entry.sequence for entry in call if entry.needs_token]
        return batch
