"""A server on a thread of this process, for screens, tests and measurements."""

import http.client
import threading
import time
from collections.abc import Callable

from fastapi import FastAPI

from .openai_api.draining_server import ConnectionLimits, DrainingServer

PATIENCE = 60.0  # seconds until it must be ready, or at its end


class BackgroundServer:
    """Serves an app on a free port of this machine while its `with` block runs.

    Args:
        app: of `create_app`.
        wait: whether to wait until the engine is ready.
        limits: how many connections may be open, and how many may wait.

    Raises:
        RuntimeError: the server does not get ready in time.
    """

    host = "127.0.0.1"

    def __init__(self, app: FastAPI, wait: bool = True, limits: ConnectionLimits | None = None):
        self.app, self._wait = app, wait
        self.server = DrainingServer(app, self.host, 0, limits=limits or ConnectionLimits())
        self._thread = threading.Thread(target=self.server.run, name="server", daemon=True)

    def __enter__(self) -> "BackgroundServer":
        self._thread.start()
        self._until(lambda: self.server.started)
        if self._wait:
            self._until(lambda: self.server.service.state != "starting")
        return self

    def _until(self, is_so: Callable[[], bool]) -> None:
        end = time.monotonic() + PATIENCE
        while not is_so():
            if time.monotonic() > end or not self._thread.is_alive():
                raise RuntimeError("the server does not get ready") from self._failure()
            time.sleep(0.005)

    def _failure(self) -> BaseException | None:
        service = getattr(self.app.state, "service", None)
        return service and service.failure

    def __exit__(self, *exception: object) -> None:
        self.server.stop()
        self._thread.join(PATIENCE)

    @property
    def port(self) -> int:
        return self.server.servers[0].sockets[0].getsockname()[1]

    @property
    def url(self) -> str:
        return f"http://{self.host}:{self.port}"

    def connection(self) -> http.client.HTTPConnection:
        """A new connection to it."""
        return http.client.HTTPConnection(self.host, self.port, timeout=PATIENCE)
