"""How a request wants its tokens drawn, and how many."""

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class SamplingParams:
    """The numbers of Day 1.7 for one request, and its limit.

    Args:
        temperature: 0 takes the most probable token.
        top_p: draw only from the nucleus of this probability; None is off.
        top_k: draw only from so many tokens; None is off.
        max_tokens: at most so many new tokens; None is no limit but that of the context.

    Raises:
        ValueError: a number is out of range. It is said here, before a batch of many runs with it.
    """

    temperature: float = 0.0
    top_p: float | None = None
    top_k: int | None = None
    max_tokens: int | None = None

    def __post_init__(self):
        if self.temperature != 0 and not 1e-6 <= self.temperature < math.inf:
            raise ValueError(
                f"temperature is {self.temperature}: give 0 (greedy) or a number of at least 1e-6"
            )
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise ValueError(f"top_p is {self.top_p}: give a number above 0 and at most 1, or None for off")
        if self.top_k is not None and not (isinstance(self.top_k, int) and self.top_k >= 0):
            raise ValueError(f"top_k is {self.top_k}: give a whole number, 0 or None for off")
        if self.max_tokens is not None and self.max_tokens < 1:
            raise ValueError(f"max_tokens is {self.max_tokens}: ask for at least 1 token, or None")
