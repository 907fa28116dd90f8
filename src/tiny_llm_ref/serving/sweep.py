"""The same work with several chunk sizes: what is lost, and what is won."""

from collections.abc import Callable, Sequence
from statistics import median
from typing import Any


def sweep_chunk_sizes(
    run: Callable[[int | None], Any], steps: Sequence[int | None] = (32, 128, 512, None), *, rounds: int = 1
) -> list[dict[str, Any]]:
    """Measures every chunk size, in turns, and compares each with whole prompts.

    Args:
        run: does the work with chunks of so many tokens, None for whole prompts. Returns the `ChunkedPrefillMetrics`
            of it, or their `summary()`.
        steps: the chunk sizes.
        rounds: how often each is measured. Each round begins with another size, so that a machine which slows down,
            or what the first run warms up, is no size's luck.

    Returns:
        A row for every size, in the order of `steps`: "step", the median over the rounds of every number of the
        summary (None when no round has it), and compared with whole prompts "total_lost", the share of the total time
        that is added, and "gap_won", the share of the p99 gap between two tokens that is saved. Both are None when
        whole prompts were not measured or have no such number.

    Raises:
        ValueError: there is no size, one stands twice or is below 1, or there is no round.
    """
    _check(steps, rounds)
    # TASK 2.7.8: rounds, each with another order; then a median for each number; then the comparison.
    # Turning the order by one place a round gives every size every place in turn.
    seen: dict[int | None, list[dict]] = {step: [] for step in steps}
    for turn in range(rounds):
        first = turn % len(steps)
        for step in [*steps[first:], *steps[:first]]:
            seen[step].append(_summary(run(step)))
    rows = {step: {**_medians(seen[step]), "step": step} for step in steps}
    whole = rows.get(None, {})
    for row in rows.values():
        total, gap = (_ratio(row, whole, key) for key in ("total_ms", "tbt_p99_ms"))
        row["total_lost"] = None if total is None else total - 1
        row["gap_won"] = None if gap is None else 1 - gap
    return list(rows.values())


def _check(steps: Sequence[int | None], rounds: int) -> None:
    """What cannot be measured. Given."""
    if not steps or len(set(steps)) < len(steps):
        raise ValueError(f"steps are {steps}: give at least one, each of them once")
    if any(step is not None and step < 1 for step in steps):
        raise ValueError(f"steps are {steps}: a chunk has at least 1 token; None is the whole prompt")
    if rounds < 1:
        raise ValueError(f"rounds is {rounds}: measure at least once")


# GIVEN: a run may return either, and the lesson is the comparison.
def _summary(result: Any) -> dict[str, Any]:
    """Both kinds of result as one."""
    return result if isinstance(result, dict) else result.summary()


def _medians(summaries: list[dict[str, Any]]) -> dict[str, float | None]:
    """The median of every number over the rounds."""
    # TASK 2.7.8: None is no number: a round without one does not count.
    keys = dict.fromkeys(key for summary in summaries for key in summary)
    values = {key: [s[key] for s in summaries if s.get(key) is not None] for key in keys}
    return {key: median(numbers) if numbers else None for key, numbers in values.items()}


# GIVEN: what is missing is no lesson.
def _ratio(row: dict, whole: dict, key: str) -> float | None:
    """One number by that of whole prompts; None when one of them is missing."""
    if row.get(key) is None or not whole.get(key):
        return None
    return row[key] / whole[key]
