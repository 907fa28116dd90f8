"""Whose prompt is computed next: the queue, pausing, reserved slots and peak load. Knows no model and no cache."""

from collections.abc import Sequence

from .paused_prefills import PausedPrefills
from .request import Request
from .request_queue import FifoQueue, RequestQueue


class Turns:
    """The prompts that wait and those that are paused, and the rules by which they take turns. For one scheduler.

    Args:
        queue: the prompts that wait; a `FifoQueue` when None, or a `PriorityScheduler`.
        reserved_decode_slots: slots that batch requests never fill; they stay free for interactive ones.
        pause_prefill: whether a prompt that is shorter than what is left of the current one goes first.
        peak_load: the share of slots that run, above 0 and at most 1, from which on a long prompt waits; None is never.
        patience: how many times a prompt makes room for a shorter one, and how many steps it waits at peak load.

    Raises:
        ValueError: a number is out of range.
    """

    def __init__(
        self,
        queue: RequestQueue | None = None,
        *,
        reserved_decode_slots: int = 0,
        pause_prefill: bool = False,
        peak_load: float | None = None,
        patience: int = 8,
    ):
        if reserved_decode_slots < 0:
            raise ValueError(f"reserved_decode_slots is {reserved_decode_slots}: give 0 or more")
        if peak_load is not None and not 0 < peak_load <= 1:
            raise ValueError(f"peak_load is {peak_load}: give a share above 0 and at most 1, or None")
        if patience < 1:
            raise ValueError(f"patience is {patience}: a prompt makes room at least once")
        self.queue: RequestQueue = FifoQueue() if queue is None else queue
        self.reserved_decode_slots, self.pause_prefill = reserved_decode_slots, pause_prefill
        self.peak_load, self.patience = peak_load, patience
        self.paused = PausedPrefills(patience)
        self.ended: list[Request] = []  # taken out of the queue too late; the scheduler lets them leave
        self._waited = 0  # steps in a row, at peak load

    def check_slots(self, slots: int) -> None:
        """Raises a ValueError when a batch of this many slots would have none for batch requests. Given."""
        if self.reserved_decode_slots >= max(slots, 1):
            raise ValueError(
                f"reserved_decode_slots is {self.reserved_decode_slots}: give 0 to {slots - 1}, fewer than slots"
            )

    def __len__(self) -> int:
        """How many prompts wait or are paused."""
        return len(self.queue) + len(self.paused) + len(self.ended)

    def choose(self, current: Request | None, running: Sequence[Request], slots: int) -> Request | None:
        """The prompt that is computed next; it is in the queue and among the paused no more. Given.

        Args:
            current: the prompt that was computed last, or waits for its slot; None when it has left.
            running: the requests in slots.
            slots: how many there are.

        Returns:
            The current one, or a shorter one that waits; without a current one, a paused prompt before one that waits.
        """
        if current is not None:
            return self.make_room(current, running, slots) or current
        if self.paused:
            return self.paused.resume()
        return self.queue.schedule_next(interactive_only=self.keeps_slots(running, slots))

    def keeps_slots(self, begun: Sequence[Request], slots: int) -> bool:
        """Whether batch requests have all the slots that they may take.

        Args:
            begun: the requests that run, and the one whose prompt is computed now.
            slots: how many slots there are.
        """
        if not self.reserved_decode_slots:
            return False
        # TASK 2.7.9: `reserved_decode_slots` are not for them. One whose prompt is paused will need a slot, too.
        raise NotImplementedError("week 2 day 7 task 9: Turns.keeps_slots")

    def make_room(self, current: Request, running: Sequence[Request], slots: int) -> Request | None:
        """Pauses the current prompt if one that waits is shorter than what is left of it.

        Returns:
            The shorter one, taken out of the queue; None when the current one goes on.
        """
        if not self.pause_prefill:
            return None
        # TASK 2.7.9: not if patience forbids it. `next_shorter` finds the other; of a finished prompt nothing is left.
        # An interactive prompt makes no room for a batch one. The paused one keeps its cache and its offset.
        raise NotImplementedError("week 2 day 7 task 9: Turns.make_room")

    def next_shorter(self, tokens: int, interactive_only: bool) -> Request | None:
        """Takes the shortest prompt that waits out of the queue, if it has fewer than `tokens`. Given."""
        while (request := self.queue.shorter_than(tokens, interactive_only)) is not None:
            if not request.is_done:
                return request
            self.ended.append(request)  # it was refused, or aborted while it waited
        return None

    def waits_for_peak(self, request: Request, load: float, prefill_step: int) -> bool:
        """Whether a long prompt waits in this step, because so many requests run.

        Args:
            request: whose prompt is computed next.
            load: the share of slots that run.
            prefill_step: tokens of a chunk.
        """
        if self.peak_load is None:
            return False
        # TASK 2.7.9: long is what needs more than one chunk. It waits `patience` steps, then gets one chunk; and again.
        raise NotImplementedError("week 2 day 7 task 9: Turns.waits_for_peak")
