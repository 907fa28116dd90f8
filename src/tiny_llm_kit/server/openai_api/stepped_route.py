"""Routes that read a large body in two steps, between which others are served."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import Request
from fastapi.routing import APIRoute
from starlette.responses import Response


class SteppedRequest(Request):
    """A request whose JSON is parsed in one step, and checked by the framework in the next.

    Neither can be interrupted: together they would stop every stream for twice as long.
    """

    async def json(self) -> Any:
        content = await super().json()
        await asyncio.sleep(0)
        return content


class SteppedRoute(APIRoute):
    """A route whose endpoint gets a `SteppedRequest`."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handler = super().get_route_handler()

        async def handle(request: Request) -> Response:
            return await handler(SteppedRequest(request.scope, request.receive))

        return handle
