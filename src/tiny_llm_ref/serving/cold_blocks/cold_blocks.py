"""Which block goes where: texts that were evicted from the pool, by levels."""

from collections.abc import Iterable, Sequence

from tiny_llm_extensions.cold_blocks.moves import GONE, POOL, Move, Place

from ..blocks.block_allocator import PrefixCache


class Level:
    """A place for blocks outside the pool, and the texts that it holds, the least recently used first.

    Args:
        name: see `Place`.
        capacity: blocks.
        texts: digests that it holds already, the oldest first; those beyond its capacity are left out.
    """

    def __init__(self, name: str, capacity: int, texts: Iterable[bytes] = ()):
        self.name, self.capacity = name, capacity
        self.free = [*reversed(range(capacity))]
        kept = list(texts)[-capacity:] if capacity else []
        self.slots: dict[bytes, int] = {digest: self.free.pop() for digest in kept}

    def touch(self, digest: bytes) -> None:
        """Makes a text that it holds the most recently used one. Given."""
        self.slots[digest] = self.slots.pop(digest)


class ColdBlocks:
    """Blocks that no request runs on, by levels: each takes what the one before it has no room for.

    Args:
        levels: the fastest first; those without room are left out.
    """

    def __init__(self, levels: Sequence[Level]):
        self.levels = [level for level in levels if level.capacity]
        self.moves: list[Move] = []  # in their order, for the next call of the model

    def level_of(self, digest: bytes) -> str | None:
        """The fastest level that holds a text; None if none does. Given."""
        return next((level.name for level in self.levels if digest in level.slots), None)

    def put_away(self, digest: bytes, source: Place, first: int = 0) -> None:
        """Keeps a text whose place is about to have another one.

        Each level keeps the most recently used texts. One that makes room goes to the next level, and from the last
        one it is gone. What a level holds already is not copied again.

        Args:
            digest: names the text.
            source: its place.
            first: index of the first level that may keep it.
        """
        # TASK 4.5.4: first make room: the oldest text goes one level further; then the copy from `source`.
        # Copies are made in the order of `moves`: a text leaves its slot before another one is written there.
        if first == len(self.levels):
            self.moves.append(Move(digest, source, GONE))
            return
        level = self.levels[first]
        if digest in level.slots:
            level.touch(digest)
            return
        if not level.free:
            oldest = next(iter(level.slots))
            slot = level.slots.pop(oldest)
            self.put_away(oldest, Place(level.name, slot), first + 1)
            level.free.append(slot)
        slot = level.slots[digest] = level.free.pop()
        self.moves.append(Move(digest, source, Place(level.name, slot)))

    def bring_back(self, digest: bytes, block: int) -> None:
        """Copies a text into a block of the pool, from the fastest level that holds it.

        It stays there as well, as the most recently used text: nothing is copied when it is put away again.

        Args:
            digest: names a text that a level holds.
            block: of the pool, where a request waits for it.
        """
        # TASK 4.5.5: the levels are ordered, the fastest first. What stays and was just used must not be the oldest.
        level = next(level for level in self.levels if digest in level.slots)
        level.touch(digest)
        self.moves.append(Move(digest, Place(level.name, level.slots[digest]), Place(POOL, block)))

    def forget(self, digest: bytes) -> None:
        """Gives up a text that cannot be read any more: every level frees its slot, and moves it to `GONE`."""
        # TASK 4.5.5: a slot that is neither free nor in `slots` is lost. The move to `GONE` lets a folder delete it.
        for level in self.levels:
            if digest in level.slots:
                slot = level.slots.pop(digest)
                level.free.append(slot)
                self.moves.append(Move(digest, Place(level.name, slot), GONE))

    def take_moves(self) -> list[Move]:
        """The copies to be made before the next call of the model computes. Given."""
        moves, self.moves = self.moves, []
        return moves


class KeepingCache(PrefixCache):
    """A prefix cache whose texts are put away when their blocks are needed.

    Args:
        cold: takes them.
    """

    def __init__(self, cold: ColdBlocks):
        super().__init__()
        self.cold = cold

    def evict(self) -> int:
        """Forgets the least recently used idle block, whose text is put away; see `PrefixCache.evict`."""
        # TASK 4.5.5: which block will it be? Put its text away while the cache still knows it; Day 3.1 does the rest.
        block = next(iter(self.idle))
        self.cold.put_away(self.digest_of[block], Place(POOL, block))
        return super().evict()
