"""uvicorn with a graceful shutdown: new requests get 503 while open ones finish."""

import asyncio
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import uvicorn
from fastapi import FastAPI

from ...terminal import FatalError
from .connections import ConnectionLimits, LimitedConnection, OncePerMinute
from .server_log import CONFIG
from .service import EngineService

LOGGERS = ("asyncio", "uvicorn.error")  # what clients can make them write is written once
KEEP_ALIVE_SECONDS = 5
LAST_SECONDS = 3  # for clients that still read when the engine has stopped


class DrainingServer(uvicorn.Server):
    """Serves an app of `create_app`. The first signal drains it, a second one ends it at once.

    Args:
        app: see `create_app`.
        host, port: where it listens.
        limits: of connections.
        on_ready: called once, when requests are accepted.
        options: further ones of `uvicorn.Config`.
    """

    def __init__(
        self,
        app: FastAPI,
        host: str,
        port: int,
        limits: ConnectionLimits = ConnectionLimits(),  # noqa: B008 (immutable)
        on_ready: Callable[[], object] = lambda: None,
        **options: Any,
    ):
        config = uvicorn.Config(
            app,
            host=host,
            port=port,
            access_log=False,  # ours has more, see `RequestIds`
            log_config=CONFIG,
            server_header=False,
            http=LimitedConnection,
            limit_concurrency=limits.connections,
            backlog=limits.backlog,
            timeout_keep_alive=KEEP_ALIVE_SECONDS,
            timeout_graceful_shutdown=LAST_SECONDS,
            **options,
        )
        super().__init__(config)
        self._app, self._on_ready = app, on_ready
        self._loop: asyncio.AbstractEventLoop | None = None
        self._draining: asyncio.Task | None = None
        self._was_ready, self._once = False, OncePerMinute()

    @property
    def service(self) -> EngineService:
        return self._app.state.service

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        for name in LOGGERS:
            logging.getLogger(name).addFilter(self._once)
        await super().startup(sockets)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        await super().shutdown(sockets)
        for name in LOGGERS:
            logging.getLogger(name).removeFilter(self._once)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Handle SIGTERM and Ctrl-C; while the model loads there is nothing to drain."""
        service = getattr(self._app.state, "service", None)
        if self._draining is not None or service is None or service.state == "starting":
            print(
                f"ended by {signal.Signals(sig).name}, without waiting for open requests",
                file=sys.stderr,
                flush=True,
            )
            os._exit(128 + sig)  # the engine's thread is in native code, which no exception interrupts
        self.stop()

    def stop(self) -> None:
        """Drain, then end. May be called on any thread."""
        if self._loop is not None:  # else it has not begun
            self._loop.call_soon_threadsafe(self._begin_draining)

    def _begin_draining(self) -> None:
        if self._draining is None:
            self._draining = asyncio.create_task(self._drain())

    async def _drain(self) -> None:
        await self.service.stop()
        feed: Any = getattr(self._app.state, "feed", None)
        if feed is not None:
            feed.close()
        self.should_exit = True

    async def on_tick(self, counter: int) -> bool:
        """Report once that the engine is ready, and end a server that can never be ready.

        Such a server could not open its engine, met a blank task, or has lost a rank. An engine that dies later for
        another reason only fails its health check.
        """
        failure, final = self.service.failure, (NotImplementedError, FatalError)
        if failure is not None and (not self.service.has_opened or isinstance(failure, final)):
            return True
        if not self._was_ready and self.service.state == "ready":
            self._was_ready = True
            self._on_ready()
        return await super().on_tick(counter)
