"""Middleware around all other: the id of a request, a count of refusals, a line in the access log, and HEAD."""

import logging
import re
import time
import uuid
from collections.abc import Callable

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

ACCESS = logging.getLogger("tiny_llm.access")
HEADER = "X-Request-Id"
GIVEN = re.compile(r"[!-~]{1,128}")  # what is sent back and logged
PROBES = frozenset({"/health", "/ping", "/ready", "/metrics"})  # polled until they are answered with 200
NO_HEAD = frozenset({"/events"})  # its body has no end


class RequestIds:
    """An ASGI middleware: the client's own X-Request-Id comes back; a request without one gets a random id.

    Args:
        app: the app inside.
        on_refusal: called with the status of an answer that refuses its request: 4xx or 503. Probes are no requests.
        logs: whether each request is a line in the log: its method, path without the query, status, seconds, tokens of
            prompt and answer, and id.
        sends: whether the id goes back with the answer; a proxy in front may have made it and send it itself.
    """

    def __init__(
        self, app: ASGIApp, on_refusal: Callable[[int], object], logs: bool = False, sends: bool = True
    ):
        self.app, self.on_refusal, self.logs, self.sends = app, on_refusal, logs, sends

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        given = Headers(scope=scope).get(HEADER, "")
        scope["request_id"] = given if GIVEN.fullmatch(given) else uuid.uuid4().hex
        start, status = time.monotonic(), 500

        async def send_with_id(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                if self.sends:
                    MutableHeaders(scope=message).setdefault(HEADER, scope["request_id"])
                if is_refusal(status) and scope["path"] not in PROBES:
                    self.on_refusal(status)
            await send(message)

        inner = as_get(scope)
        try:
            await self.app(inner, receive, send_with_id)
        finally:
            if self.logs:
                ACCESS.info(access_line(inner, scope["method"], status, time.monotonic() - start))


def as_get(scope: Scope) -> Scope:
    """A HEAD request as the GET whose headers it asks for: the server itself leaves the body out."""
    is_head = scope["method"] == "HEAD" and scope["path"] not in NO_HEAD
    return {**scope, "method": "GET"} if is_head else scope


def access_line(scope: Scope, method: str, status: int, seconds: float) -> str:
    """What the log says about a request. Its path may hold anything, so what would break the line is escaped."""
    tokens = "".join(f" {count} {kind}" for kind, count in scope.get("tokens", dict)().items())
    path = scope["path"].encode("unicode_escape").decode()
    host = (scope.get("client") or ("-",))[0]
    return f"{host} {method} {path} {status} {seconds:.3f} s{tokens} {scope['request_id']}"


def is_refusal(status: int) -> bool:
    """Whether a status says that the request was not served; 499 is for a client that has left."""
    return (400 <= status < 500 and status != 499) or status == 503
