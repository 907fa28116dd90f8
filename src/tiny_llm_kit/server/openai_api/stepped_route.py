"""Routes that read a large body in steps, between which others are served."""

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import Request
from fastapi.routing import APIRoute
from starlette.responses import Response

LARGE = 2**16  # bytes


class SteppedRequest(Request):
    """A request whose JSON is parsed in one step, and checked by the framework in the next.

    Neither can be interrupted, on whatever thread: the parser keeps the interpreter's lock. So large bodies are parsed
    one after the other, and after each of them others have as much time as it took.
    """

    def __init__(self, request: Request, turn: asyncio.Lock):
        super().__init__(request.scope, request.receive)
        self._turn = turn

    async def json(self) -> Any:
        if len(await self.body()) < LARGE:
            return await super().json()
        async with self._turn:
            start = time.monotonic()
            content = await super().json()
            await asyncio.sleep(time.monotonic() - start)
        return content


class SteppedRoute(APIRoute):
    """A route whose endpoint gets a `SteppedRequest`."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handler = super().get_route_handler()

        async def handle(request: Request) -> Response:
            return await handler(SteppedRequest(request, request.app.state.turn))

        return handle
