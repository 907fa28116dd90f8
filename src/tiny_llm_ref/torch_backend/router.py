"""The router of a mixture of experts: which experts compute a token, and what each one counts."""

import torch


def route(logits: torch.Tensor, k: int, renormalise: bool = True) -> tuple[torch.Tensor, torch.Tensor]:
    """The k most probable experts of each token (Shazeer et al., 2017; Fedus et al., 2021).

    Args:
        logits: (T, X), a score of every expert for each of T tokens.
        k: experts per token.
        renormalise: whether the k weights of a token are divided by their sum, as in Mixtral; in Qwen3-MoE
            `norm_topk_prob` says so.

    Returns:
        experts: (T, k) integers from 0 to X - 1, the most probable one first.
        weights: (T, k) float32, the probability of each among all X experts; after `renormalise` their sum is 1.
    """
    # TASK 4.2.1: softmax over all experts in float32, then the k largest, then their sum, if asked for.
    # The order matters without renormalisation: a softmax of k logits alone always has the sum 1.
    weights, experts = logits.float().softmax(dim=-1).topk(k, dim=-1)
    return experts, weights / weights.sum(dim=-1, keepdim=True) if renormalise else weights
