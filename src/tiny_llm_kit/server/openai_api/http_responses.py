"""Responses: JSON, server-sent events, and clients that disconnect before or during an answer."""

# Own code: sse-starlette 3.5 passed the same tests, but the first piece of a short answer took 7 % longer, and a
# switch for the whole process is needed so that it does not cut off slow readers when the server ends.

import asyncio
import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from typing import TypeVar

from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

T = TypeVar("T")
DONE = "data: [DONE]\n\n"  # how OpenAI's streams end


# Each event, as OpenAPI 3.2 describes streams: a chunk in JSON, or [DONE].
EVENT = {"type": "object", "properties": {"data": {"type": "string"}}, "required": ["data"]}
STREAM = {200: {"content": {"text/event-stream": {"itemSchema": EVENT}}}}


class AsciiJson(JSONResponse):
    """JSON in ASCII: text may hold half a surrogate pair, which UTF-8 cannot encode."""

    def render(self, content: object) -> bytes:
        return json.dumps(content).encode()


class Disconnected(Exception):
    """Raised when the client has disconnected."""


def event(content: object) -> str:
    """One server-sent event."""
    return f"data: {json.dumps(content)}\n\n"


async def has_gone(receive: Receive) -> None:
    """Wait until the client has disconnected; the request's body must have been read."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def while_connected(
    receive: Receive, work: Coroutine[object, object, T], seconds: float | None = None
) -> T:
    """Await some work; cancel it when the client disconnects or the time is over.

    Raises:
        Disconnected: the client has disconnected.
        TimeoutError: the time is over.
        What the work raises.
    """
    working, gone = asyncio.create_task(work), asyncio.create_task(has_gone(receive))
    try:
        await asyncio.wait({working, gone}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        raise Disconnected if gone.done() else TimeoutError
    finally:
        await _cancelled(working, gone)


async def _cancelled(*tasks: asyncio.Task) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


class EventStream(Response):
    """Sends events as they come. A client that reads slowly keeps only this one task waiting.

    Args:
        events: texts of events.
        on_close: called at the end, also when the client disconnects before the first event.
        seconds: after that time the stream ends, read or not.
        on_timeout: the text that is sent then, if the client still reads.
    """

    media_type = "text/event-stream"

    def __init__(
        self,
        events: AsyncGenerator[str, None],
        on_close: Callable[[], object] = lambda: None,
        seconds: float | None = None,
        on_timeout: str = "",
    ):
        super().__init__(headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self._events, self._on_close, self._seconds, self._on_timeout = events, on_close, seconds, on_timeout

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await while_connected(receive, self._send_all(send), self._seconds)
        except Disconnected:
            pass
        except TimeoutError:
            await self._give_up(send)
        finally:
            self._on_close()
            await self._events.aclose()

    async def _send_all(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        async for text in self._events:
            await send({"type": "http.response.body", "body": text.encode(), "more_body": True})
        await send({"type": "http.response.body", "body": b""})

    async def _give_up(self, send: Send) -> None:
        """Send the text for a timeout, unless the client does not read within a second."""
        last: Awaitable[None] = send({"type": "http.response.body", "body": self._on_timeout.encode()})
        with_patience = asyncio.wait_for(last, 1)
        await asyncio.gather(with_patience, return_exceptions=True)
