"""Limits of connections: how many there are, and how long one may be silent."""

import asyncio
import logging
import resource
import socket
from dataclasses import dataclass
from typing import cast

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

HEADER_SECONDS = 10.0  # until the headers of a request must have arrived
FILES = 64  # that are kept for other things than connections
ONCE_PER = 60.0  # seconds
LOOK_SECONDS = 0.05
COMMENT = b": \n\n"  # of an event stream
CONTINUE = h11.InformationalResponse(status_code=100, headers=[])


class LimitedConnection(H11Protocol):
    """A connection that is closed when no request comes, at the latest when others need its place.

    The limit is uvicorn's `limit_concurrency`; beyond it, and if all connections have a request, uvicorn answers 503.
    """

    _deadline: asyncio.TimerHandle | None = None

    @property
    def is_idle(self) -> bool:
        """Whether no request is open: its headers are incomplete, or the last one was answered."""
        return self.cycle is None or self.cycle.response_complete

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._set_deadline()
        if self.limit_concurrency is not None and len(self.connections) >= self.limit_concurrency:
            self._make_room()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._set_deadline()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._set_deadline()

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
        ends = {each._deadline.when(): each for each in others if each._deadline is not None}
        if ends:
            longest = ends[min(ends)]
            longest._cancel_deadline()
            longest.transport.abort()


@dataclass(frozen=True)
class ConnectionLimits:
    """Numbers that together stay below the process's limit of open files.

    Args:
        connections: that are open at the same time.
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
