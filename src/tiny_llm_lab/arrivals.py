"""Arrival processes: when each request of a load is sent."""

import numpy as np


def arrival_gaps(count: int, rate: float, burstiness: float = 1.0, *, rng: np.random.Generator) -> np.ndarray:
    """(count,) seconds between arrivals.

    The gaps follow a gamma distribution, as in vLLM's `bench serve`. Two rates with the same seed have the same
    pattern, only faster or slower.

    Args:
        count: gaps.
        rate: requests per second on average; infinity sends all at once.
        burstiness: shape of the distribution. 1 is a Poisson process; below 1 requests come in bursts, above 1 more
            evenly than at random. Its inverse is the square of the gaps' deviation in units of their mean.
        rng: source of the draws.

    Raises:
        ValueError: rate or burstiness is not positive.
    """
    if not rate > 0 or not burstiness > 0:
        raise ValueError(f"rate {rate} and burstiness {burstiness}: give numbers above 0")
    return rng.gamma(burstiness, 1 / burstiness, count) / rate


def arrival_times(
    count: int, rate: float, burstiness: float = 1.0, *, rng: np.random.Generator
) -> list[float]:
    """Seconds at which requests arrive, ascending from 0. For the arguments, see `arrival_gaps`."""
    gaps = arrival_gaps(max(count - 1, 0), rate, burstiness, rng=rng)
    return [0.0, *np.cumsum(gaps).tolist()][:count]
