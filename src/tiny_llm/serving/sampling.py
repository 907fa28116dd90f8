"""How a request wants its tokens drawn, and how many."""

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
        ValueError: `max_tokens` is not positive. The other numbers are checked where the sampler is made.
    """

    temperature: float = 0.0
    top_p: float | None = None
    top_k: int | None = None
    max_tokens: int | None = None

    def __post_init__(self):
        if self.max_tokens is not None and self.max_tokens < 1:
            raise ValueError(f"max_tokens is {self.max_tokens}: ask for at least 1 token, or None")
