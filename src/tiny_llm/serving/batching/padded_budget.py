"""The token budget of a step, in tokens that the model computes: padding costs as much as any other token."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..buckets.bucket_sizes import bucketize

if TYPE_CHECKING:  # the buckets ask these functions
    from ..buckets.buckets import Buckets


def room_for_prompts(budget: int, decodes: int, buckets: Buckets, *, separate: bool = False) -> int:
    """How many tokens of prompts a step may have, so that what is computed stays within the budget.

    Args:
        budget: padded tokens per step.
        decodes: requests that decode in this step.
        buckets: their sizes pad the calls of the step.
        separate: whether decodes are a call of their own, padded to its own sizes; else all are one call.

    Returns:
        Tokens, 0 if there is no room.
    """
    # TASK 3.4.9: what the decodes leave has to hold a whole bucket size of `chunk_tokens`, the largest that fits.
    # In one call the decodes are rows of this size. In two, their own padded rows are taken off the budget first.
    raise NotImplementedError("week 3 day 4 task 9: room_for_prompts")


def tokens_to_delay(tokens: int, sizes: Sequence[int]) -> int:
    """How many tokens of a step should wait for the next one, because this saves more padding than it delays.

    Args:
        tokens: how many tokens the step has.
        sizes: what it is padded to.

    Returns:
        The tokens above the next lower size; 0 when the step stays as it is.
    """
    # TASK 3.4.10: compare what is above the size below with what is missing to the size above. Below the first: 0.
    raise NotImplementedError("week 3 day 4 task 10: tokens_to_delay")
