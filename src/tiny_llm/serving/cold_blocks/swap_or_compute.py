"""Swap or compute again: how much of a text comes back by copies, by measured costs."""

from collections.abc import Sequence
from itertools import accumulate

from tiny_llm_extensions.cold_blocks.moves import BlockCosts


def blocks_to_bring_back(levels: Sequence[str], costs: BlockCosts) -> int:
    """How many blocks at the front of a text's cold part are copied; the others are computed.

    Args:
        levels: for each block of the cold part the level that it is in, in the order of the text.
        costs: seconds per block. Where nothing was measured, a copy costs nothing, and is tried.

    Returns:
        The number with the lowest sum of seconds; of two that are equal, the larger one.
    """
    # TASK 4.5.6: for k = 0, 1, …: k copies and the rest computed. A block behind a slow one may be worth waiting for.
    raise NotImplementedError("week 4 day 5 task 6: blocks_to_bring_back")
