"""The tensors of a checkpoint by their published names: transformers stacks the experts of a layer, files do not."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

STACKED = {"gate_up_proj": ("gate_proj", "up_proj"), "down_proj": ("down_proj",)}


def published_tensors(name: str, tensor: Tensor) -> Iterator[tuple[str, Tensor]]:
    """Name and matrix of each expert for a stack (X, rows, columns); any other tensor as it is.

    `gate_up_proj` has the rows of two matrices, one above the other.
    """
    prefix, _, stack = name.rpartition(".experts.")
    if stack not in STACKED:
        yield name, tensor
        return
    kinds = STACKED[stack]
    for expert, matrices in enumerate(tensor):
        for kind, matrix in zip(kinds, matrices.chunk(len(kinds)), strict=True):
            yield f"{prefix}.experts.{expert}.{kind}.weight", matrix
