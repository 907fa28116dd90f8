"""Adaptive chunk size: the largest one whose chunks have taken no longer than a target on this machine."""

import math
from collections import deque
from collections.abc import Sequence
from statistics import median_low

from tiny_llm_engine.chunked_prefill.chunk_sizes import SIZES, check_sizes, largest_size

# Chunks kept per size: their median ignores one outlier, and follows a change after two chunks.
RECENT = 3
# Share of the target below which the size may go up. A size that takes 75 % of the target passes despite 20 % of noise;
# with a share of 1, a size just below the target would be chosen and left again and again.
UP = 0.9
# Share of the slowest median: 20 % of noise does not get below it (0.8 / 1.2), a machine that is twice as fast does.
FASTER = 2 / 3
# Chunks until larger sizes are tried again: two slow chunks in 500 are too rare to show in the p99 of the gaps.
AGAIN = 500


class AdaptiveChunker:
    """Chooses the largest chunk size whose chunks take no longer than a target, one size at a time.

    The cost of a size is the median of its last three chunks, or the faster of two: a single slow chunk may be an
    outlier, such as the first, which compiles. The next larger size is unknown, and is tried, until two of its chunks
    were measured. Measurements of larger sizes are dropped when the machine got faster, and after 500 chunks.

    It does not use the length of the context: as a prompt grows its chunks cost more, the medians rise, and the size
    goes down.

    Args:
        decode_latency_target: seconds that a chunk may take while requests wait for their next token.
        sizes: chunk sizes, see `check_sizes`; on a Gaudi (128, 256, 512).

    Raises:
        ValueError: the target is not a positive number, or `check_sizes` refuses the sizes.
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
        """Stores the time that a chunk has taken.

        Args:
            chunk_size: its tokens. A chunk whose size is not among `sizes`, such as the end of a prompt, is ignored:
                half a chunk does not take half the time.
            seconds: how long it took.

        Raises:
            ValueError: a number is out of range.
        """
        if chunk_size < 1 or not 0 <= seconds < math.inf:
            raise ValueError(
                f"chunk_size {chunk_size}, seconds {seconds}: give at least 1 token and 0 seconds, not infinite"
            )
        # TASK 2.7.5: keep the time among the last RECENT of its size, and count the chunk.
        # If this size got faster, or after AGAIN chunks, drop the sizes above the chosen one and start counting again.
        if chunk_size not in self.sizes:
            return
        self._recent.setdefault(chunk_size, deque(maxlen=RECENT)).append(seconds)
        self._chunks += 1
        if self.is_faster(chunk_size) or self._chunks >= AGAIN:
            self._recent = {size: seen for size, seen in self._recent.items() if size <= self._size}
            self._slowest, self._chunks = {}, 0

    # GIVEN: how much noise there may be.
    def is_faster(self, size: int) -> bool:
        """Whether this size is the chosen one and its chunks take clearly less time than they once did."""
        typical = median_low(self._recent[size])
        self._slowest[size] = max(typical, self._slowest.get(size, 0.0))
        return size == self._size and typical < FASTER * self._slowest[size]

    def select_chunk_size(self, base_chunk_size: int, decode_pressure: float) -> int:
        """The size of the next chunk, always one of `sizes`.

        Args:
            base_chunk_size: first size, in tokens; rounded down to one of `sizes`.
            decode_pressure: share of the slots, from 0 to 1, whose requests wait for their next token.

        Returns:
            The largest size if nothing decodes; it is not stored as chosen. The base for the first chunk that requests
            wait for, and while nothing was observed. After that, `next_size()`.

        Raises:
            ValueError: a number is out of range.
        """
        if base_chunk_size < 1 or not 0 <= decode_pressure <= 1:
            raise ValueError(
                f"base_chunk_size {base_chunk_size}, decode_pressure {decode_pressure}:"
                " give at least 1 token, and a share from 0 to 1"
            )
        # TASK 2.7.5: the cases in the order of the docstring. Store the choice as `_size`.
        if decode_pressure == 0:
            return self.sizes[-1]
        if self._size and self._recent:
            self._size = self.next_size()
        else:
            self._size = largest_size(self.sizes, base_chunk_size) or self.sizes[0]
        return self._size

    def next_size(self) -> int:
        """The chosen size, or the one below or above it.

        Down if its median is above the target. Otherwise up if the size above was observed fewer than two times, or its
        median is at most UP times the target. Unchanged while it was not observed, and at the ends of `sizes`.
        """
        # TASK 2.7.5: `median_low` is the faster one of two.
        index = self.sizes.index(self._size)
        below, above = self.sizes[max(index - 1, 0)], self.sizes[min(index + 1, len(self.sizes) - 1)]
        seen, seen_above = self._recent.get(self._size, ()), self._recent.get(above, ())
        if not seen:
            return self._size
        if median_low(seen) > self.decode_latency_target:
            return below
        if len(seen_above) < 2 or median_low(seen_above) <= UP * self.decode_latency_target:
            return above
        return self._size
