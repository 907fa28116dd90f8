"""The order of prompts: the queue, pausing, reserved slots and peak load. Knows no model and no cache."""

from collections.abc import Sequence

from tiny_llm_engine.admission import FifoQueue, RequestQueue

from .request import Request


class PausedPrefills:
    """The prompts that were paused for shorter ones.

    Args:
        patience: maximum number of times that a prompt makes room; after that it continues without a pause.
    """

    def __init__(self, patience: int):
        self.patience = patience
        self.requests: list[Request] = []  # in the order in which they made room: the shortest is the last
        self._made_room: dict[Request, int] = {}

    def __len__(self) -> int:
        return len(self.requests)

    def has_patience(self, request: Request) -> bool:
        """Whether it may wait for one more prompt."""
        return self._made_room.get(request, 0) < self.patience

    def may_pause(self, request: Request) -> bool:
        """Whether this prompt may be paused."""
        # TASK 2.7.9: prompts that are paused already would wait longer as well, so all of them need patience.
        return all(self.has_patience(waiting) for waiting in [*self.requests, request])

    def pause(self, request: Request) -> None:
        """Pauses a prompt for a shorter one, which also goes before all that are paused already."""
        # TASK 2.7.9: add it to `requests`, and count in `_made_room` that each of them makes room once more.
        self.requests.append(request)
        for waiting in self.requests:
            self._made_room[waiting] = self._made_room.get(waiting, 0) + 1

    def resume(self) -> Request:
        """Removes and returns the next prompt: the oldest without patience left, else the shortest."""
        # TASK 2.7.9: the last one is the shortest, since each made room for a shorter one. Patience bounds every wait.
        tired = [request for request in self.requests if not self.has_patience(request)]
        request = tired[0] if tired else self.requests[-1]
        self.requests.remove(request)
        return request

    def forget(self, request: Request) -> None:
        """Removes a request whose prefill is complete, or which has ended."""
        self._made_room.pop(request, None)
        if request in self.requests:
            self.requests.remove(request)


class Turns:
    """Waiting and paused prompts of one scheduler, and the rules that choose the next one.

    Args:
        queue: the prompts that wait; a `FifoQueue` when None, or a `PriorityScheduler`.
        reserved_decode_slots: number of slots that batch requests never fill; they stay free for interactive ones.
        pause_prefill: whether a prompt that is shorter than the rest of the current one goes first.
        peak_load: share of running slots, above 0 and at most 1, from which on a long prompt waits; None turns it off.
        patience: maximum number of times that a prompt makes room, and of steps in a row that it waits at peak load.

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
        self.ended: list[Request] = []  # ended while queued; the scheduler removes them
        self._waited = 0  # steps in a row, at peak load

    def check_slots(self, slots: int) -> None:
        """Raises ValueError if a batch of this many slots would have none for batch requests. Given."""
        if self.reserved_decode_slots >= max(slots, 1):
            raise ValueError(
                f"reserved_decode_slots is {self.reserved_decode_slots}: give 0 to {slots - 1}, fewer than slots"
            )

    def __len__(self) -> int:
        """The number of prompts that wait or are paused."""
        return len(self.queue) + len(self.paused) + len(self.ended)

    def choose(self, current: Request | None, running: Sequence[Request], slots: int) -> Request | None:
        """Chooses the prompt that is computed next, and removes it from the queue or the paused. Given.

        Args:
            current: the prompt that was computed last, or waits for its slot; None if it has left.
            running: the requests in slots.
            slots: number of slots.

        Returns:
            The current one, or a shorter one that waits; without a current one, a paused prompt before one that waits.
        """
        if current is not None:
            return self.make_room(current, running, slots) or current
        if self.paused:
            return self.paused.resume()
        return self.queue.schedule_next(interactive_only=self.keeps_slots(running, slots))

    def keeps_slots(self, begun: Sequence[Request], slots: int) -> bool:
        """Whether batch requests have taken all the slots that they may take.

        Args:
            begun: the requests that run, and the one whose prompt is computed now.
            slots: number of slots.
        """
        if not self.reserved_decode_slots:
            return False
        # TASK 2.7.9: they may not take `reserved_decode_slots`. A batch request whose prompt is paused counts as well:
        # it will need a slot.
        taken = sum(request.priority == "batch" for request in [*begun, *self.paused.requests])
        return taken >= slots - self.reserved_decode_slots

    def make_room(self, current: Request, running: Sequence[Request], slots: int) -> Request | None:
        """Pauses the current prompt if one that waits is shorter than what is left of it.

        Returns:
            The shorter one, removed from the queue; None if the current one continues.
        """
        if not self.pause_prefill:
            return None
        # TASK 2.7.9: not if `may_pause` forbids it. `next_shorter` finds the other; a finished prompt has none left.
        # An interactive prompt does not make room for a batch one. The paused one keeps its cache and its offset.
        if not self.paused.may_pause(current):
            return None
        only = current.priority == "interactive" or self.keeps_slots([*running, current], slots)
        shorter = self.next_shorter(current.prompt_left, interactive_only=only)
        if shorter is not None:
            self.paused.pause(current)
        return shorter

    def next_shorter(self, tokens: int, interactive_only: bool) -> Request | None:
        """Removes the shortest prompt from the queue, if it has fewer than `tokens` tokens. Given."""
        while (request := self.queue.shorter_than(tokens, interactive_only)) is not None:
            if not request.is_done:
                return request
            self.ended.append(request)  # it was rejected, or aborted while it waited
        return None

    def waits_for_peak(self, request: Request, load: float, prefill_step: int) -> bool:
        """Whether a long prompt waits in this step, because too many requests run.

        Args:
            request: the request whose prompt is computed next.
            load: share of the slots that run.
            prefill_step: tokens of a chunk.
        """
        if self.peak_load is None:
            return False
        # TASK 2.7.9: a prompt is long if it needs more than one chunk. It waits `patience` steps, then gets one chunk,
        # and so on.
        waits = load >= self.peak_load and request.prompt_left > prefill_step and self._waited < self.patience
        self._waited = self._waited + 1 if waits else 0
        return waits
