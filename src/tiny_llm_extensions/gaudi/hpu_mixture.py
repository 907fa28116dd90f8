"""A mixture of experts on a Gaudi. Not run on a Gaudi."""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from tiny_llm_engine.arrays.layers import Linear

from ..parallel.groups import Group

Route = Callable[[torch.Tensor, int, bool], tuple[torch.Tensor, torch.Tensor]]


class StaticMixture:
    """A mixture on a Gaudi: no shape depends on how many rows an expert has, and no count is read on the host.

    Args:
        k: experts per token.
        renormalise: see `route`.
        w_router: (X, E).
        w_gate_up, w_down: of this rank's experts: arrays (X, 2F, E) and (X, E, F), or linear layers.
        route: Day 4.2's.
        group: the ranks, whose parts are added up; None is this process alone.
        first: the number of the first of this rank's experts.
    """

    def __init__(
        self,
        k: int,
        renormalise: bool,
        w_router: Linear,
        w_gate_up: Any,
        w_down: Any,
        *,
        route: Route,
        group: Group | None = None,
        first: int = 0,
    ):
        self.k, self.renormalise, self.w_router = k, renormalise, w_router
        self.w_gate_up, self.w_down = w_gate_up, w_down
        self.route, self.group, self.first = route, group, first
        # Intel's operator takes arrays as they are.
        self.multiply = F.linear if isinstance(w_gate_up, torch.Tensor) else lambda x, w: w(x)

    reads_no_count = True  # so a call can be traced

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """(..., E) to (..., E): every rank has all rows, and adds its experts' part."""
        rows = x.reshape(-1, x.shape[-1])
        experts, weights = self.route(self.w_router(rows), self.k, self.renormalise)
        matrices = self.w_gate_up, self.w_down
        out = mixture_of_experts(rows, experts, weights, *matrices, self.first, self.multiply)
        return (out if self.group is None else self.group.all_reduce(out)).reshape(x.shape)


def mixture_of_experts(
    x: torch.Tensor,
    experts: torch.Tensor,
    weights: torch.Tensor,
    w_gate_up: Any,
    w_down: Any,
    first: int = 0,
    multiply: Callable[..., torch.Tensor] = F.linear,
) -> torch.Tensor:
    """Each token's weighted sum of what its experts compute. Shapes do not depend on how many rows an expert has.

    Args:
        x: (T, E).
        experts, weights: (T, k), from `route`.
        w_gate_up: n matrices (2F, E); an array (n, 2F, E) on an HPU goes to Intel's operator.
        w_down: n matrices (E, F), likewise.
        first: the number of the first of these n experts; others of a token add nothing.
        multiply: x (T, I) and a matrix (O, I), of whatever kind they are, to (T, O).

    Returns:
        (T, E) in x's type.
    """
    if x.device.type != "hpu" or not isinstance(w_gate_up, torch.Tensor):
        return mixture_of_experts_twin(x, experts, weights, w_gate_up, w_down, first, multiply)
    # As in vLLM's plug-in: one matrix per expert, and the numbers of the first and the last of them.
    return torch.ops.hpu.mixture_of_experts(
        hidden_states=x,
        expert_routing_table=experts.long(),
        router_weights=weights.to(x.dtype),
        w12=list(w_gate_up.unbind()),
        w3=list(w_down.unbind()),
        permuted_weights=True,
        activation="silu",
        experts_min=first,
        experts_max=first + len(w_gate_up) - 1,
    )


def mixture_of_experts_twin(
    x: torch.Tensor,
    experts: torch.Tensor,
    weights: torch.Tensor,
    w_gate_up: Any,
    w_down: Any,
    first: int = 0,
    multiply: Callable[..., torch.Tensor] = F.linear,
) -> torch.Tensor:
    # Every expert computes all rows. A token that did not choose it counts 0.
    out = torch.zeros(x.shape, device=x.device)
    for expert, (w_in, w_out) in enumerate(zip(w_gate_up, w_down, strict=True), start=first):
        gate, up = multiply(x, w_in).chunk(2, dim=-1)
        share = torch.where(experts == expert, weights, 0).sum(dim=-1, keepdim=True)
        out = out + share * multiply(F.silu(gate) * up, w_out).float()
    return out.to(x.dtype)
