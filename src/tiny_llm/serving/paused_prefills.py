"""Prompts whose prefill was interrupted: they keep their offset and their cache, and go on later."""

from .request import Request


class PausedPrefills:
    """The prompts that made room for shorter ones.

    Args:
        patience: so many times a prompt makes room; then it goes on, and makes room no more.
    """

    def __init__(self, patience: int):
        self.patience = patience
        self.requests: list[Request] = []  # in the order in which they made room: the shortest is the last
        self._made_room: dict[Request, int] = {}

    def __len__(self) -> int:
        return len(self.requests)

    def has_patience(self, request: Request) -> bool:
        """Whether it may wait for one more."""
        return self._made_room.get(request, 0) < self.patience

    def may_pause(self, request: Request) -> bool:
        """Whether this prompt may make room."""
        # TASK 2.7.9: those that are paused already would wait longer, too: all of them need patience.
        raise NotImplementedError("week 2 day 7 task 9: PausedPrefills.may_pause")

    def pause(self, request: Request) -> None:
        """Lets a shorter prompt go before this one, and so before all that are paused already."""
        # TASK 2.7.9: keep it, and count in `_made_room` that each of them makes room once more.
        raise NotImplementedError("week 2 day 7 task 9: PausedPrefills.pause")

    def resume(self) -> Request:
        """Takes out the one that goes on: who has no patience left, the oldest of them first; else the shortest."""
        # TASK 2.7.9: the last one is the shortest, for each made room for a shorter one. Patience bounds every wait.
        raise NotImplementedError("week 2 day 7 task 9: PausedPrefills.resume")

    def forget(self, request: Request) -> None:
        """Its prefill is over, or it has ended."""
        self._made_room.pop(request, None)
        if request in self.requests:
            self.requests.remove(request)
