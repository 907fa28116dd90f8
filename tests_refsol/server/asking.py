"""How tests ask a server, with OpenAI's client and without any, and how they wait for what another thread does."""

import http.client
import json
import socket
import time
from collections.abc import Callable
from typing import Any

import openai

from tiny_llm_server.background_server import BackgroundServer

JSON = {"Content-Type": "application/json"}
PATIENCE = 300.0  # seconds: only what never comes takes as long


def client_of(server: BackgroundServer, **options: Any) -> openai.OpenAI:
    """OpenAI's client of a server; `options` are those of the client."""
    options = {"api_key": "none", "max_retries": 0, "timeout": PATIENCE, **options}
    return openai.OpenAI(base_url=f"{server.url}/v1", **options)


def exchange(
    server: BackgroundServer, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None
) -> tuple[int, http.client.HTTPMessage, str]:
    """A request without any client library: status, headers and text of the answer.

    Args:
        body: sent as JSON; bytes are sent as they are.
    """
    connection = server.connection()
    payload = body if body is None or isinstance(body, bytes) else json.dumps(body)
    connection.request(method, path, payload, {**JSON, **(headers or {})})
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    return answer.status, answer.headers, text


def ask(*request: Any, **fields: Any) -> tuple[int, http.client.HTTPMessage, Any]:
    """Like `exchange`, with the body of the answer as JSON; what is no JSON object is `{}`."""
    status, headers, text = exchange(*request, **fields)
    return status, headers, json.loads(text) if text.startswith("{") else {}


def read_to_end(connection: socket.socket) -> bytes:
    """All that comes on a connection until the other side closes it."""
    received = b""
    while data := connection.recv(65536):
        received += data
    return received


def until(is_so: Callable[[], object], says: str = "it never came to that") -> None:
    """Wait for what another thread does."""
    end = time.monotonic() + PATIENCE
    while not is_so():
        assert time.monotonic() < end, says
        time.sleep(0.002)
