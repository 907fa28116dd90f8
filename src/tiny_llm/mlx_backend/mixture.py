"""A mixture of experts: an MLP of which each token uses k parts, that a router chooses. Given.

There is a class for each way to execute it; `mlp_of` in `layer_mlp.py` chooses when a model is loaded.
"""

from collections.abc import Callable
from typing import Any

import mlx.core as mx

from ..groups import Group
from ..native import between_products
from ..native.arrays import bytes_of, empty
from ..native.threads import threads_for
from ..serving.parallel.shards import vocabulary_of
from .basics import silu
from .combine_experts import combine_experts
from .expert_order import sort_by_expert
from .expert_parallel import run_on_ranks
from .expert_weights import ExpertMatrices, Experts, experts_of, packed_experts, reads_no_count
from .grouped_product import grouped_product
from .linear_layer import Linear, linear_layer
from .native import NativeMatrix, _mlx_array, native_array
from .native_quantized import NativeQuantizedMatrix
from .router import route
from .tensor_parallel import sum_over_ranks


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
        hidden = _gated(grouped_product(rows, self.w_gate_up, counts), _has_kernel(self.w_down))
        return grouped_product(hidden, self.w_down, counts)


def _gated(gate_up: mx.array, by_kernel: bool) -> mx.array:
    """silu(gate) · up: (N, 2F) to (N, F), by the kernel of Day 4.1 where the products are kernels.

    For 4,096 rows of 384 numbers in bf16 the kernel took a third of the time on a CPU.
    """
    if not by_kernel:
        gate, up = mx.split(gate_up, 2, axis=-1)
        return silu(gate) * up
    rows = native_array(gate_up)
    y = empty((rows.shape[0], rows.shape[1] // 2), rows.dtype)
    between_products.gate(rows, y, threads_for(bytes_of(rows)))
    return _mlx_array(y, y.shape[0])


def _has_kernel(experts: Experts) -> bool:
    """Whether the products with these matrices are kernels of Day 4.1."""
    first = experts[0] if isinstance(experts, ExpertMatrices) else None
    return isinstance(first, (NativeMatrix, NativeQuantizedMatrix))


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
