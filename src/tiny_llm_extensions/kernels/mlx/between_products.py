"""What a layer computes between its products, by kernels of our own on a CPU."""

import mlx.core as mx

from ..native import between_products
from ..native.kernel import bytes_of, empty, threads_for
from .native import mlx_array, native_array


def gated(gate_up: mx.array) -> mx.array:
    """silu(gate) · up: (N, 2F) to (N, F).

    For 4,096 rows of 384 numbers in bf16 the kernel took a third of the time of MLX's operations.
    """
    rows = native_array(gate_up)
    y = empty((rows.shape[0], rows.shape[1] // 2), rows.dtype)
    between_products.gate(rows, y, threads_for(bytes_of(rows)))
    return mlx_array(y, y.shape[0])
