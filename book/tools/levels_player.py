"""The step player of Day 4.5 in Python: conversations take turns, and each copy of a block is a step.

The reference plans the copies. What a place holds is what the copies have put there, in their order.
"""

import json
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

from tiny_llm_engine.solutions.solution import resolve_serving
from tiny_llm_extensions.cold_blocks.moves import FOLDER, GONE, MEMORY, POOL, Move, Place

from .step_player import listed
from .widget import scripts

CAPACITIES = {POOL: 4, MEMORY: 2, FOLDER: 3}
SIZE = 4  # tokens of a block
TURNS = (("A", 3), ("B", 2), ("A", 3), ("C", 3), ("B", 2))  # whose turn it is, and full blocks of its text
START, WIDTH = 3, 620


class Levels:
    """The pool and the levels behind it, as the copies fill them."""

    def __init__(self):
        self.names = resolve_serving("ref")
        below = [self.names.Level(level, CAPACITIES[level]) for level in (MEMORY, FOLDER)]
        self.cold = self.names.ColdBlocks(below)
        self.allocator = self.names.BlockAllocator(CAPACITIES[POOL], SIZE, watermark=0)
        self.allocator.prefix_cache = self.names.KeepingCache(self.cold)
        self.held: dict[Place, str] = {}
        self.texts: dict[bytes, str] = {}  # "A1" is the first block of A

    def turn(self, name: str, blocks: int) -> Iterator[dict[str, Any]]:
        """The steps of a request with so many full blocks: its copies, then what it computes."""
        tokens = [ord(name)] * (SIZE * blocks)
        table = self.names.BlockTable(self.allocator)
        digests = [*table.digests_after([*tokens, 0])]  # the last token is always computed
        self.texts |= {digest: f"{name}{n}" for n, digest in enumerate(digests, 1)}
        shared = table.share([*tokens, 0]) // SIZE
        idle = {
            self.texts[self.allocator.prefix_cache.digest_of[b]] for b in self.allocator.prefix_cache.idle
        }
        table.reserve(len(tokens))
        for digest in digests[shared:]:
            if self.cold.level_of(digest) is None:
                break
            self.cold.bring_back(digest, table.adopt(digest))
        copied = len(table.digests)
        table.register(tokens, len(tokens))
        moves = self.cold.take_moves()
        yield from map(self.copy, moves)
        gone = idle - {self.texts[block] for block in self.allocator.prefix_cache.block_of}
        free = gone - {self.texts[move.digest] for move in moves if move.source.level == POOL}
        self.held |= {Place(POOL, block): f"{name}{n}" for n, block in enumerate(table.blocks, 1)}
        parts = {
            "shares": range(shared),
            "gets back": range(shared, copied),
            "computes": range(copied, blocks),
        }
        done = [
            f"{verb} {listed([f'{name}{n + 1}' for n in which])}" for verb, which in parts.items() if which
        ]
        kept = f" {listed(sorted(free))} left the pool without a copy: a level holds it." if free else ""
        table.release()
        yield self.step([], f"{name} {listed(done)}.{kept}")

    def copy(self, move: Move) -> dict[str, Any]:
        """The step of one copy."""
        text, source, target = self.texts[move.digest], move.source, move.target
        assert self.held[source] == text, f"{source} holds {self.held[source]}, not {text}"
        if target == GONE:
            del self.held[source]
            return self.step([], f"The folder needs room: {text}, its oldest text, is deleted.")
        self.held[target] = text
        return self.step([list(source), list(target)], _said(text, source, target))

    def step(self, copy: Sequence[Sequence[Any]], said: str) -> dict[str, Any]:
        """A step as the page draws it: a row of texts per level, and from where to where a copy goes."""
        rows = [
            [self.held.get(Place(level, slot), "") for slot in range(n)] for level, n in CAPACITIES.items()
        ]
        return {"rows": rows, "copy": copy, "said": said}


def _said(text: str, source: Place, target: Place) -> str:
    """A copy in words."""
    place = f"{'block' if target.level == POOL else target.level} {target.slot}"
    if target.level == POOL:
        return f"{text} comes back from {source.level} to {place}, and stays in {source.level} too."
    if source.level == POOL:
        return f"Block {source.slot} of the pool is needed: {text} is put away, to {place}."
    return f"{source.level.capitalize()} needs room: {text}, its oldest text, goes to {place} first."


@cache
def story() -> str:
    """The story as JSON: the levels, their steps, and the step that the page begins with."""
    levels = Levels()
    steps = [step for turn in TURNS for step in levels.turn(*turn)]
    return json.dumps({"levels": list(CAPACITIES), "start": START, "steps": steps}, separators=(",", ":"))


def data() -> str:
    """The element of the page that holds the story."""
    return f'<script type="application/json">{story()}</script>'


def picture() -> str:
    """The SVG of the first step shown, for readers without JavaScript."""
    with scripts() as run:
        return run(f"stepPlayer.draw({story()}, {START}, {WIDTH})")
