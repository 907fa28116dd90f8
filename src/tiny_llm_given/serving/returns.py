"""Requests whose blocks are on their way back into the pool: they have their place, and wait for it to be filled."""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from tiny_llm_common.moves import FOLDER, BlockCosts, BlockReader, Choose, Move
from tiny_llm_common.scheduled import SequenceState

Served = TypeVar("Served", bound=SequenceState)
MOST = 2  # requests at a time: the next one can wait where it holds no blocks
STEP_SECONDS = 0.005  # of copies that a step with other requests waits for
AHEAD = 8  # blocks that are read from the folder before their turn


class Cold(Protocol):
    """What is asked of `ColdBlocks`."""

    moves: list[Move]

    def level_of(self, digest: bytes) -> str | None: ...

    def bring_back(self, digest: bytes, block: int) -> None: ...

    def forget(self, digest: bytes) -> None: ...

    def take_moves(self) -> list[Move]: ...


@dataclass(frozen=True)
class ColdParts:
    """What a scheduler has of a cold store.

    Args:
        blocks: the levels.
        reader: reads blocks from the folder.
        costs: of blocks, as the engine measures them.
        choose: how many blocks come back, see `blocks_to_bring_back`.
    """

    blocks: Cold
    reader: BlockReader
    costs: BlockCosts
    choose: Choose


class Returns(Generic[Served]):
    """Brings blocks back for requests that are admitted, a few in each step, so that the others go on.

    Args:
        cold: None where nothing is kept outside the pool.
        emit: called as emit("finish", sequence) for one that ended meanwhile.
    """

    def __init__(self, cold: ColdParts | None, emit: Callable[[str, Served], None]):
        self.cold, self.emit = cold, emit
        self._coming: deque[tuple[Served, deque[bytes]]] = deque()
        self._ready: deque[Served] = deque()

    def __len__(self) -> int:
        return len(self._coming) + len(self._ready)

    def __iter__(self) -> Iterator[Served]:
        yield from (sequence for sequence, _ in self._coming)
        yield from self._ready

    @property
    def is_full(self) -> bool:
        """Whether the next one has to wait in the queue."""
        return len(self) >= MOST

    def wanted(self, table: Any, tokens: Sequence[int]) -> list[bytes]:
        """The blocks of a text that should come back: those after the ones that the pool has.

        Args:
            table: the request's, with its cached prefix.
            tokens: the text.
        """
        if self.cold is None:
            return []
        digests, levels = [], []
        for digest in table.digests_after(tokens):
            if (level := self.cold.blocks.level_of(digest)) is None:
                break
            digests.append(digest)
            levels.append(level)
        return digests[: self.cold.choose(levels, self.cold.costs)]

    def begin(self, sequence: Served, digests: Sequence[bytes]) -> None:
        """Lets a request wait for these blocks. It has a place for them in its table."""
        self._coming.append((sequence, deque(digests)))

    def advance(self, is_idle: bool) -> bool:
        """Plans the copies of one step.

        Args:
            is_idle: whether nothing else runs, which would wait for them.

        Returns:
            Whether a request has left with its blocks.
        """
        if not len(self):  # as in every step of most engines
            return False
        has_lost = self.drop_ended()
        if self.cold is not None and self._coming:
            left = self._copies_of_a_step(self.cold, is_idle)
            for _ in range(len(self._coming)):
                sequence, digests = self._coming.popleft()
                left -= self._bring_back(self.cold, sequence, digests, left)
                if is_idle and digests and digests[0] in self._on_their_way(self.cold):
                    digests.clear()  # no call would make that copy: the rest is computed
                if digests:
                    self._coming.append((sequence, digests))
                else:
                    self._ready.append(sequence)
        return has_lost

    @staticmethod
    def _copies_of_a_step(cold: ColdParts, is_idle: bool) -> int:
        slowest = max(cold.costs.back.values(), default=STEP_SECONDS)
        return 2**31 if is_idle else max(1, int(STEP_SECONDS / max(slowest, 1e-9)))

    def _bring_back(self, cold: ColdParts, sequence: Served, digests: deque[bytes], most: int) -> int:
        """Plans copies from the front of a text while they can be made; returns how many."""
        count, copied_later = 0, self._on_their_way(cold)
        for digest in list(digests)[:AHEAD]:
            if cold.blocks.level_of(digest) == FOLDER and digest not in copied_later:
                cold.reader.fetch(digest)
        while digests and count < most and (is_there := self._is_there(cold, digests[0])) is not None:
            if is_there:
                count += 1
                digest = digests.popleft()
                cold.blocks.bring_back(digest, sequence.block_table.adopt(digest))
            else:  # this block and all that come after it are computed
                cold.blocks.forget(digests[0])
                digests.clear()
        sequence.num_computed = sequence.block_table.num_registered
        return count

    @staticmethod
    def _on_their_way(cold: ColdParts) -> set[bytes]:
        """Blocks that the next call of the model copies to the folder."""
        return {move.digest for move in cold.blocks.moves if move.target.level == FOLDER}

    @staticmethod
    def _is_there(cold: ColdParts, digest: bytes) -> bool | None:
        level = cold.blocks.level_of(digest)
        return cold.reader.fetched(digest) if level == FOLDER else level is not None

    def take_ready(self, most: int) -> Served | None:
        """A request whose blocks are back, or will be before the next call of the model computes.

        Args:
            most: tokens that may be left to compute.
        """
        if not self._ready or self._ready[0].num_uncomputed > most:
            return None
        return self._ready.popleft()

    def wait(self) -> bool:
        """Waits a moment for the folder, if requests wait for it. Returns whether any request waits for blocks."""
        if self.cold is not None and self._coming:
            self.cold.reader.wait()
        return bool(len(self))

    def drop_ended(self) -> bool:
        """Lets those leave that have ended. Returns whether there were any."""
        ended = [sequence for sequence in self if sequence.is_done]
        if ended:
            self._coming = deque(each for each in self._coming if not each[0].is_done)
            self._ready = deque(sequence for sequence in self._ready if not sequence.is_done)
        for sequence in ended:
            self.emit("finish", sequence)
        return bool(ended)

    def take_moves(self) -> list[Move]:
        """The copies that the next call of the model makes before it computes."""
        return [] if self.cold is None else self.cold.blocks.take_moves()

    def give_back(self, moves: list[Move]) -> None:
        """Takes copies back that a failed call has not made: the next one makes them first."""
        if self.cold is not None:
            self.cold.blocks.moves[:0] = moves
