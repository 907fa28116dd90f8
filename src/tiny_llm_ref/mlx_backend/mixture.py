"""A mixture of experts: an MLP of which each token uses k parts, that a router chooses. Given."""

from collections.abc import Callable
from typing import Any

import mlx.core as mx

from ..groups import ExpertParallelWeights, Group, RowParallelWeights
from ..layer_weights import MixtureShape
from ..native import between_products
from ..native.arrays import bytes_of, empty
from ..native.threads import threads_for
from ..serving.parallel.shards import vocabulary_of
from .basics import silu
from .combine_experts import combine_experts
from .expert_order import sort_by_expert
from .expert_parallel import run_on_ranks
from .expert_weights import ExpertMatrices, Experts, packed_experts, reads_no_count
from .grouped_product import grouped_product
from .native import NativeMatrix, _mlx_array, native_array
from .native_quantized import NativeQuantizedMatrix
from .projection import project
from .router import route
from .tensor_parallel import sum_over_ranks


class MixtureOfExperts:
    """The MLP of a layer with X experts, each of them an MLP as `Qwen3MLP`.

    Args:
        k: experts per token.
        renormalise: see `route`.
        w_router: (X, E).
        w_gate_up: `Experts`, X matrices (2F, E): an expert's gate above its up.
        w_down: `Experts`, X matrices (E, F). With `RowParallelWeights` every rank has a part of F of each expert; with
            `ExpertParallelWeights` every rank has X / size experts, here and in `w_gate_up`.
    """

    def __init__(
        self,
        k: int,
        renormalise: bool,
        w_router: mx.array,
        w_gate_up: Any,
        w_down: Any,
    ):
        self.k, self.renormalise = k, renormalise
        self.w_router: Any = w_router
        self.num_experts = w_router.shape[0]
        self.sums: Group | None = w_down.group if isinstance(w_down, RowParallelWeights) else None
        self.ranks: Group | None = w_down.group if isinstance(w_down, ExpertParallelWeights) else None
        self.w_gate_up: Experts = _held(w_gate_up)
        self.w_down: Experts = _held(w_down)

    def __call__(self, x: mx.array) -> mx.array:
        """
        Args:
            x: (..., E).

        Returns:
            (..., E); with several ranks x and the result are the same on all of them.
        """
        rows = x.reshape(-1, x.shape[-1])
        if self.ranks is not None:
            return self._on_ranks(rows, self.ranks).reshape(x.shape)
        out = self._mix(rows)
        return (out if self.sums is None else sum_over_ranks(out, self.sums)).reshape(x.shape)

    @property
    def reads_no_count(self) -> bool:
        """Whether nothing is read on the host, so that a call can be traced."""
        return self.ranks is None and all(map(reads_no_count, (self.w_gate_up, self.w_down)))

    def pack(self, pack_weight: Callable[[mx.array], Any]) -> None:
        """Changes the layout of plain weights, expert by expert; meanwhile those of a layer are in memory twice."""
        self.w_router = pack_weight(self.w_router)
        self.w_gate_up = packed_experts(self.w_gate_up, pack_weight)
        self.w_down = packed_experts(self.w_down, pack_weight)

    def _mix(self, rows: mx.array) -> mx.array:
        """(T, E) to (T, E), by the experts of this process and, with expert parallelism, of the others."""
        experts, weights = route(project(rows, self.w_router), self.k, self.renormalise)
        order, counts = sort_by_expert(experts, self.num_experts)
        pairs = rows[order // self.k]
        if self.ranks is None:
            outputs = self.compute(pairs, counts)
        else:
            outputs = run_on_ranks(pairs, counts, self.compute, self.ranks)
        return combine_experts(outputs, order, weights)

    def compute(self, rows: mx.array, counts: mx.array) -> mx.array:
        """The MLP of each row's expert: (N, E), sorted by expert, and (X,) to (N, E)."""
        hidden = _gated(grouped_product(rows, self.w_gate_up, counts), _has_kernel(self.w_down))
        return grouped_product(hidden, self.w_down, counts)

    def _on_ranks(self, rows: mx.array, group: Group) -> mx.array:
        """Every rank has all rows: it routes its share of them, and afterwards they gather the outputs."""
        share = -(-len(rows) // group.size)
        mine = vocabulary_of(len(rows), group.rank, group.size)
        out = self._mix(rows[mine.start : mine.stop])
        padded = mx.pad(out, [(0, share - len(out)), (0, 0)])
        return group.all_gather(padded).flatten(0, 1)[: len(rows)]


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
    first: Any = experts[0] if isinstance(experts, ExpertMatrices) else None
    return isinstance(getattr(first, "prepared", first), (NativeMatrix, NativeQuantizedMatrix))


def mixture_of(shape: MixtureShape, weights: dict[str, Any]) -> MixtureOfExperts:
    """The mixture of a layer, from the weights of `layer_weights`."""
    names = "w_router", "w_gate_up", "w_down"
    return MixtureOfExperts(
        shape.num_experts_per_tok, shape.norm_topk_prob, *(weights[name] for name in names)
    )


def _held(w: Any) -> Any:
    """The matrices that this process has."""
    return w.weight if isinstance(w, (RowParallelWeights, ExpertParallelWeights)) else w
