"""Requests whose blocks are on their way back into the pool: they have their place, and wait for it to be filled."""

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from tiny_llm_engine.admission import ServingState
from tiny_llm_engine.packed_model import PackedBatch
from tiny_llm_engine.request_life import SequenceState
from tiny_llm_engine.scheduled import Scheduled
from tiny_llm_engine.solutions.solution_types import ServingPackage

from .moves import FOLDER, GONE, BlockCosts, BlockReader, Choose, Move

Served = TypeVar("Served", bound=SequenceState)
MOST = 2  # requests at a time: the next one can wait where it holds no blocks
STEP_SECONDS = 0.005  # of copies that a step with other requests waits for
AHEAD = 8  # blocks that are read from the folder before their turn


@dataclass(frozen=True)
class ColdParts:
    """What a scheduler has of a cold store.

    Args:
        blocks: the levels.
        reader: reads blocks from the folder.
        costs: of blocks, as the engine measures them.
        choose: how many blocks come back, see `blocks_to_bring_back`.
    """

    blocks: "ServingPackage.ColdBlocks"
    reader: BlockReader
    costs: BlockCosts
    choose: Choose

    def wanted(self, table: Any, tokens: Sequence[int]) -> list[bytes]:
        """The blocks of a text that should come back: those after the ones that the pool has.

        Args:
            table: the request's, with its cached prefix.
            tokens: the text.
        """
        digests, levels = [], []
        for digest in table.digests_after(tokens):
            if (level := self.blocks.level_of(digest)) is None:
                break
            digests.append(digest)
            levels.append(level)
        return digests[: self.choose(levels, self.costs)]


class Returns(Generic[Served]):
    """Brings blocks back for requests that are admitted, a few in each step, so that the others go on.

    What a loop has of a cold store: an `AdmissionHook`, and hooks of its batches and failures.

    Args:
        cold: the store.
        state: of the loop; "finish" is the event of a request that ended meanwhile.
    """

    def __init__(self, cold: ColdParts, state: ServingState[Served]):
        self.cold, self.emit = cold, state.emit
        self._coming: deque[tuple[Served, deque[bytes]]] = deque()
        self._ready: deque[Served] = deque()
        self._given: list[list[Move]] = []  # copies of batches, as far as they are not made

    @classmethod
    def put_on(cls, state: ServingState[Served], cold: ColdParts) -> "Returns[Served]":
        """Puts the blocks of a cold store on a loop."""
        returns = cls(cold, state)
        state.hooks.admission.append(returns)
        state.hooks.batch.append(returns.put_moves_into)
        state.hooks.failure.append(returns.forget_unmade)
        return returns

    def __len__(self) -> int:
        return len(self._coming) + len(self._ready)

    def __iter__(self) -> Iterator[Served]:
        yield from (sequence for sequence, _ in self._coming)
        yield from self._ready

    @property
    def is_full(self) -> bool:
        """Whether the next one has to wait in the queue."""
        return len(self) >= MOST

    def refuses(self, sequence: Served) -> bool:
        """See `AdmissionHook`."""
        return self.is_full and bool(self.cold.wanted(sequence.block_table, sequence.cacheable_tokens))

    def takes(self, sequence: Served) -> bool:
        """See `AdmissionHook`. It waits for its blocks, and has a place for them in its table."""
        if digests := self.cold.wanted(sequence.block_table, sequence.cacheable_tokens):
            self._coming.append((sequence, deque(digests)))
        return bool(digests)

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
        left = self._copies_of_a_step(is_idle)
        for _ in range(len(self._coming)):
            sequence, digests = self._coming.popleft()
            left -= self._bring_back(sequence, digests, left)
            if is_idle and digests and digests[0] in self._on_their_way():
                digests.clear()  # no call would make that copy: the rest is computed
            if digests:
                self._coming.append((sequence, digests))
            else:
                self._ready.append(sequence)
        return has_lost

    def _copies_of_a_step(self, is_idle: bool) -> int:
        slowest = max(self.cold.costs.back.values(), default=STEP_SECONDS)
        return 2**31 if is_idle else max(1, int(STEP_SECONDS / max(slowest, 1e-9)))

    def _bring_back(self, sequence: Served, digests: deque[bytes], most: int) -> int:
        """Plans copies from the front of a text while they can be made; returns how many."""
        count, table = 0, sequence.block_table
        self._take_shared(table, digests)
        self._fetch(list(digests)[:AHEAD])
        while digests and count < most and (is_there := self._is_there(digests[0])) is not None:
            if is_there:
                count += 1
                digest = digests.popleft()
                self.cold.blocks.bring_back(digest, table.adopt(digest))
                self._take_shared(table, digests)
            else:  # this block and all that come after it are computed
                self.cold.blocks.forget(digests[0])
                digests.clear()
        sequence.num_computed = table.num_registered
        return count

    @staticmethod
    def _take_shared(table: Any, digests: deque[bytes]) -> None:
        """Shares blocks at the front of a text that are back, or on their way, for another request."""
        while digests and table.share_next(digests[0]):
            digests.popleft()

    def _fetch(self, digests: Sequence[bytes]) -> None:
        copied_later = self._on_their_way()
        for digest in digests:
            if self.cold.blocks.level_of(digest) == FOLDER and digest not in copied_later:
                self.cold.reader.fetch(digest)

    def _on_their_way(self) -> set[bytes]:
        """Blocks that the next call of the model copies to the folder."""
        return {move.digest for move in self.cold.blocks.moves if move.target.level == FOLDER}

    def _is_there(self, digest: bytes) -> bool | None:
        level = self.cold.blocks.level_of(digest)
        return self.cold.reader.fetched(digest) if level == FOLDER else level is not None

    def take_ready(self, most: int) -> Served | None:
        """A request whose blocks are back, or will be before the next call of the model computes.

        Args:
            most: tokens that may be left to compute.
        """
        if not self._ready or self._ready[0].num_uncomputed > most:
            return None
        return self._ready.popleft()

    def wait(self) -> None:
        """Waits a moment for the folder, if requests wait for it."""
        if self._coming:
            self.cold.reader.wait()

    def drop_ended(self) -> bool:
        """Lets those leave that have ended. Returns whether there were any."""
        ended = [sequence for sequence in self if sequence.is_done]
        if ended:
            self._coming = deque(each for each in self._coming if not each[0].is_done)
            self._ready = deque(sequence for sequence in self._ready if not sequence.is_done)
        for sequence in ended:
            self.emit("finish", sequence)
        return bool(ended)

    def put_moves_into(self, batch: PackedBatch, call: Sequence[Scheduled] = ()) -> None:
        """Adds the copies that a call of the model makes before it computes, to its batch."""
        batch.moves.extend(self.cold.blocks.take_moves())
        self._given = [each for each in (*self._given, batch.moves) if each]

    def forget_unmade(self) -> set[bytes]:
        """Forgets the texts of copies that no call has made or will make; returns their digests.

        Such a text may be missing from the place where it was to go, and from those that later copies took it to.
        """
        unmade, self._given = [move for moves in self._given for move in moves], []
        lost = {move.digest for move in unmade if move.target != GONE}
        for digest in lost:
            self.cold.blocks.forget(digest)
        self.cold.blocks.moves += [move for move in unmade if move.target == GONE]
        return lost

    def take_all(self) -> list[Served]:
        """All requests that wait for blocks, which wait no longer."""
        taken = list(self)
        self._coming.clear()
        self._ready.clear()
        return taken
