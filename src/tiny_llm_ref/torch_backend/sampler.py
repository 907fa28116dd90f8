"""Choosing the next token from the logits: greedy, or at random with temperature, top-k and top-p."""

import math
from collections.abc import Callable

import torch

from .basics import softmax

Sampler = Callable[[torch.Tensor], torch.Tensor]


def draw(logits: torch.Tensor) -> torch.Tensor:
    """Draws one token per row, each with its own random numbers.

    Args:
        logits: (B, V) float32; a token with logit -inf is never drawn.

    Returns:
        (B,) ids; id i of a row is drawn with probability softmax(logits)[i].
    """
    # TASK 1.7.1: one draw per row, on the device.
    # An exponential race: token i arrives after a random time with rate e^logit, and is the first one with exactly
    # its softmax probability. It needs no cumulative sum and no host read, and no shape depends on the data.
    arrival = torch.empty_like(logits).exponential_()
    return torch.argmax(logits - torch.log(arrival), dim=-1)


def keep_top_k(logits: torch.Tensor, top_k: int) -> torch.Tensor:
    """Sets all but the `top_k` most probable tokens of each row to -inf (Fan et al., 2018).

    Args:
        logits: (B, V) float32.
        top_k: number of tokens to keep, at least 1; V or more keeps all.

    Returns:
        (B, V): -inf for tokens that were dropped, the others unchanged. Ties with the last token kept are kept too.
    """
    # TASK 1.7.2: each row has its own threshold, its top_k-th largest logit.
    largest = torch.topk(logits, min(top_k, logits.shape[-1]), dim=-1).values
    return torch.where(logits < torch.amin(largest, dim=-1, keepdim=True), -torch.inf, logits)


def keep_top_p(logits: torch.Tensor, top_p: float) -> torch.Tensor:
    """Sets all tokens outside each row's nucleus to -inf (Holtzman et al., 2020).

    The nucleus is the smallest set of most probable tokens whose probabilities add up to `top_p`. The most probable
    token is always kept.

    Args:
        logits: (B, V) float32; -inf is allowed.
        top_p: above 0, at most 1.

    Returns:
        (B, V): -inf for tokens that were dropped, the others unchanged.
    """
    # TASK 1.7.3: sort, compute the probability that comes before each token, and undo the sort.
    # A token is kept while those before it have less than top_p: the one that crosses top_p belongs to the nucleus.
    order = torch.argsort(-logits, dim=-1, stable=True)
    weights = softmax(torch.gather(logits, -1, order), axis=-1)
    before = torch.cumsum(weights, dim=-1) - weights
    before = torch.zeros_like(logits).scatter(-1, order, before)
    # In float32 an even smaller top_p is 0, and no token has less than that before it.
    return torch.where(before < max(top_p, 1e-38), logits, -torch.inf)


def make_sampler(temp: float, top_p: float | None = None, top_k: int | None = None) -> Sampler:
    """Makes a sampler: logits (B, V) of any floating-point type to ids (B,).

    Args:
        temp: 0 takes the most probable token; 1 draws from the model's own probabilities; above 1 flattens them.
            Below 1e-6 only 0 is allowed: a logit divided by less can overflow float32.
        top_p: draw only from the nucleus of this probability; None or 1 turns it off.
        top_k: draw only from the `top_k` most probable tokens; None or 0 turns it off.

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
    # The order matters: the temperature changes the nucleus, and top-k the probabilities that top-p adds up.

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
