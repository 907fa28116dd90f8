"""Paused prefills: prompts that keep their offset and their cache, and continue later."""

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
        raise NotImplementedError("week 2 day 7 task 9: PausedPrefills.may_pause")

    def pause(self, request: Request) -> None:
        """Pauses a prompt for a shorter one, which also goes before all that are paused already."""
        # TASK 2.7.9: add it to `requests`, and count in `_made_room` that each of them makes room once more.
        raise NotImplementedError("week 2 day 7 task 9: PausedPrefills.pause")

    def resume(self) -> Request:
        """Removes and returns the next prompt: the oldest without patience left, else the shortest."""
        # TASK 2.7.9: the last one is the shortest, since each made room for a shorter one. Patience bounds every wait.
        raise NotImplementedError("week 2 day 7 task 9: PausedPrefills.resume")

    def forget(self, request: Request) -> None:
        """Removes a request whose prefill is complete, or which has ended."""
        self._made_room.pop(request, None)
        if request in self.requests:
            self.requests.remove(request)
