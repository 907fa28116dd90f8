"""Timing of several candidates side by side, so that a slow minute of the machine hits all of them alike."""

import statistics
import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


def turned(items: Iterable[Item], number: int) -> list[Item]:
    """The items in their order; each round `number` begins with another one."""
    listed = list(items)
    start = number % len(listed)
    return listed[start:] + listed[:start]


def in_turns(
    candidates: Mapping[Item, Callable[[int], Result]], rounds: Iterable[int]
) -> dict[Item, list[Result]]:
    """The results of every candidate in every round, of which it gets the number. In a round each runs once."""
    found: dict[Item, list[Result]] = {name: [] for name in candidates}
    for number in rounds:
        for name in turned(candidates, number):
            found[name].append(candidates[name](number))
    return found


def interleave(
    candidates: Mapping[Item, Callable[[], object]],
    rounds: int,
    warmup: int = 1,
    *,
    clock: Callable[[], float] = time.perf_counter,
    progress: Callable[[Iterable], Iterable] = iter,
) -> dict[Item, list[float]]:
    """Seconds of every candidate in every round. In a round each runs once; the order turns from round to round.

    Args:
        candidates: name -> what to time; it returns when its work is done.
        rounds: samples of each.
        warmup: calls of each that are not counted.
        clock: seconds.
        progress: wraps the rounds, to show them.
    """

    def timed(run: Callable[[], object], number: int) -> float:
        start = clock()
        run()
        return clock() - start

    for run in candidates.values():
        for _ in range(warmup):
            run()
    return in_turns({name: partial(timed, run) for name, run in candidates.items()}, progress(range(rounds)))


def seconds_of(run: Callable[[], object], rounds: int, warmup: int = 1) -> list[float]:
    """The seconds of one candidate, see `interleave`."""
    return interleave({"": run}, rounds, warmup)[""]


def medians(candidates: Mapping[Item, Callable[[], object]], rounds: int) -> dict[Item, float]:
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
    """The factor by which ours is faster: the quotient of the medians."""
    return statistics.median(baseline) / statistics.median(ours)
