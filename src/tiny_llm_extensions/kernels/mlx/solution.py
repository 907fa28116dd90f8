"""What given code asks of one port of a solution."""

from collections.abc import Callable
from typing import Any, Protocol

import mlx.core as mx

from ..native import NativeKernels


class MlxSolution(Protocol):
    """The names of the package of a port, for example of the module `tiny_llm_ref.mlx_backend`."""

    NATIVE: NativeKernels
    Embedding: type
    PackedEmbedding: type
    fused_attention: Callable[..., mx.array]  # Day 2.4's

    def linear(self, x: mx.array, w: mx.array, bias: mx.array | None = None) -> mx.array:
        """Day 1.1's."""
        ...

    def prepare_weights(self, w: Any, form: str = "kernel") -> Any:
        """Day 2.3's."""
        ...
