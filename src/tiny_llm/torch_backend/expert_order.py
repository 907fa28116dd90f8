"""The order in which a mixture of experts computes: all rows of an expert follow each other."""

import torch


def sort_by_expert(experts: torch.Tensor, num_experts: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Sorts the T·k pairs of a token and one of its experts by expert.

    Args:
        experts: (T, k) integers from 0 to X - 1; pair t·k + j is token t with its expert j.
        num_experts: X.

    Returns:
        order: (T·k,) integers, the pairs in the order of their experts: pair `order[i]` comes at place i. Pairs with
            the same expert keep their order.
        counts: (X,) integers, the number of pairs of each expert, 0 included.
    """
    # TASK 4.2.2: one sort and one sum per expert, both on the device: shapes depend on T, k and X alone.
    # No loop over tokens, and no function whose result has a size that depends on the numbers, such as `unique`.
    raise NotImplementedError("week 4 day 2 task 2: sort_by_expert")
