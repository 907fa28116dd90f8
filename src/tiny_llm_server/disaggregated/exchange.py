"""A request to an engine over HTTP/1.1 on a connection of its own, and its answer as it comes."""

import asyncio
from collections.abc import AsyncGenerator, Mapping
from typing import Any

import h11

CONNECT_SECONDS = 5.0
# What an engine that has died, or was never there, raises here.
LOST = (OSError, asyncio.TimeoutError, h11.RemoteProtocolError)


async def exchange(
    address: str, method: str, target: str, headers: Mapping[str, str] | None = None, body: bytes = b""
) -> AsyncGenerator[Any, None]:
    """The head of an answer, an `h11.Response`, and then the bytes of its body. To close it ends the request.

    Args:
        address: host:port.

    Raises:
        One of `LOST`: there is no engine any more.
    """
    host, _, port = address.rpartition(":")
    connecting = asyncio.open_connection(host.strip("[]"), int(port))
    reader, writer = await asyncio.wait_for(connecting, CONNECT_SECONDS)
    http, length = h11.Connection(h11.CLIENT), str(len(body))
    sent = {**(headers or {}), "Host": address, "Connection": "close", "Content-Length": length}
    lines = [(name.encode(), value.encode("latin-1")) for name, value in sent.items()]
    request = h11.Request(method=method, target=target, headers=lines)
    try:
        for event in (request, h11.Data(data=body), h11.EndOfMessage()):
            writer.write(http.send(event) or b"")
        while not isinstance(event := http.next_event(), h11.EndOfMessage):
            if event is h11.NEED_DATA:
                http.receive_data(await reader.read(2**16))
            elif isinstance(event, h11.Response):
                yield event
            elif isinstance(event, h11.Data):
                yield bytes(event.data)
    finally:
        writer.close()


async def fetched(*asked: Any) -> tuple[int, bytes]:
    """Status and body of a whole answer. For the arguments, see `exchange`."""
    answer = exchange(*asked)
    status = (await anext(answer)).status_code
    return status, b"".join([part async for part in answer])
