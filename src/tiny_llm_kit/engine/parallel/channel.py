"""Messages between two processes: objects of JSON, one per line of a socket."""

import json
import socket
import threading
from collections.abc import Mapping
from contextlib import suppress
from typing import Any


class Channel:
    """One end of a connection. Any thread may send; one thread receives.

    Args:
        connection: a connected socket; the channel closes it.
        patience: seconds to wait for a message; None waits for ever.
    """

    def __init__(self, connection: socket.socket, patience: float | None = None):
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.settimeout(patience)
        self._socket, self._sending = connection, threading.Lock()
        self._lines = connection.makefile("rb")

    def send(self, message: Mapping[str, Any]) -> None:
        """Sends a message.

        Raises:
            OSError: the other end is gone, or takes nothing.
        """
        line = json.dumps(message, separators=(",", ":")).encode() + b"\n"
        with self._sending:
            self._socket.sendall(line)

    def receive(self) -> dict[str, Any]:
        """The next message.

        Raises:
            EOFError: the other end is closed.
            TimeoutError: nothing came for too long.
        """
        try:
            line = self._lines.readline()
        except ConnectionError:
            line = b""
        if not line.endswith(b"\n"):
            raise EOFError("the other end is closed")
        return json.loads(line)

    def close(self) -> None:
        """Ends the connection. A thread that waits to receive wakes up."""
        with suppress(OSError):  # the other end may be faster
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
