"""Who of those that wait goes first: two classes, and an end to every wait."""

from .request import Request
from .request_queue import FifoQueue


class PriorityScheduler:
    """Interactive requests before batch requests, first come first served in each class. A `RequestQueue`.

    A batch request waits for at most `patience` interactive ones once it is the oldest of its class: then it is next
    (ageing), and nobody goes before it.

    Args:
        patience: interactive requests that go while a batch request waits; then the oldest batch request does.

    Raises:
        ValueError: patience is below 1, and interactive requests would not come first.
    """

    def __init__(self, patience: int = 8):
        if patience < 1:
            raise ValueError(
                f"patience is {patience}: at least 1 interactive request goes before a batch one"
            )
        self.patience = patience
        self.interactive, self.batch = FifoQueue(), FifoQueue()
        self._passed = 0  # interactive requests that went since a batch request is the oldest

    def add(self, request: Request) -> None:
        """Lets a request wait behind those of its own class."""
        # TASK 2.7.9: by `request.priority`. The wait that is counted begins with the first batch request.
        raise NotImplementedError("week 2 day 7 task 9: PriorityScheduler.add")

    def schedule_next(self, interactive_only: bool = False) -> Request | None:
        """Takes the next one out.

        Returns:
            None when nobody waits; and when only an interactive one may go, but none waits.
        """
        # TASK 2.7.9: whose turn is it? A batch request goes when it has waited for too many, or when it is alone.
        # Into a slot that it may not take, nobody goes before it: that does not count.
        raise NotImplementedError("week 2 day 7 task 9: PriorityScheduler.schedule_next")

    def shorter_than(self, tokens: int, interactive_only: bool = False) -> Request | None:
        """Takes the shortest interactive prompt out, if it has fewer than so many tokens; else the shortest batch one.

        Returns:
            None when there is none. How often a prompt makes room for a shorter one is bounded by the scheduler.
        """
        # TASK 2.7.9: an interactive one that goes has passed a batch request here too. A short batch one that goes is
        # not the oldest: the wait of that one does not end.
        raise NotImplementedError("week 2 day 7 task 9: PriorityScheduler.shorter_than")

    def _pass(self, request: Request | None) -> Request | None:
        """Counts an interactive request that leaves."""
        # TASK 2.7.9: None is none.
        raise NotImplementedError("week 2 day 7 task 9: PriorityScheduler._pass")

    def __len__(self) -> int:
        """How many wait."""
        # TASK 2.7.9: of both classes.
        raise NotImplementedError("week 2 day 7 task 9: PriorityScheduler.__len__")
