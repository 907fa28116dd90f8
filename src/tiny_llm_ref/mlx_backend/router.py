"""A mixture of experts around its products: which experts compute a token, the order of their rows, and their sum."""

import mlx.core as mx


def route(logits: mx.array, k: int, renormalise: bool = True) -> tuple[mx.array, mx.array]:
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
    # `mx.topk` gives values without their places: sort the places.
    probabilities = mx.softmax(logits.astype(mx.float32), axis=-1)
    experts = mx.argsort(-probabilities, axis=-1)[:, :k]
    weights = mx.take_along_axis(probabilities, experts, axis=-1)
    return experts, weights / weights.sum(axis=-1, keepdims=True) if renormalise else weights


def sort_by_expert(experts: mx.array, num_experts: int) -> tuple[mx.array, mx.array]:
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
    # No loop over tokens, and no function whose result has a size that depends on the numbers.
    pairs = experts.flatten()
    return mx.argsort(pairs), mx.zeros(num_experts, mx.int32).at[pairs].add(1)


def combine_experts(outputs: mx.array, order: mx.array, weights: mx.array) -> mx.array:
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
    pairs = outputs[mx.argsort(order)].reshape(*weights.shape, outputs.shape[-1])
    return (pairs.astype(mx.float32) * weights[..., None]).sum(axis=1).astype(outputs.dtype)
