"""Levels of blocks outside the pool of a fake model, which makes the copies that are planned, for tests of Day 4.5."""

from collections.abc import Collection, Sequence
from typing import Any

from support.cold import FakeFolder
from tiny_llm_extensions.cold_blocks.moves import FOLDER, GONE, POOL, BlockCosts, CopyFailed, Move, Place
from tiny_llm_extensions.cold_blocks.returns import ColdParts


def cold_parts(
    s: Any, levels: Sequence[tuple[str, int]], costs: BlockCosts | None = None, **folder: Any
) -> ColdParts:
    """What a scheduler has of a cold store with these levels, as (name, blocks)."""
    blocks = s.ColdBlocks([s.Level(*level) for level in levels])
    return ColdParts(blocks, FakeFolder(**folder), costs or BlockCosts(None, {}), s.blocks_to_bring_back)


def with_cold_blocks(
    model: Any, reader: FakeFolder, refuses: Collection[int] = (), breaks: Collection[int] = ()
) -> Any:
    """Lets a `FakePackedModel` make the copies of each batch before it runs; returns the model.

    What is in a level is there until something else is written to its place.

    Args:
        reader: reads the blocks of the folder.
        refuses: calls by number that fail before any copy is made.
        breaks: copies by number that fail.
    """
    places: dict[Place, tuple[bytes, list[Any]]] = {}
    run, size = model.run, model.allocator.block_size

    def slots(block: int) -> range:
        return range(block * size, (block + 1) * size)

    def make(digest: bytes, source: Place, target: Place) -> None:
        if target == GONE:  # also of a text whose copy was never made
            return
        if source.level == POOL:
            content = [model.memory.get(slot) for slot in slots(source.slot)]
        else:
            text, content = places.get(source, (None, [None] * size))
            assert text == digest or model.has_failed, (
                f"a copy from {source}, which holds another text or none"
            )
        if (source.level, target.level) == (FOLDER, POOL):
            reader.take(digest)
        if target.level == POOL:
            model.memory.update(zip(slots(target.slot), content, strict=True))
        else:
            places[target] = digest, content

    def make_moves(batch: Any) -> None:
        while batch.moves:
            model.moves.append(batch.moves[0])
            if len(model.moves) - 1 in breaks:
                model.has_failed = True
                raise CopyFailed("broken")
            make(*batch.moves[0])
            del batch.moves[0]

    def run_after_moves(batch: Any) -> Any:
        model.calls += 1
        if model.calls - 1 in refuses:
            model.has_failed = True
            raise RuntimeError("refused")
        make_moves(batch)
        return run(batch)

    model.moves, model.calls, model.has_failed = list[Move](), 0, False
    model.run, model.make_moves = run_after_moves, make_moves
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
