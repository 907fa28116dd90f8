"""The one loop over a scheduler's steps: it has a limit, and its failure names what keeps the work from ending."""

from collections.abc import Iterator, Sequence
from typing import Any

import pytest


def steps_of(scheduler: Any, requests: Sequence[Any] = (), most: int = 500) -> Iterator[int]:
    """Numbers from 0, one per step, while work remains. The caller makes the step.

    Args:
        scheduler: of Week 2 or Week 3.
        requests: those that it serves, for the message of a failure.
        most: steps; far more than the requests need.
    """
    for number in range(most):
        if not scheduler.has_work_remaining():
            return
        yield number
    pytest.fail(f"work remains after {most} steps: {why_stuck(scheduler, requests)}", pytrace=False)


def why_stuck(scheduler: Any, requests: Sequence[Any]) -> str:
    """What is wrong with the first request that can never end, or that keeps others from running."""
    running = list(getattr(scheduler, "running", []))
    for one in requests:
        blocks = getattr(getattr(one, "block_table", None), "blocks", [])
        name = f"request {getattr(one, 'request_id', getattr(one, 'prompt_idx', '?'))}"
        if one.is_done and blocks:
            return (
                f"{name} has ended ({one.finish_reason!r}) and holds blocks {blocks}: end it through `finish`, which "
                "frees them. Setting `finish_reason` alone does not"
            )
        if not one.is_done and blocks and one not in running:
            return (
                f"{name} holds blocks {blocks} and is not in `running`: append each request that `admit` returns, or "
                "no later step knows it"
            )
    for one in running:
        if one.num_uncomputed > 0 and not one.is_decoding:
            return (
                f"request {one.request_id} runs, {one.num_uncomputed} of its tokens are not computed, and no step "
                "computes them: prompts that have begun come first, whether a request waits or not; then new ones"
            )
    return "the steps compute nothing, or the same tokens again"
