"""uvicorn with limits of connections and a graceful shutdown: new requests get 503 while open ones finish."""

import asyncio
import logging
import os
import resource
import signal
import socket
import sys
from collections.abc import Callable
from dataclasses import dataclass
from types import FrameType
from typing import Any, cast

import h11
import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.flow_control import CLOSE_HEADER
from uvicorn.protocols.http.h11_impl import H11Protocol

from tiny_llm_engine.machine.terminal import FatalError

from .live_page import LiveFeed
from .server_log import CONFIG
from .service import EngineService

HEADER_SECONDS = 60.0  # until headers must have arrived, as in nginx and Node: busy clients were 10 s late
FILES = 64  # that are kept for other things than connections
ONCE_PER = 60.0  # seconds
LOOK_SECONDS = 0.05
COMMENT = b": \n\n"  # of an event stream
LENGTHS = {b"content-length", b"transfer-encoding"}
CONTINUE = h11.InformationalResponse(status_code=100, headers=[])


class LimitedConnection(H11Protocol):
    """A connection that is closed when no request comes, at the latest when others need its place.

    The limit is uvicorn's `limit_concurrency`; beyond it, and if all connections have a request, uvicorn answers 503.
    """

    _deadline: asyncio.TimerHandle | None = None
    _idle_since: float

    @property
    def is_idle(self) -> bool:
        """Whether no request is open: its headers are incomplete, or the last one was answered."""
        return self.cycle is None or self.cycle.response_complete

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._idle_since = self.loop.time()
        self._set_deadline()
        if self.limit_concurrency is not None and len(self.connections) >= self.limit_concurrency:
            self._make_room()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._close_after_two_lengths()
        self._set_deadline()

    def on_response_complete(self) -> None:
        self._idle_since = self.loop.time()
        super().on_response_complete()
        self._close_after_two_lengths()
        if self.conn.trailing_data[0]:  # another request has begun; else uvicorn's own limit holds
            self._set_deadline()

    def _close_after_two_lengths(self) -> None:
        """Close the connection after the answer to a request that gives its length in two ways (RFC 9112, 6.3).

        A proxy in front may have believed the other one, and take the rest of its body for the next request.
        """
        if self.headers and self.headers[-1] != CLOSE_HEADER and dict(self.headers).keys() >= LENGTHS:
            self.headers.append(CLOSE_HEADER)

    def _unsupported_upgrade_warning(self) -> None:
        """One line; the request is answered in HTTP/1.1, as the specification allows."""
        self.logger.warning("upgrades to other protocols are not supported: answered in HTTP/1.1")

    def connection_lost(self, exc: Exception | None) -> None:
        self._cancel_deadline()
        super().connection_lost(exc)

    def eof_received(self) -> bool:
        """Answer a client that has sent its request and closed its side, unless it has closed both."""
        is_tls = self.transport.get_extra_info("sslcontext") is not None  # which closes both sides at once
        if is_tls or self.is_idle or self.cycle.more_body or self.scope["http_version"] == "1.0":
            return False
        self.cycle.keep_alive = False
        # Something that clients skip: one that has closed both sides refuses it. Only event streams begin early.
        skipped = h11.Data(data=COMMENT) if self.cycle.response_started else CONTINUE
        self.transport.write(self.conn.send(skipped) or b"")
        self._watch()
        return True

    def _watch(self) -> None:
        """Look now and then whether the client has refused."""
        if self.is_idle or self.transport.is_closing():
            return
        if self.transport.get_extra_info("socket").getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            self.transport.abort()
        else:
            self.loop.call_later(LOOK_SECONDS, self._watch)

    def _set_deadline(self) -> None:
        """Start waiting for headers, unless they are waited for; stop when they are there."""
        if not self.is_idle or self.transport.is_closing():
            self._cancel_deadline()
        elif self._deadline is None:
            self._deadline = self.loop.call_later(HEADER_SECONDS, self.transport.abort)

    def _cancel_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _make_room(self) -> None:
        """Close the connection that has been idle for longest."""
        others = cast("set[LimitedConnection]", self.connections - {self})
        idle = [each for each in others if each.is_idle and not each.transport.is_closing()]
        if idle:
            min(idle, key=lambda each: each._idle_since).transport.abort()


@dataclass(frozen=True)
class ConnectionLimits:
    """Numbers that together stay below the process's limit of open files.

    Args:
        connections: how many may be open at the same time.
        backlog: connections that asyncio accepts in a row, before it looks at any.
    """

    connections: int = 1024
    backlog: int = 128

    @classmethod
    def within(cls, wanted: int | None) -> "ConnectionLimits":
        """The limits for this process, whose own limit of open files is raised as far as it may be.

        Args:
            wanted: connections; None takes as many as fit, at most 4096.

        Raises:
            ValueError: there are not as many files.
        """
        room = raised_file_limit() - FILES
        most = max(1, room * 3 // 4)
        if wanted is not None and wanted > most:
            raise ValueError(f"--max-connections {wanted}: this process may have {most}; raise `ulimit -n`")
        connections = wanted or min(most, 4096)
        return cls(connections, max(1, min(2048, room - connections)))


def raised_file_limit() -> int:
    """Raise the limit of open files to what the system allows, and return it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard == resource.RLIM_INFINITY or hard > 2**20:  # a system may refuse the infinite: macOS does
        hard = max(soft, 10_240)
    if soft < hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    return hard


class OncePerMinute(logging.Filter):
    """Lets a message pass once a minute, whatever its arguments: clients must not fill the log."""

    def __init__(self):
        super().__init__()
        self._passed: dict[str, float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        message = str(record.msg).partition("\n")[0]
        is_new = record.created >= self._passed.get(message, 0.0) + ONCE_PER
        if is_new:
            self._passed = {
                each: time for each, time in self._passed.items() if record.created < time + ONCE_PER
            }
            self._passed[message] = record.created
        return is_new


LOGGERS = ("asyncio", "uvicorn.error")  # what clients can make them write is written once
KEEP_ALIVE_SECONDS = 75  # longer than clients and proxies: a request that meets our closing is lost
LAST_SECONDS = 3  # for clients that still read when the engine has stopped


class DrainingServer(uvicorn.Server):
    """Serves an app of `create_app`. The first signal drains it, a second one ends it at once.

    Args:
        app: see `create_app`.
        host, port: where it listens.
        limits: how many connections may be open, and how many may wait.
        on_ready: called once, when requests are accepted.
        options: further ones of `uvicorn.Config`.
    """

    def __init__(
        self,
        app: FastAPI,
        host: str,
        port: int,
        limits: ConnectionLimits = ConnectionLimits(),
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
            ws="none",
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
        feed: LiveFeed | None = self._app.state.feed
        if feed is not None:
            await feed.close()
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
