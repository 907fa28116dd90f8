"""The address that a server listens on."""

import errno
import socket
from pathlib import Path

from tiny_llm_engine.machine.terminal import fail


def listen(host: str, port: int, uds: str | None = None) -> socket.socket:
    """A listening socket on this address, or on a Unix socket; if it cannot listen, the command ends with one line.

    Called before the model is loaded, because the address may be taken.
    """
    if uds is not None:
        return listen_unix(uds)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listener = socket.create_server((host, port), family=family)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            fail(f"port {port} is taken: stop the server there, or choose another --port", 1)
        fail(f"check --host and --port: {error.strerror}", 1)
    # Connections inherit it. asyncio sets it for listeners of its own only, and without it the first piece of an
    # answer waits about 40 ms, until the client acknowledges the headers.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listener


def listen_unix(path: str) -> socket.socket:
    """A listening Unix socket. One that a server has left behind is replaced; another file is not."""
    listener = socket.socket(socket.AF_UNIX)
    try:
        if Path(path).is_socket() and listener.connect_ex(path) == 0:
            fail(f"--uds {path}: a server listens there: stop it, or choose another path", 1)
        if Path(path).is_socket():
            Path(path).unlink()
            listener.close()
            listener = socket.socket(socket.AF_UNIX)
        listener.bind(path)
        listener.listen()
    except OSError as error:
        fail(f"--uds {path}: {error.strerror or error}", 1)
    return listener


def url_of(host: str, port: int, scheme: str = "http") -> str:
    return f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}"
