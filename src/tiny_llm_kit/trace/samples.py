"""Timing of several candidates side by side, so that a slow minute of the machine hits all of them alike."""

import statistics
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

Item = TypeVar("Item")


def turned(items: Iterable[Item], number: int) -> list[Item]:
    """The items in their order; each round `number` begins with another one."""
    listed = list(items)
    start = number % len(listed)
    return listed[start:] + listed[:start]


def interleave(
    candidates: Mapping[Any, Callable[[], object]],
    rounds: int,
    warmup: int = 1,
    *,
    clock: Callable[[], float] = time.perf_counter,
    progress: Callable[[Iterable], Iterable] = iter,
) -> dict[Any, list[float]]:
    """Seconds of every candidate in every round. In a round each runs once; the order turns from round to round.

    Args:
        candidates: name -> what to time; it returns when its work is done.
        rounds: samples of each.
        warmup: calls of each that are not counted.
        clock: seconds.
        progress: wraps the rounds, to show them.
    """
    for run in candidates.values():
        for _ in range(warmup):
            run()
    seconds: dict[Any, list[float]] = {name: [] for name in candidates}
    for number in progress(range(rounds)):
        for name in turned(candidates, number):
            start = clock()
            candidates[name]()
            seconds[name].append(clock() - start)
    return seconds


def medians(candidates: Mapping[Any, Callable[[], object]], rounds: int) -> dict[Any, float]:
    """The median seconds of every candidate, see `interleave`."""
    samples = interleave(candidates, rounds)
    return {name: statistics.median(seconds) for name, seconds in samples.items()}


def spread(samples: list[float]) -> float:
    """The distance between the quartiles, as a share of the median; 0 for fewer than two samples."""
    if len(samples) < 2:
        return 0.0
    low, _, high = statistics.quantiles(samples, n=4, method="inclusive")
    return (high - low) / statistics.median(samples)


def ratio(baseline: list[float], ours: list[float]) -> float:
    """How many times faster: the quotient of the medians."""
    return statistics.median(baseline) / statistics.median(ours)
