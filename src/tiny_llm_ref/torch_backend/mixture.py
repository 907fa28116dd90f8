"""A mixture of experts: an MLP of which each token uses k parts, that a router chooses. Given.

There is a class for each way to execute it; `mlp_of` chooses when a model is loaded.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch

from tiny_llm_engine.arrays.layers import ExpertMatrices, Linear
from tiny_llm_engine.models.layer_weights import MixtureShape, ModelShape
from tiny_llm_extensions.gaudi.hpu_mixture import StaticMixture
from tiny_llm_extensions.kernels.torch.expert_weights import Experts, has_grouped_kernel
from tiny_llm_extensions.parallel.groups import Group

from ..serving.parallel.shards import vocabulary_of
from .basics import linear_layer, silu
from .expert_parallel import run_on_ranks
from .grouped_product import grouped_matmul
from .qwen3_week2 import dense_mlp
from .router import combine_experts, route, sort_by_expert
from .tensor_parallel import sum_over_ranks


def experts_of(weights: Any) -> Experts:
    """The experts from an array (X, O, I) or from X matrices (O, I) as `linear_layer` takes them.

    An array stays one where torch multiplies by it in one call.
    """
    is_one = isinstance(weights, torch.Tensor) and has_grouped_kernel(weights)
    return weights if is_one else ExpertMatrices(map(linear_layer, weights))


def stack_experts(matrices: Sequence[Any]) -> Experts:
    """Quantised matrices of X experts as one weight."""
    return ExpertMatrices(map(linear_layer, matrices))


def packed_experts(experts: Experts, make: Callable[[Linear], Linear]) -> Experts:
    """The experts with each layer replaced by what `make` makes of it."""
    return ExpertMatrices(make(linear_layer(each)) for each in experts)


class MixtureOfExperts:
    """The MLP of a layer with X experts, each of them an MLP as `Qwen3MLP`, all in this process.

    Args:
        k: experts per token.
        renormalise: see `route`.
        w_router: (X, E).
        w_gate_up: X matrices (2F, E), see `experts_of`: an expert's gate above its up.
        w_down: X matrices (E, F).
    """

    def __init__(self, k: int, renormalise: bool, w_router: Any, w_gate_up: Any, w_down: Any):
        self.k, self.renormalise = k, renormalise
        self.w_router: Linear = linear_layer(w_router)
        self.num_experts = w_router.shape[0]
        self.w_gate_up: Experts = experts_of(w_gate_up)
        self.w_down: Experts = experts_of(w_down)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """
        Args:
            x: (..., E).

        Returns:
            (..., E); with several ranks x and the result are the same on all of them.
        """
        return self.mix(x.reshape(-1, x.shape[-1])).reshape(x.shape)

    @property
    def reads_no_count(self) -> bool:
        """Whether nothing is read on the host, so that a call can be traced."""
        return all(isinstance(each, torch.Tensor) for each in (self.w_gate_up, self.w_down))

    def pack(self, make: Callable[[Linear], Linear]) -> None:
        """Changes the layout of plain weights, expert by expert; meanwhile those of a layer are in memory twice."""
        self.w_router = make(self.w_router)
        self.w_gate_up = packed_experts(self.w_gate_up, make)
        self.w_down = packed_experts(self.w_down, make)

    def mix(self, rows: torch.Tensor) -> torch.Tensor:
        """(T, E) to (T, E)."""
        experts, weights = route(self.w_router(rows), self.k, self.renormalise)
        order, counts = sort_by_expert(experts, self.num_experts)
        outputs = self.outputs(rows[order // self.k], counts)
        return combine_experts(outputs, order, weights)

    def outputs(self, rows: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
        """The MLP of each row's expert: (N, E), sorted by expert, and (X,) to (N, E)."""
        return self.compute(rows, counts)

    def compute(self, rows: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
        """The same by the experts of this process."""
        gate, up = grouped_matmul(rows, self.w_gate_up, counts).chunk(2, dim=-1)
        return grouped_matmul(silu(gate) * up, self.w_down, counts)


class SummedMixture:
    """A mixture of which every rank has a part of F of each expert.

    Args:
        mixture: of this rank's parts.
        group: all ranks.
    """

    def __init__(self, mixture: MixtureOfExperts, group: Group):
        self.mixture, self.group = mixture, group

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """See `MixtureOfExperts`."""
        return sum_over_ranks(self.mixture(x), self.group)

    @property
    def reads_no_count(self) -> bool:
        """See `MixtureOfExperts`."""
        return self.mixture.reads_no_count

    def pack(self, make: Callable[[Linear], Linear]) -> None:
        """See `MixtureOfExperts`."""
        self.mixture.pack(make)


class ExpertParallelMixture(MixtureOfExperts):
    """A mixture of which every rank has X / size experts: rows go to the rank of their expert, and back.

    Args:
        k, renormalise, w_router, w_gate_up, w_down: see `MixtureOfExperts`; the matrices of this rank's experts.
        group: all ranks.
    """

    def __init__(
        self, k: int, renormalise: bool, w_router: Any, w_gate_up: Any, w_down: Any, *, group: Group
    ):
        super().__init__(k, renormalise, w_router, w_gate_up, w_down)
        self.group = group

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Every rank has all rows: it routes its share of them, and afterwards they gather the outputs."""
        rows, group = x.reshape(-1, x.shape[-1]), self.group
        share = -(-len(rows) // group.size)
        own = vocabulary_of(len(rows), group.rank, group.size)
        out = self.mix(rows[own.start : own.stop])
        padded = torch.nn.functional.pad(out, (0, 0, 0, share - len(out)))
        return group.all_gather(padded).flatten(0, 1)[: len(rows)].reshape(x.shape)

    @property
    def reads_no_count(self) -> bool:
        """See `MixtureOfExperts`: the ranks tell each other how many rows they send."""
        return False

    def outputs(self, rows: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
        """See `MixtureOfExperts`: by the experts of all ranks."""
        return run_on_ranks(rows, counts, self.compute, self.group)


def mlp_of(config: ModelShape, weights: dict[str, Any], group: Group | None = None) -> Callable:
    """The MLP of a layer, from the weights of `layer_weights`: a mixture where it has experts.

    Args:
        group: the ranks among which matrices or experts are divided; None if this process has all of them.
    """
    shape = config.mixture
    if shape is None or "w_router" not in weights:
        return dense_mlp(config, weights)
    if weights["w_router"].device.type == "hpu":
        return static_mixture(shape, weights, group)
    matrices = (weights[name] for name in ("w_router", "w_gate_up", "w_down"))
    parts = shape.num_experts_per_tok, shape.norm_topk_prob, *matrices
    if group is None:
        return MixtureOfExperts(*parts)
    if shape.ranks > 1:
        return ExpertParallelMixture(*parts, group=group)
    return SummedMixture(MixtureOfExperts(*parts), group)


def static_mixture(shape: MixtureShape, weights: dict[str, Any], group: Group | None) -> StaticMixture:
    """A mixture on a Gaudi; quantised experts are linear layers, and plain ones stay arrays."""
    first = 0 if group is None or shape.ranks == 1 else group.rank * shape.held_experts
    w_gate_up, w_down = (
        w if isinstance(w, torch.Tensor) else experts_of(w) for w in (weights["w_gate_up"], weights["w_down"])
    )
    parts = shape.num_experts_per_tok, shape.norm_topk_prob, linear_layer(weights["w_router"])
    return StaticMixture(*parts, w_gate_up, w_down, route=route, group=group, first=first)
