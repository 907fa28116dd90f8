"""Responses: JSON, server-sent events, and clients that disconnect before or during an answer."""

# Own code: sse-starlette 3.5 passed the same tests, but the first piece of a short answer took 7 % longer, and a
# switch for the whole process is needed so that it does not cut off slow readers when the server ends.

import asyncio
import json
import uuid
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Mapping
from typing import TypeVar

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

T = TypeVar("T")
DONE = "data: [DONE]\n\n"  # how OpenAI's streams end
WRITTEN = uuid.uuid4().hex  # stands for values that are JSON already; never sent, so no text can contain it


# Each event, as OpenAPI 3.2 describes streams: a chunk in JSON, or [DONE].
EVENT = {"type": "object", "properties": {"data": {"type": "string"}}, "required": ["data"]}
STREAM = {200: {"content": {"text/event-stream": {"itemSchema": EVENT}}}}


def json_parts(content: object) -> list[bytes]:
    """JSON in ASCII, in parts. Text may hold half a surrogate pair, which UTF-8 cannot encode.

    Bytes in `content` are values of a list that are JSON already, such as `1, 2, 3`. They are parts of their own, and
    are not copied, however many lists they are in.
    """
    written: list[bytes] = []
    text = json.dumps(content, default=lambda values: written.append(values) or WRITTEN)
    around = text.encode().split(f'"{WRITTEN}"'.encode())
    return [part for pair in zip(around, [*written, b""], strict=True) for part in pair if part]


class AsciiJson(Response):
    """JSON whose parts are sent one after the other: others are served between, and there is no copy of the whole."""

    def __init__(self, content: object, status: int = 200, headers: Mapping[str, str] | None = None):
        self._parts = json_parts(content)
        length = {"Content-Length": str(sum(map(len, self._parts)))}
        super().__init__(None, status, {**(headers or {}), **length}, "application/json")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        for part in self._parts:
            await send({"type": "http.response.body", "body": part, "more_body": True})
        await send({"type": "http.response.body", "body": b""})


class Disconnected(Exception):
    """Raised when the client has disconnected."""


def event(content: object) -> str:
    """One server-sent event."""
    return f"data: {b''.join(json_parts(content)).decode()}\n\n"


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
