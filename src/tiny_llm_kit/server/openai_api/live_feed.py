"""Scheduler events for all watchers: server-sent events that never delay the engine."""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable
from itertools import count
from typing import Protocol

from ...engine.llm_engine import LLMEngine
from ...model.files import Json
from ...solution_types import Event
from .event_stream import event

MOST_UNREAD = 256  # messages of one watcher; the oldest ones are dropped
QUIET_SECONDS = 15.0  # after which a comment is sent, so that the connection is not taken for dead


class LivePage(Protocol):
    """The interface of the live page, which is passed to the server."""

    html: str

    def hello(self, engine: LLMEngine) -> Json:
        """The first message of a watcher."""
        ...

    def message(self, event: Event, engine: LLMEngine) -> Json | None:
        """The message that watchers get for an event, None for none. Called on the engine's thread."""


class Watcher:
    """One reader of the feed, and what it has not read.

    Args:
        number: of this reader.
    """

    def __init__(self, number: int):
        self.number = number
        self._unread: deque[Json] = deque(maxlen=MOST_UNREAD)
        self._has_news = asyncio.Event()

    def put(self, message: Json) -> None:
        self._unread.append(message)
        self._has_news.set()

    def wake(self) -> None:
        self._has_news.set()

    async def messages(self) -> list[Json]:
        """Unread messages; empty after a quiet time."""
        try:
            await asyncio.wait_for(self._has_news.wait(), QUIET_SECONDS)
        except asyncio.TimeoutError:
            return []
        self._has_news.clear()
        messages = list(self._unread)
        self._unread.clear()
        return messages


class LiveFeed:
    """A listener of the scheduler that passes the page's messages on to the event loop.

    Args:
        page: makes the messages.
        engine: whose events they are.
        loop: the event loop of the watchers.
        on_leave: awaited with the number of a watcher that has left.
    """

    def __init__(
        self,
        page: LivePage,
        engine: LLMEngine,
        loop: asyncio.AbstractEventLoop,
        on_leave: Callable[[int], Awaitable[object]],
    ):
        self._page, self._engine, self._loop, self._on_leave = page, engine, loop, on_leave
        self._numbers = count()
        self._watchers: set[Watcher] = set()
        self._is_closed = False

    def __call__(self, event: Event) -> None:
        """Pass an event on; called on the engine's thread. Without watchers it costs nothing."""
        if not self._watchers:
            return
        message = self._page.message(event, self._engine)
        if message is not None:
            self._loop.call_soon_threadsafe(self._send, message)

    def _send(self, message: Json) -> None:
        for watcher in self._watchers:
            watcher.put(message)

    async def events(self, hello: Json) -> AsyncGenerator[str, None]:
        """Texts of server-sent events: the hello, then every message, until the client disconnects.

        The hello has the watcher's number as `page`.
        """
        watcher = Watcher(next(self._numbers))
        self._watchers.add(watcher)
        try:
            yield event({**hello, "page": watcher.number})
            while not self._is_closed:
                messages = await watcher.messages()
                yield "".join(map(event, messages)) or ": \n\n"
        finally:
            self._watchers.discard(watcher)
            await self._on_leave(watcher.number)

    def close(self) -> None:
        """End every watcher's stream."""
        self._is_closed = True
        for watcher in self._watchers:
            watcher.wake()
