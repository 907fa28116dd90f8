"""The MLP of a layer: Day 2.1's, or a mixture of experts. Chosen when a model is loaded. Given."""

from collections.abc import Callable
from typing import Any

from tiny_llm_common.layer_weights import ModelShape

from ..groups import Group
from .hpu_mixture import StaticMixture
from .mixture import ExpertParallelMixture, MixtureOfExperts, SummedMixture
from .qwen3_week2 import dense_mlp


def mlp_of(config: ModelShape, weights: dict[str, Any], group: Group | None = None) -> Callable:
    """The MLP of a layer, from the weights of `layer_weights`: a mixture where it has experts.

    Args:
        group: the ranks among which matrices or experts are divided; None if this process has all of them.
    """
    shape = config.mixture
    if shape is None or "w_router" not in weights:
        return dense_mlp(config, weights)
    matrices = (weights[name] for name in ("w_router", "w_gate_up", "w_down"))
    parts = shape.num_experts_per_tok, shape.norm_topk_prob, *matrices
    if weights["w_router"].device.type == "hpu":
        first = 0 if group is None or shape.ranks == 1 else group.rank * shape.held_experts
        return StaticMixture(*parts, group=group, first=first)
    if group is None:
        return MixtureOfExperts(*parts)
    if shape.ranks > 1:
        return ExpertParallelMixture(*parts, group=group)
    return SummedMixture(MixtureOfExperts(*parts), group)
