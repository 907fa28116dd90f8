"""A mixture of experts: an MLP of which each token uses k parts, that a router chooses. Given.

There is a class for each way to execute it; `mlp_of` chooses when a model is loaded.
"""

from collections.abc import Callable, Sequence
from typing import Any

import mlx.core as mx

from tiny_llm_engine.arrays.layers import ExpertMatrices, Linear
from tiny_llm_engine.models.layer_weights import ModelShape
from tiny_llm_extensions.kernels.mlx.expert_weights import Experts, QuantizedExperts, on_cpu, reads_no_count
from tiny_llm_extensions.parallel.groups import Group

from ..serving.parallel.shards import vocabulary_of
from .basics import linear_layer, silu
from .expert_parallel import run_on_ranks
from .grouped_product import grouped_matmul
from .quantized_weights import QuantizedWeights
from .qwen3_week2 import dense_mlp
from .router import combine_experts, route, sort_by_expert
from .tensor_parallel import sum_over_ranks


def experts_of(weights: Any) -> Experts:
    """The experts from an array (X, O, I), or from X matrices (O, I) as `linear_layer` takes them.

    An array stays one where MLX multiplies by it in one call.
    """
    if isinstance(weights, QuantizedExperts) or (isinstance(weights, mx.array) and reads_no_count(weights)):
        return weights
    matrices: Any = weights
    return ExpertMatrices(map(linear_layer, matrices))


def stack_experts(matrices: Sequence[Any]) -> Experts:
    """Quantised matrices of X experts as one weight: side by side on a CPU, an array on a GPU."""
    quantized = [each for each in matrices if isinstance(each, QuantizedWeights)]
    kinds = {(each.group_size, each.bits) for each in quantized}
    if len(quantized) < len(matrices) or len(kinds) > 1 or on_cpu():
        return ExpertMatrices(map(linear_layer, matrices))
    return _stack_quantized(quantized)


def _stack_quantized(matrices: Sequence[QuantizedWeights]) -> QuantizedExperts:
    """Quantised matrices as one; they have the same groups and bits."""
    weight, scales, biases = (mx.stack(list(part)) for part in zip(*(w.parts for w in matrices), strict=True))
    mx.eval(weight, scales, biases)
    return QuantizedExperts(weight, scales, biases, matrices[0].group_size, matrices[0].bits)


def packed_experts(experts: Experts, make: Callable[[Linear], Linear]) -> Experts:
    """The experts with each layer replaced by what `make` makes of it; quantised ones in one array stay."""
    if isinstance(experts, QuantizedExperts):
        return experts
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

    def __call__(self, x: mx.array) -> mx.array:
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
        return all(map(reads_no_count, (self.w_gate_up, self.w_down)))

    def pack(self, make: Callable[[Linear], Linear]) -> None:
        """Changes the layout of plain weights, expert by expert; meanwhile those of a layer are in memory twice."""
        self.w_router = make(self.w_router)
        self.w_gate_up = packed_experts(self.w_gate_up, make)
        self.w_down = packed_experts(self.w_down, make)

    def mix(self, rows: mx.array) -> mx.array:
        """(T, E) to (T, E)."""
        experts, weights = route(self.w_router(rows), self.k, self.renormalise)
        order, counts = sort_by_expert(experts, self.num_experts)
        outputs = self.outputs(rows[order // self.k], counts)
        return combine_experts(outputs, order, weights)

    def outputs(self, rows: mx.array, counts: mx.array) -> mx.array:
        """The MLP of each row's expert: (N, E), sorted by expert, and (X,) to (N, E)."""
        return self.compute(rows, counts)

    def compute(self, rows: mx.array, counts: mx.array) -> mx.array:
        """The same by the experts of this process."""
        gate, up = mx.split(grouped_matmul(rows, self.w_gate_up, counts), 2, axis=-1)
        return grouped_matmul(silu(gate) * up, self.w_down, counts)


class SummedMixture:
    """A mixture of which every rank has a part of F of each expert.

    Args:
        mixture: of this rank's parts.
        group: all ranks.
    """

    def __init__(self, mixture: MixtureOfExperts, group: Group):
        self.mixture, self.group = mixture, group

    def __call__(self, x: mx.array) -> mx.array:
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

    def __call__(self, x: mx.array) -> mx.array:
        """Every rank has all rows: it routes its share of them, and afterwards they gather the outputs."""
        rows, group = x.reshape(-1, x.shape[-1]), self.group
        share = -(-len(rows) // group.size)
        own = vocabulary_of(len(rows), group.rank, group.size)
        out = self.mix(rows[own.start : own.stop])
        padded = mx.pad(out, [(0, share - len(out)), (0, 0)])
        return group.all_gather(padded).flatten(0, 1)[: len(rows)].reshape(x.shape)

    @property
    def reads_no_count(self) -> bool:
        """See `MixtureOfExperts`: the ranks tell each other how many rows they send."""
        return False

    def outputs(self, rows: mx.array, counts: mx.array) -> mx.array:
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
    matrices = (weights[name] for name in ("w_router", "w_gate_up", "w_down"))
    parts = shape.num_experts_per_tok, shape.norm_topk_prob, *matrices
    if group is None:
        return MixtureOfExperts(*parts)
    if shape.ranks > 1:
        return ExpertParallelMixture(*parts, group=group)
    return SummedMixture(MixtureOfExperts(*parts), group)
