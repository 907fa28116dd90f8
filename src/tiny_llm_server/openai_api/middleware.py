"""What a request passes before its endpoint: an id and a line in the log, checks, and steps for a large body."""

import asyncio
import hmac
import logging
import re
import time
import uuid
from collections.abc import Callable, Collection, Coroutine
from urllib.parse import urlsplit

from fastapi import Request
from fastapi.routing import APIRoute
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .errors import HEADER, ApiError

ACCESS = logging.getLogger("tiny_llm.access")
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


OPEN_PATHS = PROBES | {"/"}  # the page asks for the key
BODY_SECONDS = 30.0
WRONG_HOST = ApiError(
    400,
    "this server does not have the name in the Host header: start it with --allowed-hosts NAME",
    code="host_not_allowed",
)
WRONG_KEY = ApiError(
    401,
    "a key is needed: send the header `Authorization: Bearer KEY`",
    code="invalid_api_key",
    headers={"WWW-Authenticate": "Bearer"},
)


class Guard:
    """An ASGI middleware: 400 for another host, 401 without the key, 413 for a body too long, 408 for one too slow.

    Args:
        app: the app that it guards.
        api_key: key that requests must have; None accepts all.
        max_body_bytes: returns the most bytes of a request.
        allowed_hosts: names of this server that the Host header may have; None accepts all.
    """

    def __init__(
        self,
        app: ASGIApp,
        api_key: str | None,
        max_body_bytes: Callable[[], int],
        allowed_hosts: Collection[str] | None = None,
    ):
        self.app, self.api_key, self.max_body_bytes = app, api_key, max_body_bytes
        self.allowed_hosts = allowed_hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        if not self._is_allowed(headers.get("host", "")):
            await WRONG_HOST.response()(scope, receive, send)
        elif not self._may_enter(scope["path"], headers):
            await WRONG_KEY.response()(scope, receive, send)
        elif self._says_too_long(headers.get("content-length", "")):
            await self._too_long().response()(scope, receive, send)
        else:
            await self.app(scope, self._limited(receive), send)

    def _is_allowed(self, host: str) -> bool:
        """Whether a request is meant for this server: a web page that reaches it by a name of its own is not."""
        return self.allowed_hosts is None or host_of(host) in self.allowed_hosts

    def _may_enter(self, path: str, headers: Headers) -> bool:
        if self.api_key is None or path in OPEN_PATHS:
            return True
        scheme, _, key = headers.get("authorization", "").partition(" ")
        return scheme.lower() == "bearer" and hmac.compare_digest(key.encode(), self.api_key.encode())

    def _says_too_long(self, length: str) -> bool:
        return length.isdecimal() and int(length[:20]) > self.max_body_bytes()

    def _limited(self, receive: Receive) -> Receive:
        """`receive` that ends a request whose body is too long, or takes too long as a whole."""
        length, is_complete, end = 0, False, time.monotonic() + BODY_SECONDS

        async def received() -> Message:
            nonlocal length, is_complete
            if is_complete:
                return await receive()
            try:
                message = await asyncio.wait_for(receive(), end - time.monotonic())
            except asyncio.TimeoutError:
                raise HTTPException(408, f"the body did not come within {BODY_SECONDS:.0f} s") from None
            length += len(message.get("body", b""))
            if length > self.max_body_bytes():
                raise HTTPException(413, str(self._too_long()))
            is_complete = not message.get("more_body", False)
            return message

        return received

    def _too_long(self) -> ApiError:
        message = f"the body has more than {self.max_body_bytes()} bytes: send less"
        return ApiError(413, message, code="body_too_large")


def host_of(header: str) -> str:
    """The name in a Host header, without the port and in lower case; empty without the header."""
    try:
        return urlsplit(f"//{header}").hostname or ""
    except ValueError:
        return ""


def check_origin(request: Request) -> None:
    """Refuse what a web page of another origin asks. A client that is no browser has neither header.

    Filippo Valsorda's algorithm, as in Go's `CrossOriginProtection`: needs no token in the page.

    Raises:
        ApiError: 403.
    """
    site, origin, host = (request.headers.get(name) for name in ("sec-fetch-site", "origin", "host"))
    # Browsers do not send Sec-Fetch-Site over plain HTTP to another machine.
    by_origin = origin in (None, f"http://{host}", f"https://{host}")
    if not (by_origin if site is None else site in ("same-origin", "none")):
        raise ApiError(403, "this is for the server's own page alone", code="origin_not_allowed")


LARGE = 2**16  # bytes


class SteppedRequest(Request):
    """A request whose JSON is parsed in one step, and checked by the framework in the next.

    Neither can be interrupted, on whatever thread: the parser keeps the interpreter's lock. So large bodies are parsed
    one after the other, and after each of them others have as much time as it took.
    """

    def __init__(self, request: Request, turn: asyncio.Lock):
        super().__init__(request.scope, request.receive)
        self._turn = turn

    async def json(self) -> object:
        if len(await self.body()) < LARGE:
            return await super().json()
        async with self._turn:
            start = time.monotonic()
            content = await super().json()
            await asyncio.sleep(time.monotonic() - start)
        return content


class SteppedRoute(APIRoute):
    """A route whose endpoint gets a `SteppedRequest`."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[object, object, Response]]:
        handler = super().get_route_handler()

        async def handle(request: Request) -> Response:
            return await handler(SteppedRequest(request, request.app.state.turn))

        return handle
