"""The address that a server listens on."""

import errno
import socket

from ..terminal import fail


def listen(host: str, port: int) -> socket.socket:
    """A listening socket on this address; if it cannot listen, the command ends with one line.

    Called before the model is loaded, because the address may be taken.
    """
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


def url_of(host: str, port: int) -> str:
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"
