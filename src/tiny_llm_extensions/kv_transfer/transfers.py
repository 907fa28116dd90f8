"""The policy of transfers: what is kept for whom, until when, and when to give up. Integers and a given clock."""

import hashlib
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field


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
        is_over: whether its request has ended: no further block comes.
        expires: when it is given up unread; None while its request has not ended.
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


class Outbox:
    """The prompts that are kept for other engines, in rows of a buffer.

    Args:
        num_rows: of the buffer; each holds a block.
        block_size: tokens per block.
        keep_seconds: how long a prompt waits for its reader after its request has ended.
    """

    def __init__(self, num_rows: int, block_size: int, keep_seconds: float):
        self.block_size, self.keep_seconds = block_size, keep_seconds
        self.free = [*reversed(range(num_rows))]
        self.transfers: dict[str, Outgoing] = {}

    def begin(self, transfer_id: str, tokens: Sequence[int]) -> bool:
        """A request will compute a prompt for another engine. Returns whether it is the first one with this id."""
        is_new = transfer_id not in self.transfers
        self.transfers.setdefault(transfer_id, Outgoing(tokens))
        return is_new

    def to_save(self, transfer_id: str, computed: int) -> list[SavedBlock]:
        """What is copied into the buffer now: blocks that are full, and at the end of the prompt its last one.

        Nothing is copied twice, also if a preempted request computes its prompt again. Without a free row the rest
        waits for the next step.

        Args:
            computed: tokens from the front that are in the request's blocks.
        """
        transfer = self.transfers.get(transfer_id)
        if transfer is None:  # its reader has left
            return []
        length, size = len(transfer.tokens), self.block_size
        stop = length if computed >= length else computed // size * size
        starts = range(transfer.stop, stop, size)[: len(self.free)]
        return [SavedBlock(start, min(start + size, stop), self.free.pop()) for start in starts]

    def saved(self, transfer_id: str, blocks: Sequence[SavedBlock]) -> None:
        """These blocks are in the buffer: they may be read, unless the reader has left meanwhile."""
        if (transfer := self.transfers.get(transfer_id)) is None:
            self.free += [block.row for block in blocks]
        else:
            transfer.blocks += blocks

    def end(self, transfer_id: str, now: float) -> None:
        """The request has ended, completely or not. What was saved stays readable for a while."""
        if (transfer := self.transfers.get(transfer_id)) is not None:
            transfer.is_over, transfer.expires = True, now + self.keep_seconds

    def open(self, transfer_id: str) -> bool:
        """An engine begins to read. Returns whether the prompt is known."""
        if (transfer := self.transfers.get(transfer_id)) is not None:
            transfer.readers += 1
        return transfer is not None

    def unread(self, transfer_id: str, wanted: range) -> list[SavedBlock]:
        """The blocks in the buffer with tokens that are wanted."""
        blocks = self.transfers[transfer_id].blocks
        return [block for block in blocks if block.stop > wanted.start and block.start < wanted.stop]

    def has_all(self, transfer_id: str, wanted: range) -> bool:
        """Whether no further block comes with tokens that are wanted."""
        transfer = self.transfers[transfer_id]
        return transfer.is_over or transfer.stop >= wanted.stop

    def close(self, transfer_id: str, is_done: bool, now: float) -> None:
        """An engine reads no longer: its rows are free if it has all it wants, and stay if it is gone."""
        transfer = self.transfers[transfer_id]
        transfer.readers -= 1
        if is_done:
            transfer.is_over, transfer.expires = True, now
        self.expire(now)

    def expire(self, now: float) -> None:
        """Frees the rows of prompts that were read, or have waited too long. Never while an engine reads them."""
        for transfer_id, transfer in list(self.transfers.items()):
            if transfer.expires is not None and transfer.expires <= now and not transfer.readers:
                self.free += [block.row for block in transfer.blocks]
                del self.transfers[transfer_id]


@dataclass
class Incoming:
    """A prompt whose tokens come from another engine, block by block.

    Args:
        tokens: its ids.
        received: tokens from the front that are here, or have come.
        patience: seconds without news after which it is late.
        deadline: when that will be.
    """

    tokens: Sequence[int]
    received: int
    patience: float
    deadline: float

    @property
    def wanted(self) -> int:
        """Tokens that may come. The last one is computed here, because its logits choose the next token."""
        return len(self.tokens) - 1

    @property
    def lateness(self) -> str:
        """Why it is given up when it is late."""
        return f"nothing came for {self.patience:g} s"

    def is_late(self, now: float) -> bool:
        """Whether the rest is computed here."""
        return now > self.deadline

    def accept(self, block: SavedBlock, digest: str, now: float) -> range:
        """Takes the next block.

        Args:
            digest: names the text up to its end, as its sender knows it.

        Returns:
            The positions that are new; none of a block that has come before.

        Raises:
            Refused: a block is missing, or it belongs to another text.
        """
        if not (0 <= block.start <= self.received and block.start < block.stop <= len(self.tokens)):
            raise Refused(f"tokens {block.start} to {block.stop} came after {self.received}")
        if digest != text_digest(self.tokens[: block.stop]):
            raise Refused("it has computed another text")
        new = range(self.received, min(block.stop, self.wanted))
        self.received = max(self.received, new.stop)
        self.deadline = now + self.patience
        return new
