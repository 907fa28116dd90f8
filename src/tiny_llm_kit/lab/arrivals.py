"""Arrival processes: when each request of a load is sent."""

import math

import numpy as np


def arrival_times(
    count: int, rate: float, burstiness: float = 1.0, *, rng: np.random.Generator
) -> list[float]:
    """Seconds at which requests arrive, ascending from 0.

    The gaps follow a gamma distribution, as in vLLM's `bench serve`. Two rates with the same seed have the same
    pattern, only faster or slower.

    Args:
        count: requests.
        rate: requests per second on average; infinity sends all at 0.
        burstiness: shape of the distribution. 1 is a Poisson process; below 1 requests come in bursts, above 1 more
            evenly than at random.
        rng: source of the draws.

    Raises:
        ValueError: rate or burstiness is not positive.
    """
    if not rate > 0 or not burstiness > 0:
        raise ValueError(f"a rate of {rate} and a burstiness of {burstiness}: both must be above 0")
    if math.isinf(rate):
        return [0.0] * count
    gaps = rng.gamma(burstiness, 1 / burstiness, max(count - 1, 0)) / rate
    return [0.0, *np.cumsum(gaps).tolist()][:count]
