"""Levels of blocks as a dictionary, and a fake model whose blocks leave its pool, for the tests of Day 4.5."""

from collections.abc import Callable
from typing import Any

from tiny_llm_course.fakes.fake_packed_model import FakePackedModel
from tiny_llm_engine.solutions.solution_types import AnswerSequence, PackedBatch, Sampled
from tiny_llm_extensions.cold_blocks.moves import FOLDER, GONE, POOL, BlockCosts, Move, Place
from tiny_llm_extensions.cold_blocks.returns import ColdParts

from .served import Served


class Copies:
    """What each place holds after the copies that were planned; a copy that reads something else is an error."""

    def __init__(self):
        self.held: dict[Place, Any] = {}

    def make(self, moves: list[Move]) -> None:
        """Makes copies in their order, and takes them out of the list."""
        while moves:
            move = moves.pop(0)
            found = self.held.get(move.source)
            assert found == move.digest, (
                f"the copy of {move.digest} to {named(move.target)} reads {named(move.source)}, which holds {found}: "
                "copies are made in the order of `moves`"
            )
            if move.target != GONE:
                self.held[move.target] = move.digest


class FakeFolder:
    """A `BlockReader` of a fake: each block can be read after some time, or is lost. Its bytes are its digest.

    Args:
        polls: how often a block is asked for until it has been read.
        loses: loses(digest) says whether a block cannot be read.
    """

    def __init__(self, polls: int = 0, loses: Callable[[bytes], bool] = lambda digest: False):
        self.polls, self.loses = polls, loses
        self._left: dict[bytes, int] = {}

    def fetch(self, digest: bytes) -> None:
        """See `BlockReader`."""
        self._left.setdefault(digest, self.polls)

    def fetched(self, digest: bytes) -> bool | None:
        """See `BlockReader`."""
        if digest not in self._left:
            return None
        if self._left[digest]:
            self._left[digest] -= 1
            return None
        del self._left[digest]
        return not self.loses(digest)

    def take(self, digest: bytes) -> bytes:
        """See `BlockReader`."""
        if self.loses(digest):
            raise OSError(f"{digest} cannot be read any more")
        return digest

    def wait(self) -> None:
        """See `BlockReader`."""


class FakeKept(FakePackedModel):
    """A `FakePackedModel` that makes the copies of a batch before it computes, and checks what they read."""

    reader: FakeFolder

    def __init__(self, *arguments: Any, **options: Any):
        super().__init__(*arguments, **options)
        self.texts: dict[bytes, int] = {}  # digest -> the fingerprint at the end of its block
        self.cells: dict[Place, list[Any]] = {}
        self.copies: list[Move] = []

    def run(self, batch: PackedBatch) -> list[Sampled]:
        """See `PackedModel.run`."""
        for move in batch.moves:
            self._copy(*move)
        self.copies += batch.moves
        batch.moves.clear()
        return super().run(batch)

    def note(self, digest: bytes, block: int) -> None:
        """Remembers what a text's block holds when it is registered for the first time."""
        if digest not in self.texts:
            self.texts[digest] = self._block(block)[-1][1]

    def _copy(self, digest: bytes, source: Place, target: Place) -> None:
        held = self._block(source.slot) if source.level == POOL else self.cells[source]
        if (source.level, target.level) == (FOLDER, POOL):
            self.reader.take(digest)
        text = "".join(chr(token) for token, _ in held)
        assert held[-1][1] == self.texts[digest], (
            f"{named(source)} has {text!r} already, and a copy to {named(target)} expects another text: it was "
            "written to before the copy was made"
        )
        if target.level == POOL:
            self.memory |= dict(zip(self._slots(target.slot), held, strict=True))
        elif target != GONE:
            self.cells[target] = held

    def _slots(self, block: int) -> range:
        size = self.allocator.block_size
        return range(block * size, (block + 1) * size)

    def _block(self, block: int) -> list[Any]:
        return [self.memory[slot] for slot in self._slots(block)]


class Kept(Served):
    """A `Served` whose prefix cache puts texts away.

    Args:
        s: the module `serving`.
        levels: capacities by name, the fastest first.
        costs: seconds per block; as if nothing was measured when None.
        damaged: of 256 blocks in the folder, how many cannot be read.
        num_blocks, options: see `Served`.
    """

    model: FakeKept

    def __init__(
        self,
        s: Any,
        levels: dict[str, int],
        num_blocks: int = 8,
        costs: BlockCosts | None = None,
        damaged: int = 0,
        **options: Any,
    ):
        self.cold = s.ColdBlocks([s.Level(*level) for level in levels.items()])
        reader = FakeFolder(1, lambda digest: digest[0] < damaged)
        parts = ColdParts(self.cold, reader, costs or BlockCosts(None, {}), s.blocks_to_bring_back)
        super().__init__(s, num_blocks, caching=True, fake=FakeKept, cold=parts, **options)
        self.model.reader = reader
        cache = self.allocator.prefix_cache = s.KeepingCache(self.cold)
        model, add = self.model, cache.add

        def noted(digest: bytes, block: int) -> None:
            add(digest, block)
            if cache.holds(block) and all(slot in model.memory for slot in model._slots(block)):
                model.note(digest, block)

        cache.add = noted

    @property
    def computed(self) -> int:
        """Rows that the model has computed."""
        return sum(len(batch.token_ids) for batch in self.model.batches)

    def ask(self, prompt: str, max_tokens: int = 4) -> AnswerSequence:
        """A request that runs alone, to its end."""
        made = self.add(prompt, max_tokens=max_tokens, ignore_eos=True)
        self.finish()
        return made


def named(place: Place) -> str:
    """A place in words."""
    return f"{'block' if place.level == POOL else place.level} {place.slot}"
