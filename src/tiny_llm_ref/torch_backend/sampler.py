"""Choosing the next token from the logits: greedy, or at random with temperature, top-k and top-p."""

import math
from collections.abc import Callable

import torch

from .basics import softmax

Sampler = Callable[[torch.Tensor], torch.Tensor]


def draw(logits: torch.Tensor) -> torch.Tensor:
    """Draws one token a row, each with its own random numbers.

    Args:
        logits: (B, V) float32; a token of -inf is never drawn.

    Returns:
        (B,) ids; id i of a row comes with probability softmax(logits)[i].
    """
    # TASK 1.7.1: one draw a row, on the device.
    # The race: each token arrives after a random time with rate e^logit, and the first one wins with exactly the
    # probability of the softmax. Nothing has to be added up or read back, and no shape depends on a number.
    arrival = torch.empty_like(logits).exponential_()
    return torch.argmax(logits - torch.log(arrival), dim=-1)


def keep_top_k(logits: torch.Tensor, top_k: int) -> torch.Tensor:
    """Hides all but the `top_k` most probable tokens of each row (Fan et al., 2018).

    Args:
        logits: (B, V) float32.
        top_k: how many stay, at least 1; more than V hides nothing.

    Returns:
        (B, V): hidden tokens are -inf, the others as they were. Tokens equal to the last one that stays, stay too.
    """
    # TASK 1.7.2: each row has its own threshold, its top_k-th largest number.
    largest = torch.topk(logits, min(top_k, logits.shape[-1]), dim=-1).values
    return torch.where(logits < torch.amin(largest, dim=-1, keepdim=True), -torch.inf, logits)


def keep_top_p(logits: torch.Tensor, top_p: float) -> torch.Tensor:
    """Hides all but the nucleus of each row: the fewest tokens that have probability `top_p` together.

    From Holtzman et al., 2020. The most probable token always stays.

    Args:
        logits: (B, V) float32; -inf is allowed.
        top_p: above 0, at most 1.

    Returns:
        (B, V): hidden tokens are -inf, the others as they were.
    """
    # TASK 1.7.3: sort, add up, and ask of each token how much probability stands before it; then back to its own place.
    # A token stays while those before it have less than top_p: the one that crosses the line belongs to the nucleus.
    order = torch.argsort(-logits, dim=-1, stable=True)
    weights = softmax(torch.gather(logits, -1, order), axis=-1)
    before = torch.cumsum(weights, dim=-1) - weights
    before = torch.zeros_like(logits).scatter(-1, order, before)
    return torch.where(before < top_p, logits, -torch.inf)


def make_sampler(temp: float, top_p: float | None = None, top_k: int | None = None) -> Sampler:
    """A function from logits (B, V) of any floating-point type to ids (B,), right for every row.

    Args:
        temp: 0 takes the most probable token; 1 draws from the model's own probabilities; above 1 is more daring.
            Below 1e-6 only 0 is allowed: a logit divided by less could leave float32, and infinities have no softmax.
        top_p: draw only from the nucleus that has this probability; None or 1 is off.
        top_k: draw only from so many tokens; None or 0 is off.

    Raises:
        ValueError: a number is out of range.
    """
    if temp != 0 and not 1e-6 <= temp < math.inf:
        raise ValueError(f"temp is {temp}: give 0 (greedy) or a number of at least 1e-6")
    if top_p is not None and not 0 < top_p <= 1:
        raise ValueError(f"top_p is {top_p}: give a number above 0 and at most 1, or None for off")
    if top_k is not None and not (isinstance(top_k, int) and top_k >= 0):
        raise ValueError(f"top_k is {top_k}: give a whole number, 0 or None for off")
    # TASK 1.7.4: greedy, or in this order: float32, temperature, top-k, top-p, draw.
    # The order matters: the temperature changes what the nucleus is, top-k what its probabilities are shares of.

    def sample(logits: torch.Tensor) -> torch.Tensor:
        if temp == 0:
            return torch.argmax(logits, dim=-1)
        logits = logits.float() / temp
        if top_k:
            logits = keep_top_k(logits, top_k)
        if top_p is not None and top_p < 1:
            logits = keep_top_p(logits, top_p)
        return draw(logits)

    return sample
