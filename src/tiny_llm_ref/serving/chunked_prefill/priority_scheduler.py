"""Priority queue with two classes and ageing, so that nothing starves."""

from tiny_llm_engine.admission import FifoQueue

from .request import Request


class PriorityScheduler:
    """A queue, not a scheduler: a `RequestQueue` with interactive requests before batch requests.

    First come, first served within a class.

    Ageing: once a batch request is the oldest of its class, at most `patience` interactive requests go before it; then
    it is next.

    Args:
        patience: maximum number of interactive requests that go before the oldest batch request.

    Raises:
        ValueError: `patience` is below 1, so that interactive requests would not come first.
    """

    def __init__(self, patience: int = 8):
        if patience < 1:
            raise ValueError(
                f"patience is {patience}: at least 1 interactive request goes before a batch one"
            )
        self.patience = patience
        self.interactive, self.batch = FifoQueue(), FifoQueue()
        self._passed = 0  # interactive requests that went before the batch request that is now the oldest

    def add(self, request: Request) -> None:
        """Adds a request at the end of its class."""
        # TASK 2.7.9: by `request.priority`. Counting begins with the first batch request that waits.
        if request.priority == "interactive":
            self.interactive.add(request)
            return
        if not len(self.batch):
            self._passed = 0
        self.batch.add(request)

    def schedule_next(self, interactive_only: bool = False) -> Request | None:
        """Removes and returns the next request.

        Returns:
            None if none waits, or if only an interactive one may go and none waits.
        """
        # TASK 2.7.9: a batch request goes if `patience` interactive ones went before it, or if none of those waits.
        # If only interactive requests may go, the batch request is not passed: do not count.
        if interactive_only:
            return self.interactive.schedule_next()
        if len(self.batch) and (self._passed >= self.patience or not len(self.interactive)):
            self._passed = 0
            return self.batch.schedule_next()
        return self._pass(self.interactive.schedule_next())

    def shorter_than(self, tokens: int, interactive_only: bool = False) -> Request | None:
        """Removes and returns the shortest prompt of fewer than `tokens` tokens, interactive ones first.

        Returns:
            None if all are longer. The scheduler limits how often a prompt may be overtaken.
        """
        # TASK 2.7.9: here too, an interactive request that goes counts for the oldest batch request. A short batch
        # request that goes is not the oldest, so it does not reset the count.
        shorter = self._pass(self.interactive.shorter_than(tokens))
        if shorter is None and not interactive_only:
            shorter = self.batch.shorter_than(tokens)
        return shorter

    def _pass(self, request: Request | None) -> Request | None:
        """Counts an interactive request that leaves."""
        # TASK 2.7.9: `None` does not count.
        self._passed += request is not None
        return request

    def __len__(self) -> int:
        """The number of requests that wait."""
        # TASK 2.7.9: of both classes.
        return len(self.interactive) + len(self.batch)
