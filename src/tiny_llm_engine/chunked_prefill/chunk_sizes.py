"""Sizes of chunks, what chooses one, and the choice by load: the more slots decode, the smaller. Given."""

from collections.abc import Sequence
from typing import Protocol

SIZES = (32, 64, 128, 256, 512)


def check_sizes(sizes: Sequence[int]) -> tuple[int, ...]:
    """Checks chunk sizes: ascending, all multiples of the first, as every offset is then.

    Raises:
        ValueError: they are not.
    """
    steps = tuple(sizes)
    if not steps or steps[0] < 1 or list(steps) != sorted(set(steps)):
        raise ValueError(f"sizes are {steps}: give at least one, each larger than the one before it")
    if any(size % steps[0] for size in steps):
        raise ValueError(f"sizes are {steps}: each must be a multiple of the first, {steps[0]}")
    return steps


def largest_size(sizes: Sequence[int], tokens: float) -> int:
    """The largest size not above `tokens`; 0 if every size is."""
    return max((size for size in sizes if size <= tokens), default=0)


class Chunker(Protocol):
    """Chooses the size of every chunk for a scheduler; `AdaptiveChunker` is one."""

    sizes: tuple[int, ...]

    def observe(self, chunk_size: int, seconds: float) -> None: ...

    def select_chunk_size(self, base_chunk_size: int, decode_pressure: float) -> int: ...


class LoadChunker:
    """Gives prompts the share of the budget that is the share of the slots which do not decode.

    Every request that decodes waits for the chunk of its step. With few of them a large chunk delays few, and the
    prompt is done sooner; with many a small one keeps their gaps short. Nothing is measured, so it reacts within a
    step, and its sizes are the same on every machine.

    Args:
        sizes: chunk sizes, see `check_sizes`.

    Raises:
        ValueError: `check_sizes` refuses the sizes.
    """

    def __init__(self, sizes: Sequence[int] = SIZES):
        self.sizes = check_sizes(sizes)

    def observe(self, chunk_size: int, seconds: float) -> None:
        """See `Chunker`. The load alone decides."""

    def select_chunk_size(self, base_chunk_size: int, decode_pressure: float) -> int:
        """The largest size within that share of the base; the smallest size if none is.

        Args:
            base_chunk_size: tokens of a chunk when nothing decodes.
            decode_pressure: share of the slots, from 0 to 1, whose requests wait for their next token.

        Raises:
            ValueError: a number is out of range.
        """
        if base_chunk_size < 1 or not 0 <= decode_pressure <= 1:
            raise ValueError(
                f"base_chunk_size {base_chunk_size}, decode_pressure {decode_pressure}:"
                " give at least 1 token, and a share from 0 to 1"
            )
        return largest_size(self.sizes, base_chunk_size * (1 - decode_pressure)) or self.sizes[0]
