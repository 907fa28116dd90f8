"""The end of a mixture of experts: each token's weighted sum of what its experts have computed."""

import torch


def combine_experts(outputs: torch.Tensor, order: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """The outputs of the experts, summed for each token.

    Args:
        outputs: (T·k, E), in the order of the experts.
        order: (T·k,), from `sort_by_expert`: row i of `outputs` belongs to pair `order[i]`.
        weights: (T, k), from `route`.

    Returns:
        (T, E) in the type of `outputs`; the sum is computed in float32 and rounded once.
    """
    # TASK 4.2.4: the inverse of `order` brings every pair back to its token. Then a weighted sum over the k of a token.
    # Which row of `outputs` has pair p? The place of p in `order`: sorting `order` finds all of them.
    pairs = outputs[order.argsort()].reshape(*weights.shape, outputs.shape[-1])
    return (pairs.float() * weights[..., None]).sum(dim=1).to(outputs.dtype)
