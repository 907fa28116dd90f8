"""A chunk size from what chunks have cost on this machine, for a promise: no chunk takes longer than the target."""

import math
from collections import deque
from collections.abc import Sequence

from .chunk_size import SIZES, check_sizes, largest_size
from .cost_line import CostLine, Observation, fit_cost_line

RECENT = 3  # chunks of a size: the median of three forgets in two steps, and does not believe one accident
UP = 0.9  # a larger size than the last must keep this share of the target, so that near it nothing goes up and down
FASTER = 2 / 3  # of what a size did cost: noise of 20 % does not do that, the machine has changed
AGAIN = 500  # chunks after which larger sizes are tried again: too few to be seen in the p99 of the gaps


class AdaptiveChunker:
    """Chooses the largest chunk size that keeps running requests waiting for no longer than the target.

    It remembers the last chunks of every size, and fits a cost line to all of them for the sizes and the contexts that
    it has not seen. A size is given up when two chunks of it were too slow: one may be an accident, such as the first
    chunk, which compiles. It is tried again when the machine has become faster, and else once in AGAIN chunks.

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
        self.line = CostLine(0.0, 0.0)  # of all chunks that are remembered
        self._recent: dict[int, deque[Observation]] = {}  # by size
        self._slowest: dict[int, Observation] = {}  # the same, since larger sizes were forgotten
        self._chunks = 0  # since then
        self._last = self._chosen = self.sizes[-1]  # the size of the last chunk, and the last one chosen

    def observe(self, chunk_size: int, seconds: float, context: int = 0) -> None:
        """Learns what a chunk has cost.

        Args:
            chunk_size: its tokens; the end of a prompt, of no size of the ladder, counts for the next larger size, and
                a chunk above the ladder for its largest.
            seconds: how long it took.
            context: tokens of the prompt before it.

        Raises:
            ValueError: a number is out of range.
        """
        if chunk_size < 1 or context < 0 or not 0 <= seconds < math.inf:
            raise ValueError(f"a chunk of {chunk_size} tokens behind {context} in {seconds} seconds is none")
        # TASK 2.7.5: it is the newest of its size, and the oldest of more than RECENT is forgotten.
        # No cost is 0, whatever the clock says. If the machine became faster, or long ago, larger sizes are unknown.
        size = next((size for size in self.sizes if size >= chunk_size), self.sizes[-1])
        seen = self._recent.setdefault(size, deque(maxlen=RECENT))
        seen.append(Observation(chunk_size, max(seconds, 1e-9), context))
        self._last = size
        self.line = fit_cost_line(o for seen in self._recent.values() for o in seen)
        self._chunks += 1
        if chunk_size == size and (self.is_faster(size, context) or self._chunks >= AGAIN):
            self._recent = {other: seen for other, seen in self._recent.items() if other <= size}
            self._slowest, self._chunks = {}, 0

    # GIVEN: how much noise there may be, and what a line cannot do.
    def is_faster(self, size: int, context: int) -> bool:
        """Whether larger sizes, which were too slow, should be tried again: a chunk of this one has become cheaper."""
        # Cheaper than it was by more than noise; and it was too slow itself, or now even a chunk of the next size must
        # be fast enough: twice the tokens never cost more than twice as much.
        newest = self.typical(size, context)
        slowest = self._slowest.setdefault(size, newest)
        cost, before = (self.translate(o, size, context) for o in (newest, slowest))
        if cost > before:
            self._slowest[size] = newest
        above = next((other for other in self.sizes if other > size), size)
        target = self.decode_latency_target
        return cost <= FASTER * before and (before > target >= cost or cost * above / size <= target)

    def predict(self, size: int, context: int) -> float:
        """Seconds of a chunk of this size behind so many tokens: by the chunks of this size, else by the cost line."""
        # TASK 2.7.5: what was seen there says more than the line, which knows neither tiles nor regimes.
        if size not in self._recent:
            return self.line.seconds(size, context)
        return self.translate(self.typical(size, context), size, context)

    def typical(self, size: int, context: int) -> Observation:
        """The last chunk of this size that was neither fast nor slow: the median of three, the faster one of two."""
        # TASK 2.7.5: in the order of what they would have cost here.
        seen = sorted(self._recent[size], key=lambda o: self.translate(o, size, context))
        return seen[(len(seen) - 1) // 2]

    # GIVEN: the line knows the ratio, the observation knows the cost.
    def translate(self, observation: Observation, size: int, context: int) -> float:
        """What an observed chunk would have cost at another size and behind another context, by the cost line."""
        tokens, seconds, before = observation
        if (tokens, before) == (size, context):
            return seconds
        return seconds * self.line.seconds(size, context) / max(self.line.seconds(tokens, before), 1e-12)

    def select_chunk_size(self, base_chunk_size: int, decode_pressure: float, context: int = 0) -> int:
        """The size of the next chunk, always one of the ladder.

        Args:
            base_chunk_size: what to begin with before anything was observed.
            decode_pressure: the share of slots, from 0 to 1, that wait for their next token.
            context: tokens of the prompt before the chunk.

        Returns:
            With nothing decoding the largest size: nobody waits. Without history the base. Else the largest size that
            is predicted to keep the target, or one that was not tried yet just above it; the smallest if none is.

        Raises:
            ValueError: a number is out of range.
        """
        if base_chunk_size < 1 or context < 0 or not 0 <= decode_pressure <= 1:
            raise ValueError(
                f"base_chunk_size {base_chunk_size}, decode_pressure {decode_pressure}, context {context}:"
                " give at least 1, a share from 0 to 1, and at least 0"
            )
        # TASK 2.7.5: the cases in the order of the docstring.
        # Up it goes by one size, and only to one that was not seen, or once and too slow: that may be an accident.
        if decode_pressure == 0:
            return self.sizes[-1]
        if not self._recent:
            self._chosen = largest_size(self.sizes, base_chunk_size) or self.sizes[0]
        else:
            self._chosen = self.untried(self.largest_under_target(context), context)
        return self._chosen

    def largest_under_target(self, context: int) -> int:
        """The largest size up to the largest one seen whose predicted cost is under the target; else the smallest."""

        # TASK 2.7.5: a size above the last one chosen has to be clearly under it.
        def is_under(size: int) -> bool:
            share = UP if size > self._chosen else 1
            return self.predict(size, context) <= share * self.decode_latency_target

        known = [size for size in self.sizes if size <= max(self._recent)]
        return max(filter(is_under, known), default=self.sizes[0])

    def untried(self, size: int, context: int) -> int:
        """The next larger size, if this one was seen to be fast enough and too little is known of that; else this."""
        # TASK 2.7.5: not right after it was tried: a chunk that waits is a gap, and two in a row are a long one.
        above = next((other for other in self.sizes if other > size), size)
        is_good = size in self._recent and self.predict(size, context) <= self.decode_latency_target
        is_known = len(self._recent.get(above, ())) > 1 or above == self._last
        return above if is_good and not is_known else size
