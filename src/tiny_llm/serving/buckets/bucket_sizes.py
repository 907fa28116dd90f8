"""Bucket sizes: a number is padded to the next of them, so that a compiler for fixed shapes sees few of them.

The three lists of sizes are those of vllm-gaudi (`VLLM_BUCKETING_STRATEGY`: lin, exp, pad; 2026).
"""

import math
from collections.abc import Sequence
from itertools import pairwise


def bucketize(value: int, sizes: Sequence[int]) -> int:
    """The smallest bucket size that is at least `value`.

    Args:
        value: a size, in tokens or pages.
        sizes: in ascending order.

    Raises:
        ValueError: the value is above the last of them.
    """
    # TASK 3.4.1: the first size that is large enough; a value that is a size stays as it is.
    # Padding down would drop tokens, so a value above the last size is an error that says what to change.
    raise NotImplementedError("week 3 day 4 task 1: bucketize")


def linear_ladder(least: int, step: int, most: int) -> tuple[int, ...]:
    """Doubles from `least` while below `step`, then goes up in multiples of `step`, and ends with `most`. Given.

    linear_ladder(2, 32, 100) is 2, 4, 8, 16, 32, 64, 96, 100. The padding is at most `step` - 1, and the number of
    sizes grows with `most` / `step`.

    Args:
        least, step, most: at least 1, and `least` at most `most`.

    Returns:
        Sizes in ascending order, without duplicates.
    """
    sizes, value = [], least
    while value < min(step, most):
        sizes.append(value)
        value *= 2
    sizes.extend(multiple for multiple in range(step, most, step) if multiple >= least)
    return (*sizes, most)


def exponential_ladder(least: int, most: int, count: int, step: int = 1) -> tuple[int, ...]:
    """`count` sizes at equal ratios from `least` to `most`, each rounded up to a multiple of `step`.

    The number of sizes does not depend on `most`; the padding is in proportion to the value.

    Args:
        least, most, step: at least 1, and `least` at most `most`.
        count: sizes, at least 2; duplicates are removed, so there may be fewer.

    Returns:
        Sizes in ascending order; none is above `most`, which is the last.
    """
    # TASK 3.4.2: size i is least · (most / least) ^ (i / (count - 1)); exponential_ladder(1, 512, 10) has the doubles.
    # A power is a float: 8.000000001 must not become 9.
    raise NotImplementedError("week 3 day 4 task 2: exponential_ladder")


def padding_aware_ladder(
    least: int, step: int, most: int, *, pad_percent: int = 25, pad_max: int | None = None
) -> tuple[int, ...]:
    """The sizes of `linear_ladder` without those that save too little padding.

    Args:
        least, step, most: see `linear_ladder`.
        pad_percent: how much of a size may be padding, in percent.
        pad_max: how much of a size may be padding, absolutely; None is no such limit.

    Returns:
        Sizes in ascending order, from the first to the last of `linear_ladder`.
    """
    # TASK 3.4.3: leave a size out if the next one can take its values, within both limits.
    # The worst value for a size is one more than the size kept before it.
    raise NotImplementedError("week 3 day 4 task 3: padding_aware_ladder")


def exponential(least: int, step: int, most: int) -> tuple[int, ...]:
    """About the doubles from `least` to `most`. Given."""
    return exponential_ladder(least, most, max(2, math.ceil(math.log2(most / least)) + 1))


def padding_aware(least: int, step: int, most: int) -> tuple[int, ...]:
    """At most a quarter of padding, in quarters of `step`. Given."""
    return padding_aware_ladder(least, max(1, step // 4), most)


STRATEGIES = {"exponential": exponential, "linear": linear_ladder, "padding-aware": padding_aware}
