"""Messages between two processes: objects of JSON, one per line of a socket. A step is one of them."""

import json
import select
import socket
import threading
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from tiny_llm_engine.solutions.solution_types import Bucket, PackedBatch, ServingPackage

# What a model computes from; how tokens are drawn concerns rank 0 alone.
LONGEST = 2**26  # bytes of a message
FIELDS = ("token_ids", "positions", "slots", "query_start", "context_lens", "block_tables", "sample_rows")


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

    def send(self, message: Mapping[str, Any], payload: bytes | memoryview = b"") -> None:
        """Sends a message, and bytes after it.

        Raises:
            OSError: the other end is gone, or takes nothing.
        """
        line = json.dumps(message, separators=(",", ":")).encode() + b"\n"
        with self._sending:
            self._socket.sendall(line)
            self._socket.sendall(payload)

    def receive(self) -> dict[str, Any]:
        """The next message.

        Raises:
            EOFError: the other end is closed.
            TimeoutError: nothing came for too long.
        """
        try:
            line = self._lines.readline(LONGEST)
        except ConnectionError:
            line = b""
        if not line.endswith(b"\n"):
            raise EOFError("the other end is closed")
        return json.loads(line)

    def receive_into(self, memory: memoryview) -> None:
        """Fills memory with the bytes after a message. Raises as `receive`, and OSError."""
        if self._lines.readinto(memory) < len(memory):
            raise EOFError("the other end is closed")

    def has_news(self) -> bool:
        """Whether something has come after the last message, or the other end is closed."""
        return bool(select.select([self._socket], [], [], 0)[0])

    def close(self) -> None:
        """Ends the connection. A thread that waits to receive wakes up."""
        with suppress(OSError):  # the other end may be faster
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()


def step_message(batch: PackedBatch, bucket: Bucket | None) -> dict[str, Any]:
    """A batch, and the bucket that every rank pads it to."""
    step = {name: getattr(batch, name) for name in FIELDS}
    return {"step": step, "bucket": None if bucket is None else vars(bucket)}


def step_of(names: ServingPackage, message: Mapping[str, Any]) -> tuple[PackedBatch, Bucket | None]:
    """The batch and the bucket of a message."""
    bucket = message["bucket"]
    return names.PackedBatch(**message["step"]), None if bucket is None else names.Bucket(**bucket)
