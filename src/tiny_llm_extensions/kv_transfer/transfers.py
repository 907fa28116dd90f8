"""What the two sides of a transfer know of it, in integers; the policy of transfers is the solution's (Day 4.6)."""

import hashlib
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple


class Refused(Exception):
    """Another engine has sent what cannot be used, or refuses what it was asked; the message says why."""


@dataclass(frozen=True)
class SavedBlock:
    """Tokens of a prompt in one row of a buffer.

    Args:
        start, stop: positions in the prompt.
        row: of the buffer.
    """

    start: int
    stop: int
    row: int


def text_digest(tokens: Sequence[int]) -> str:
    """Names a text."""
    return hashlib.sha256(struct.pack(f"<{len(tokens)}Q", *tokens)).hexdigest()


@dataclass
class Outgoing:
    """A prompt that another engine will read.

    Args:
        tokens: its ids.

    Attributes:
        blocks: what is in the buffer, in the order of the text.
        readers: engines that read it now.
        is_over: whether no further block comes, because its request has ended or a reader has all that it wants.
        expires: when it is forgotten; None before that.
    """

    tokens: Sequence[int]
    blocks: list[SavedBlock] = field(default_factory=list)
    readers: int = 0
    is_over: bool = False
    expires: float | None = None

    @property
    def stop(self) -> int:
        """Tokens in the buffer."""
        return self.blocks[-1].stop if self.blocks else 0


class Computed(NamedTuple):
    """Keys and values that a step has computed, to be sent to the engine that decodes.

    Args:
        time: when they are there, in seconds.
        request: a number that names it.
        tokens: how many.
        sender, receiver: the names of the two engines.
    """

    time: float
    request: int
    tokens: int
    sender: str
    receiver: str


@dataclass(frozen=True)
class Route:
    """The engines of a request, by name.

    Args:
        decode: answers it.
        prefill: computes its prompt; None if `decode` does.
    """

    decode: str
    prefill: str | None = None
