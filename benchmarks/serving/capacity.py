"""The highest request rate at which a server still meets its target: the capacity."""

import math
from collections.abc import Callable

RESOLUTION = 1.15  # the search ends when the two rates differ by less than this factor
MOST = 12  # doublings or halvings


def capacity(attainment: Callable[[float], float], share: float, start: float) -> float:
    """The highest rate, up to `RESOLUTION`, at which this share of all requests meets the target.

    0 if no rate does; infinite if it does when all requests come at once, since then they are too few to find it.
    Doubles the rate until it is too high, or halves it until it is low enough; then bisects (the definition: Zhong et
    al., "DistServe", 2024, section 2.2).

    Args:
        attainment: the share of requests that meet the target at a rate in requests per second.
        share: that is demanded, from 0 to 1.
        start: the first rate.
    """

    def is_met(rate: float) -> bool:
        return attainment(rate) >= share

    if is_met(math.inf):
        return math.inf
    low, high = _bracket(is_met, start)
    while low and high / low > RESOLUTION:
        middle = (low * high) ** 0.5
        low, high = (middle, high) if is_met(middle) else (low, middle)
    return low


def _bracket(is_met: Callable[[float], bool], start: float) -> tuple[float, float]:
    """Two rates, a factor of 2 apart: the lower one meets the target, the higher one does not."""
    factor = 2.0 if is_met(start) else 0.5
    rate = start
    for _ in range(MOST):
        following = rate * factor
        if is_met(following) is (factor < 1):
            return (rate, following) if factor > 1 else (following, rate)
        rate = following
    return (rate, rate) if factor > 1 else (0.0, rate)
