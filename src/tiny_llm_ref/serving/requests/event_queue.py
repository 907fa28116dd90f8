"""Events on their way to the listeners. Given."""

from collections import deque
from collections.abc import Iterable

from .events import Event, Listener


class EventQueue:
    """Keeps events until `deliver`, which is called when nothing is half done: a listener may abort any request.

    Args:
        listeners: each is called with every event, in their order.
    """

    def __init__(self, listeners: Iterable[Listener]):
        self.listeners = list(listeners)
        self._events: deque[Event] = deque()

    def __len__(self) -> int:
        """Number of events that were not delivered."""
        return len(self._events)

    def emit(self, event: Event) -> None:
        """Adds an event."""
        self._events.append(event)

    def deliver(self) -> None:
        """Passes all events on. If a listener raises, the others come with the next call."""
        while self._events:
            event = self._events.popleft()
            for listener in self.listeners:
                listener(event)
