"""What a producer and a consumer say to each other over TCP: lines of JSON, and rows of bytes after some of them.

    producer   {"nonce": …}
    consumer   {"nonce": …, "proof": …, "model": …, "transfer_id": …, "start": …, "stop": …}
    producer   {"proof": …, "layout": {…}, "segment": its shared memory or null, "rows": …}, or {"error": …}
    consumer   {"shared": whether it reads that memory}
    producer   {"start": …, "stop": …, "row": …, "digest": …, "sum": …}, and the row if no memory is shared; again
    consumer   {"done": true}: the rows may go; without it they stay for another reader

A digest names the text up to a row's end, and a sum finds damage. Both sides prove that they know the secret, and no
byte is encrypted.
"""

import hmac
import secrets
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ..parallel.channel import Channel
from .config import KVTransferConfig
from .layout import Layout
from .transfers import Refused, SavedBlock, text_digest


@dataclass(frozen=True)
class Here:
    """What is known of this engine on both sides.

    Args:
        layout: of its pools.
        config: its options.
        model: names the weights, which must be those of the other engine.
        clock: seconds.
    """

    layout: Layout
    config: KVTransferConfig
    model: str
    clock: Callable[[], float]


def proof(secret: str, speaker: str, nonce: object) -> str:
    """Shows that a speaker, "producer" or "consumer", knows the secret."""
    return hmac.new(secret.encode(), f"{speaker} {nonce}".encode(), "sha256").hexdigest()


def received(channel: Channel) -> dict[str, Any]:
    """The next message.

    Raises:
        Refused: it is no object, or says why nothing comes.
        EOFError, OSError: see `Channel`.
    """
    message = channel.receive()
    if not isinstance(message, dict):
        raise Refused("it does not speak this protocol")
    if "error" in message:
        raise Refused(repr(message["error"])[:200])
    return message


def greet(channel: Channel, here: Here) -> dict[str, Any]:
    """What a consumer asks that has just connected.

    Raises:
        Refused: it has another secret or another model. See `received`, too.
    """
    nonce = secrets.token_hex(16)
    channel.send({"nonce": nonce})
    asked = received(channel)
    check_proof(asked, here, "consumer", nonce)
    if asked.get("model") != here.model:
        raise Refused("it has another model")
    return asked


def ask(channel: Channel, here: Here, message: Mapping[str, Any]) -> dict[str, Any]:
    """A producer's answer.

    Raises:
        Refused: it refuses, or has another secret. See `received`, too.
    """
    theirs, nonce = received(channel)["nonce"], secrets.token_hex(16)
    shown = proof(here.config.secret, "consumer", theirs)
    channel.send({**message, "model": here.model, "nonce": nonce, "proof": shown})
    answer = received(channel)
    check_proof(answer, here, "producer", nonce)
    return answer


def check_proof(message: Mapping[str, Any], here: Here, speaker: str, nonce: str) -> None:
    """Raises Refused if the other side doesn't know the secret."""
    expected = proof(here.config.secret, speaker, nonce).encode()
    if not hmac.compare_digest(str(message.get("proof")).encode(), expected):
        raise Refused("it has another secret")


def send_block(channel: Channel, block: SavedBlock, tokens: Any, row: memoryview, is_shared: bool) -> None:
    """Sends a block of a text, or says where in shared memory it is."""
    sums = {"digest": text_digest(tokens[: block.stop]), "sum": zlib.crc32(row)}
    channel.send({**vars(block), **sums}, b"" if is_shared else row)


def receive_block(
    channel: Channel, row_bytes: int, shared: memoryview | None
) -> tuple[SavedBlock, str, memoryview]:
    """The next block, the digest of its text, and its row.

    Raises:
        Refused: no block follows, or its bytes are damaged. See `received`, too.
    """
    message = received(channel)
    block = SavedBlock(*(int(message[name]) for name in ("start", "stop", "row")))
    if shared is None:
        row = memoryview(bytearray(row_bytes))
        channel.receive_into(row)
    else:
        row = shared[block.row * row_bytes :][:row_bytes]
    if len(row) != row_bytes or zlib.crc32(row) != message["sum"]:
        raise Refused(f"tokens {block.start} to {block.stop} are damaged")
    return block, str(message["digest"]), row
