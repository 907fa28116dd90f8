"""Adaptive chunk size: the largest one whose chunks have taken no longer than a target on this machine."""

import math
from collections import deque
from collections.abc import Sequence
from statistics import median_low

from .chunk_size import SIZES, check_sizes, largest_size

# Chunks per size: their median ignores one accident, and follows a change after two chunks.
RECENT = 3
# Of the target, to go up: a size at 75 % of it passes with 20 % of noise; one just below it would come and go.
UP = 0.9
# Of the slowest median: 20 % of noise does not get below it (0.8 / 1.2), a machine that is twice as fast does.
FASTER = 2 / 3
# Chunks: what is too slow is tried twice in so many, too rarely to show in the p99 of the gaps.
AGAIN = 500


class AdaptiveChunker:
    """Moves along a ladder of chunk sizes to the largest one that keeps waiting requests no longer than the target.

    What a size costs is the median of its last three chunks, or the faster of two: one slow chunk may be an accident,
    such as the first, which compiles. The size moves by one rung. A size above counts as unknown, and is tried, until
    two of its chunks are remembered. Sizes above are forgotten when the machine has become faster, and after 500
    chunks.

    It knows nothing of context: as a prompt grows its chunks cost more, and the size goes down as the medians go up.

    Args:
        decode_latency_target: seconds that a chunk may take while requests wait for their next token.
        sizes: the ladder, see `check_sizes`; on a Gaudi (128, 256, 512).

    Raises:
        ValueError: the target is not a positive number, or the sizes are no ladder.
    """

    def __init__(self, decode_latency_target: float = 0.05, sizes: Sequence[int] = SIZES):
        if not 0 < decode_latency_target < math.inf:
            raise ValueError(f"decode_latency_target is {decode_latency_target}: give seconds above 0")
        self.decode_latency_target, self.sizes = decode_latency_target, check_sizes(sizes)
        self._size = 0  # the last one chosen while requests waited; 0 before the first
        self._recent: dict[int, deque[float]] = {}  # seconds of the last chunks, per size
        # Since larger sizes were forgotten: the largest median of each size, and how many chunks there were.
        self._slowest: dict[int, float] = {}
        self._chunks = 0

    def observe(self, chunk_size: int, seconds: float) -> None:
        """Remembers what a chunk has cost.

        Args:
            chunk_size: its tokens. A chunk of no size of the ladder, such as the end of a prompt, is ignored: a part
                of a chunk does not cost that part of its time.
            seconds: how long it took.

        Raises:
            ValueError: a number is out of range.
        """
        if chunk_size < 1 or not 0 <= seconds < math.inf:
            raise ValueError(
                f"chunk_size {chunk_size}, seconds {seconds}: give at least 1 token and 0 seconds, not infinite"
            )
        # TASK 2.7.5: keep it as one of the last RECENT of its size, and count it.
        # If this size has become faster, or after AGAIN chunks, forget the sizes above the chosen one and start again.
        raise NotImplementedError("week 2 day 7 task 5: AdaptiveChunker.observe")

    # GIVEN: how much noise there may be.
    def is_faster(self, size: int) -> bool:
        """Whether chunks of this size, the chosen one, cost clearly less than they once did."""
        typical = median_low(self._recent[size])
        self._slowest[size] = max(typical, self._slowest.get(size, 0.0))
        return size == self._size and typical < FASTER * self._slowest[size]

    def select_chunk_size(self, base_chunk_size: int, decode_pressure: float) -> int:
        """The size of the next chunk, always one of the ladder.

        Args:
            base_chunk_size: what to begin with, in tokens; between two sizes it is the smaller one.
            decode_pressure: the share of slots, from 0 to 1, that wait for their next token.

        Returns:
            With nothing decoding the largest size, which is not remembered as chosen. The base for the first chunk that
            requests wait for, and as long as nothing was observed. Then the size of `next_size`.

        Raises:
            ValueError: a number is out of range.
        """
        if base_chunk_size < 1 or not 0 <= decode_pressure <= 1:
            raise ValueError(
                f"base_chunk_size {base_chunk_size}, decode_pressure {decode_pressure}:"
                " give at least 1 token, and a share from 0 to 1"
            )
        # TASK 2.7.5: the cases in the order of the docstring. Remember the choice as `_size`.
        raise NotImplementedError("week 2 day 7 task 5: AdaptiveChunker.select_chunk_size")

    def next_size(self) -> int:
        """The chosen size, or the one below or above it on the ladder.

        Down when its median is above the target. Else up when the size above was seen fewer than two times, or its
        median is at most UP of the target. It stays when it was not observed yet, and at the ends of the ladder.
        """
        # TASK 2.7.5: `median_low` is the faster one of two.
        raise NotImplementedError("week 2 day 7 task 5: AdaptiveChunker.next_size")
