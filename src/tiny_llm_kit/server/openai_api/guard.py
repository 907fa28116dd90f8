"""Checks before the app sees a request: the host, the key, the size of the body, and the time it takes."""

import asyncio
import hmac
import time
from collections.abc import Callable, Collection
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .errors import ApiError

OPEN_PATHS = frozenset(
    {"/", "/health", "/ping", "/ready", "/metrics"}
)  # for probes, and a page that asks for the key
BODY_SECONDS = 30.0


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
            await _wrong_host().response()(scope, receive, send)
        elif not self._may_enter(scope["path"], headers):
            await _wrong_key().response()(scope, receive, send)
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
    """The name in a Host header, without the port and in lower case; empty if there is none."""
    try:
        return urlsplit(f"//{header}").hostname or ""
    except ValueError:
        return ""


def _wrong_host() -> ApiError:
    message = "this server does not have the name in the Host header: start it with --allowed-hosts NAME"
    return ApiError(400, message, code="host_not_allowed")


def _wrong_key() -> ApiError:
    return ApiError(
        401,
        "a key is needed: send the header `Authorization: Bearer KEY`",
        code="invalid_api_key",
        headers={"WWW-Authenticate": "Bearer"},
    )
