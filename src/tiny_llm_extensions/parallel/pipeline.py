"""Several calls in flight: one for each stage of a model (Day 3.7), or one on the device and one on the host (4.4)."""

from collections import deque
from collections.abc import Callable, Sequence
from typing import cast

from tiny_llm_engine.packed_model import PackedBatch, PipelinedModel, Sampled
from tiny_llm_engine.scheduled import Scheduled
from tiny_llm_engine.step_loop import StepLoop

from .in_flight import InFlight


class Pipeline:
    """Computes calls of which several are in flight: the next plan does not wait until the last one is computed.

    A stage computes micro-batches in the order in which they were submitted, so what is written into a block by an
    earlier one is there when a later one reads it. Therefore the next chunk of a prompt may follow at once, and the
    blocks of a request that ends or is preempted may be given to another one at once. A decode waits for its token.

    Args:
        loop: plans and commits. Its model is in stages: a plan is made while fewer micro-batches than stages are in
            flight; a plan of two calls may add one more.
        fill: the solution's `fill_stages`.
        is_serial: whether a micro-batch begins when the one before it has ended, as on one device.

    Attributes:
        in_flight: the micro-batches that were submitted and not collected, the oldest first.
    """

    def __init__(self, loop: StepLoop, fill: Callable[["Pipeline"], None], *, is_serial: bool = False):
        self.loop, self.fill, self.is_serial = loop, fill, is_serial
        self.stages = cast(PipelinedModel, loop.model)
        self.in_flight: deque[InFlight] = deque()
        self._is_planning = False
        self._ended = 0.0  # when the last micro-batch had ended, in seconds

    # What `fill` uses.

    @property
    def now(self) -> float:
        """When the last plan was made, in seconds."""
        return self.loop.state.now

    def plan(self) -> list[Scheduled]:
        """Decides what the next micro-batch computes, see `StepLoop.plan`; empty when nothing can be planned."""
        self._is_planning = True  # also if a listener raises
        plan = self.loop.plan(self.loop.clock())
        self._is_planning = False
        return plan

    def calls(self, plan: list[Scheduled]) -> list[list[Scheduled]]:
        """The calls of the model that compute a plan."""
        return self.loop.scheduler.calls(plan)

    def packed(self, call: list[Scheduled]) -> PackedBatch:
        """A call as a batch."""
        return self.loop.packed(call)

    # What the loop uses, see `Calls`.

    @property
    def is_idle(self) -> bool:
        """Whether nothing is in flight."""
        return not self.in_flight

    def advance(self) -> bool:
        """Submits micro-batches until each stage has one, then records the results of the oldest."""
        try:
            self.fill(self)
            if not self.in_flight:
                return False
            sampled = self.stages.collect()
        except BaseException as error:
            if self._is_planning:
                self._forget_plan()
            else:
                self.loop.cancel(self.abandon(), error)
            raise
        self._commit(self.in_flight.popleft(), sampled)
        return True

    def _commit(self, oldest: InFlight, sampled: Sequence[Sampled]) -> None:
        """Records what a micro-batch has computed; later chunks of its prompts stay in flight."""
        state = self.loop.state
        state.now = max(oldest.start, self._ended) if self.is_serial else oldest.start
        entries, kept = oldest.valid(sampled)
        for entry in entries:
            entry.sequence.num_in_flight -= entry.size
        if entries or not self.is_serial:  # else all of it was late
            self.loop.commit(entries, kept)
        self._ended = state.now

    def _forget_plan(self) -> None:
        """Forgets a plan that was not submitted; micro-batches in flight stay there."""
        self._is_planning = False
        on_the_way = {entry.sequence for each in self.in_flight for entry in each.plan}
        for sequence in self.loop.running:
            if sequence not in on_the_way:
                sequence.end_call()

    def abandon(self) -> list[Scheduled]:
        """Gives up everything that is in flight, which no stage computes any more."""
        self.stages.abandon()
        lost = [entry for each in self.in_flight for entry in each.plan]
        for entry in lost:
            entry.sequence.num_in_flight = 0
        self.in_flight.clear()
        return lost


def share_decodes(loop: StepLoop, num_stages: int) -> None:
    """Divides the decodes that run among all stages: each plan has its share of them, and leaves the others."""
    plan_all = loop.scheduler.plan_decodes

    def plan_share(plan: list[Scheduled]) -> None:
        plan_all(plan)
        del plan[-(-len(loop.running) // num_stages) :]

    loop.scheduler.plan_decodes = plan_share
