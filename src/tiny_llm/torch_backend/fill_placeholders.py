"""Tokens that the host does not know: the device takes them from what it has drawn itself (Day 4.4)."""

import torch


def fill_placeholders(
    token_ids: torch.Tensor, sources: torch.Tensor, last_tokens: torch.Tensor
) -> torch.Tensor:
    """Puts drawn tokens in the place of placeholders, without a number that the host reads.

    Args:
        token_ids: (T,) ids of a step's rows; any number where a token is not known.
        sources: (T,) integers: -1 where the token is known, else which of `last_tokens` it is.
        last_tokens: (K,) what the step before has drawn, K ≥ 1.

    Returns:
        (T,) ids, in the type of `token_ids`. The shapes alone decide what is computed: a graph serves any step of its
        size, with any number of placeholders.
    """
    # TASK 4.4.6: `torch.where`, and an index that is valid in every row, also where the token is known.
    # Boolean indexing would ask the device how many placeholders there are, and the host would wait for its answer.
    raise NotImplementedError("week 4 day 4 task 6: fill_placeholders")
