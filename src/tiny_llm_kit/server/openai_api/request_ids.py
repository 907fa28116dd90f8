"""Middleware for every answer, also those of other middleware: the id of its request, and a count of refusals."""

import re
import uuid
from collections.abc import Callable

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

HEADER = "X-Request-Id"
GIVEN = re.compile(r"[!-~]{1,128}")  # what is sent back and logged


class RequestIds:
    """An ASGI middleware: the client's own X-Request-Id comes back; a request without one gets a random id.

    Args:
        app: the app inside.
        on_refusal: called with the status of an answer that refuses its request: 4xx or 503.
    """

    def __init__(self, app: ASGIApp, on_refusal: Callable[[int], object]):
        self.app, self.on_refusal = app, on_refusal

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        given = Headers(scope=scope).get(HEADER, "")
        scope["request_id"] = given if GIVEN.fullmatch(given) else uuid.uuid4().hex

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).setdefault(HEADER, scope["request_id"])
                if is_refusal(message["status"]):
                    self.on_refusal(message["status"])
            await send(message)

        await self.app(scope, receive, send_with_id)


def is_refusal(status: int) -> bool:
    """Whether a status says that the request was not served; 499 is for a client that has left."""
    return (400 <= status < 500 and status != 499) or status == 503
