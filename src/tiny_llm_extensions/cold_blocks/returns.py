"""Requests whose blocks are on their way back into the pool: they have their place, and wait for it to be filled."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tiny_llm_engine.admission import ServingState
from tiny_llm_engine.packed_model import PackedBatch
from tiny_llm_engine.scheduled import Scheduled
from tiny_llm_engine.solutions.solution_types import ServingPackage

from ..held_requests import HeldRequests, Served
from .moves import FOLDER, GONE, BlockCosts, BlockReader, Choose, Move

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


class Returns(HeldRequests[Served, deque[bytes]]):
    """Brings blocks back for requests that are admitted, a few in each step, so that the others go on.

    What a loop has of a cold store: an `AdmissionHook`, and hooks of its batches and failures.

    Args:
        cold: the store.
        state: of the loop; "finish" is the event of a request that ended meanwhile.
    """

    def __init__(self, cold: ColdParts, state: ServingState[Served]):
        super().__init__(state)
        self.cold = cold
        self._given: list[list[Move]] = []  # copies of batches, as far as they are not made

    @classmethod
    def put_on(cls, state: ServingState[Served], cold: ColdParts) -> "Returns[Served]":
        """Puts the blocks of a cold store on a loop."""
        returns = cls(cold, state)
        state.hooks.admission.append(returns)
        state.hooks.batch.append(returns.put_moves_into)
        state.hooks.failure.append(returns.forget_unmade)
        return returns

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
            self.coming[sequence] = deque(digests)
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
        for sequence in list(self.coming):
            digests = self.coming.pop(sequence)
            left -= self._bring_back(sequence, digests, left)
            if is_idle and digests and digests[0] in self._on_their_way():
                digests.clear()  # no call would make that copy: the rest is computed
            if digests:
                self.coming[sequence] = digests
            else:
                self.ready.append(sequence)
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

    def wait(self) -> None:
        """Waits a moment for the folder, if requests wait for it."""
        if self.coming:
            self.cold.reader.wait()

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
