"""What a step costs by its tokens, measured on this machine, and how many tokens a latency target allows.

A step does arithmetic for each of its tokens and reads weights and keys from memory. The slower of the two decides, so
a profile has two lines: one through measured prompts, where arithmetic decides, and one through measured decodes, where
memory does. Contexts are as long as in the measurement.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol


class Line(Protocol):
    """seconds = a + b · tokens. The lab's `Cost` is one."""

    @property
    def a(self) -> float: ...

    @property
    def b(self) -> float: ...


Measure = Callable[
    [int, int], float
]  # seconds of a step, by its number of tokens and how many of them are decodes
Fit = Callable[
    [Sequence[tuple[int, float, float]]], Line
]  # the line through (tokens, pairs, seconds); pairs are 0 here


@dataclass(frozen=True)
class StepProfile:
    """Predicts a step: T = max(T_math, T_mem) plus the overhead of any step (Agrawal et al., 2024, section 3.1).

    The overhead is part of both lines: max(x + o, y + o) = max(x, y) + o.

    Args:
        math: seconds by tokens of the step; what the arithmetic needs.
        memory: seconds by requests that decode; what reading weights and their keys needs.
    """

    math: Line
    memory: Line

    def seconds(self, tokens: int, decodes: int = 0) -> float:
        """Seconds of a step.

        Args:
            tokens: of the step, decodes included.
            decodes: how many of them are decodes.
        """
        # TASK 3.5.1: the slower of two lines. A decode is a token of the arithmetic as well.
        raise NotImplementedError("week 3 day 5 task 1: StepProfile.seconds")

    def tokens_within(self, seconds: float, decodes: int, tile: int, most: int) -> int:
        """The largest multiple of `tile` whose step takes at most this long; 0 if no tile fits.

        Args:
            seconds: the limit.
            decodes: requests that decode in the step; they are among the tokens.
            tile: tokens that the hardware computes together: one token more costs a whole tile.
            most: tokens, at most.
        """
        # TASK 3.5.2: `seconds` never falls when tokens are added, so go down from the largest multiple.
        raise NotImplementedError("week 3 day 5 task 2: StepProfile.tokens_within")

    def token_budget(
        self, slo: float, tile: int, *, most: int = 8192, decodes: int = 0, measure: Measure | None = None
    ) -> int:
        """The token budget of a scheduler: the largest multiple of `tile` under the target, checked by running at it.

        Args:
            slo: the target (service level objective) for the time between two tokens, in seconds.
            tile: see `tokens_within`.
            most: tokens, at most.
            decodes: requests that decode in every step.
            measure: runs a step, see `profile_steps`. A profile is an average, and tokens beside long contexts cost
                more: a budget that takes longer than the target goes down by a tile. None does not check.

        Raises:
            ValueError: even one tile takes longer than the target.
        """
        # TASK 3.5.2: predict, then run, and go down while it is too slow. The error names both ways out: "give a
        # higher target or a smaller tile".
        raise NotImplementedError("week 3 day 5 task 2: StepProfile.token_budget")


def profile_steps(
    measure: Measure, sizes: Sequence[int], fit: Fit, decode_sizes: Sequence[int] | None = None
) -> StepProfile:
    """Measures steps of several sizes and puts a line through each kind, prompts and decodes apart.

    Args:
        measure: measure(tokens, decodes) runs a step and returns its seconds; the median of several, on a real machine.
            With decodes = 0 all tokens are of prompts, with decodes = tokens all are decodes.
        sizes: tokens of the steps, at least two different ones.
        fit: finds the line through samples (tokens, 0, seconds); the lab's `line`.
        decode_sizes: how many decodes, where fewer may run than a step has tokens; `sizes` when None.

    Raises:
        ValueError: there are fewer than two sizes.
    """
    decode_sizes = sizes if decode_sizes is None else decode_sizes
    if min(len(set(sizes)), len(set(decode_sizes))) < 2:
        raise ValueError(f"sizes are {tuple(sizes)}: a line needs at least two different ones")
    # TASK 3.5.1: each size twice, as a prompt and as decodes. One line through all of them would fit neither.
    raise NotImplementedError("week 3 day 5 task 1: profile_steps")
