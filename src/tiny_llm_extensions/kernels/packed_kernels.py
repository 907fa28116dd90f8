"""Attention of packed batches by other kernels than Day 3.3's."""

from collections.abc import Callable
from typing import Any, NamedTuple

from tiny_llm_engine.arrays.layers import Array
from tiny_llm_engine.arrays.windows import inner_layer


class PackedKernels(NamedTuple):
    """Two functions that belong together: the second one gets what the first one returns.

    Args:
        mask: takes the arguments of Day 3.3's `packed_mask`.
        attend: takes the arguments of Day 3.3's `packed_attention`, and returns the same.
    """

    mask: Callable[..., Any]
    attend: Callable[..., Array]

    def put_on(self, model: Any) -> None:
        """Replaces those of a model of Week 3."""
        model.packed_mask = self.mask
        for layer in map(inner_layer, model.layers):
            layer.packed_attention = self.attend
