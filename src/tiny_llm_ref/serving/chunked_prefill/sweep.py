"""The same work with several chunk sizes: total time added and p99 gap saved."""

from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

from .chunked_prefill_metrics import ChunkedPrefillMetrics

Result = ChunkedPrefillMetrics | dict[str, Any]  # the second is a `summary()`


def sweep_chunk_sizes(
    run: Callable[[int | None], Result],
    steps: Sequence[int | None] = (32, 128, 512, None),
    *,
    rounds: int = 1,
) -> list[dict[str, Any]]:
    """Measures every chunk size in turn, and compares each with whole prompts.

    Args:
        run: does the work with chunks of this many tokens, None for whole prompts. Returns its `ChunkedPrefillMetrics`
            or their `summary()`.
        steps: the chunk sizes.
        rounds: number of measurements per size. Each round begins with another size, so that a machine that slows
            down, or warm-up in the first run, favours no size.

    Returns:
        A row per size, in the order of `steps`: "step"; the median over the rounds of every number of the summary (None
        if no round has it); and, compared with whole prompts, "total_lost", the share of the total time that is added,
        and "gap_won", the share of the p99 gap between two tokens that is saved. Both are None if whole prompts were
        not measured or do not have that number.

    Raises:
        ValueError: there is no size, one is given twice or is below 1, or `rounds` is below 1.
    """
    _check(steps, rounds)
    # TASK 2.7.8: run the rounds, each in another order; then take the median of each number; then compare.
    # Rotating the order by one place per round gives every size every place in turn.
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
    """Raises ValueError for sizes or rounds that cannot be measured. Given."""
    if not steps or len(set(steps)) < len(steps):
        raise ValueError(f"steps are {steps}: give at least one, each of them once")
    if any(step is not None and step < 1 for step in steps):
        raise ValueError(f"steps are {steps}: a chunk has at least 1 token; None is the whole prompt")
    if rounds < 1:
        raise ValueError(f"rounds is {rounds}: measure at least once")


# GIVEN: a run may return either; the lesson is the comparison.
def _summary(result: Result) -> dict[str, Any]:
    """The summary of a result, which may be one already."""
    return result if isinstance(result, dict) else result.summary()


def _medians(summaries: list[dict[str, Any]]) -> dict[str, float | None]:
    """The median of every number over the rounds."""
    # TASK 2.7.8: None is not a number: a round with None does not count.
    keys = dict.fromkeys(key for summary in summaries for key in summary)
    values = {key: [s[key] for s in summaries if s.get(key) is not None] for key in keys}
    return {key: median(numbers) if numbers else None for key, numbers in values.items()}


# GIVEN: missing numbers are not part of the lesson.
def _ratio(row: dict, whole: dict, key: str) -> float | None:
    """One number divided by that of whole prompts; None if one of the two is missing."""
    if row.get(key) is None or not whole.get(key):
        return None
    return row[key] / whole[key]
