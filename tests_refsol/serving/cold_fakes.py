"""Levels of blocks outside the pool of a fake model, which makes the copies that are planned, for tests of Day 4.5."""

from collections.abc import Callable, Collection, Sequence
from typing import Any

from tiny_llm_common.moves import FOLDER, GONE, POOL, BlockCosts, Move, Place
from tiny_llm_given.serving.returns import ColdParts


class FakeFolder:
    """A `BlockReader` of a fake: what was copied to the folder can be read after some time, or is lost.

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

    def wait(self) -> None:
        """See `BlockReader`."""


def cold_parts(
    s: Any, levels: Sequence[tuple[str, int]], costs: BlockCosts | None = None, **folder: Any
) -> ColdParts:
    """What a scheduler has of a cold store with these levels, as (name, blocks)."""
    blocks = s.ColdBlocks([s.Level(*level) for level in levels])
    return ColdParts(blocks, FakeFolder(**folder), costs or BlockCosts(None, {}), s.blocks_to_bring_back)


def with_cold_blocks(model: Any, refuses: Collection[int] = ()) -> Any:
    """Lets a `FakePackedModel` make the copies of each batch before it runs; returns the model.

    What is in a level is there until something else is written to its place.

    Args:
        refuses: calls by number that fail before any copy is made.
    """
    places: dict[Place, tuple[bytes, list[Any]]] = {}
    run, size = model.run, model.allocator.block_size

    def slots(block: int) -> range:
        return range(block * size, (block + 1) * size)

    def make(digest: bytes, source: Place, target: Place) -> None:
        if source.level == POOL:
            content = [model.memory.get(slot) for slot in slots(source.slot)]
        else:
            assert source in places, f"a copy from {source}, where nothing was ever copied to"
            text, content = places[source]
            assert text == digest, f"a copy from {source}, where another text has been written meanwhile"
        if target.level == POOL:
            model.memory.update(zip(slots(target.slot), content, strict=True))
        elif target != GONE:
            places[target] = digest, content

    def run_after_moves(batch: Any) -> Any:
        model.calls += 1
        if model.calls - 1 in refuses:
            raise RuntimeError("refused")
        model.moves.extend(batch.moves)
        while batch.moves:
            make(*batch.moves.pop(0))
        return run(batch)

    model.moves, model.calls = list[Move](), 0
    model.run = run_after_moves
    return model


def check_levels(blocks: Any) -> None:
    """No level holds more than it has room for, and no slot holds two texts."""
    for level in blocks.levels:
        used = list(level.slots.values())
        assert len(set(used)) == len(used), f"two texts are in one slot of the level {level.name}: {used}"
        assert sorted(used + level.free) == list(range(level.capacity)), (
            f"the level {level.name} has {level.capacity} slots; used {used}, free {level.free}"
        )


LEVELS = "quantized", "memory", FOLDER
