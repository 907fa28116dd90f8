"""Copies of KV blocks between the levels of a cold store, as integers, and what they cost. Given."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from tiny_llm_engine.packed_model import CallGivenUp

POOL, QUANTIZED, MEMORY, FOLDER = "pool", "quantized", "memory", "folder"
NEWEST = 0.2  # weight of the last copy in the time of a block


class Place(NamedTuple):
    """Where a block is: the name of a level, and its number there."""

    level: str
    slot: int


GONE = Place("gone", 0)


class Move(NamedTuple):
    """A copy of the block that holds a text.

    Args:
        digest: names the text, see `block_hash`.
        source, target: from where to where.
    """

    digest: bytes
    source: Place
    target: Place


class CopyFailed(CallGivenUp):
    """A copy of a block was not made, and none that was planned after it. Its cause is what the copy has raised."""


class BlockReader(Protocol):
    """Reads blocks in the background, from where a copy would hold up a step."""

    def fetch(self, digest: bytes) -> None:
        """Begins to read a block of the folder, unless that has begun."""

    def fetched(self, digest: bytes) -> bool | None:
        """Whether a block has been read: not yet, None; or it cannot be read, False.

        True is said once, to the one who plans the copy: the bytes are kept until they are taken.
        """
        ...

    def take(self, digest: bytes) -> bytes | bytearray:
        """The bytes of a block that was fetched.

        Raises:
            OSError: they are not there any more.
        """
        ...

    def wait(self) -> None:
        """Waits a moment, until something more has been read."""


@dataclass
class BlockCosts:
    """Seconds per block, as they were measured; None before that.

    Args:
        compute: to compute the block's tokens anew.
        back: to copy the block back into the pool, by the level it comes from.
    """

    compute: float | None
    back: dict[str, float]

    def observe(self, level: str, seconds: float) -> None:
        """Takes the time of one more copy from a level."""
        before = self.back.get(level, seconds)
        self.back[level] = before + NEWEST * (seconds - before)

    def observe_step(self, tokens: int, seconds: float, block_size: int) -> None:
        """Takes the time of one more step with chunks of prompts."""
        new = seconds / tokens * block_size
        before = new if self.compute is None else self.compute
        self.compute = before + NEWEST * (new - before)


Choose = Callable[[Sequence[str], BlockCosts], int]
