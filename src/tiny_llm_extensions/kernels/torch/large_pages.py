"""The packed matrices of small layers in one array: the processor looks up fewer addresses in large pages.

torch asks for large pages (`THP_MEM_ALLOC_ENABLE`, see `backend_torch`) for arrays that have one at least.
"""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import torch

from tiny_llm_engine.arrays.layers import Linear, matrix_and_bias, with_bias

from ..kernel_matrix import KernelMatrix
from ..product_ways import replace_matrices

PAGE = 2**21  # bytes
ALIGNED = 64  # bytes: a line of a matrix is a line of the cache


def in_large_pages(layers: Iterable[Any]) -> None:
    """Moves what is smaller than a large page into an array of its own, one matrix after the other.

    What has moved is free then, and the array's memory is taken as it is written: there is never a second copy.

    Args:
        layers: of packed matrices, which are replaced.
    """
    listed, sizes = list(layers), []

    def count(w: Linear) -> Linear:
        sizes.extend(map(_room_for, _small_parts(matrix_and_bias(w)[0]).values()))
        return w

    for layer in listed:
        replace_matrices(layer, count)
    places = iter(torch.empty(sum(sizes), dtype=torch.uint8).split(sizes))

    def move(w: Linear) -> Linear:
        matrix, bias = matrix_and_bias(w)
        parts = {name: _copied(part, next(places)) for name, part in _small_parts(matrix).items()}
        return with_bias(replace(matrix, **parts), bias)

    for layer in listed:
        replace_matrices(layer, move)


def _copied(array: torch.Tensor, place: torch.Tensor) -> torch.Tensor:
    return place[: array.nbytes].view(array.dtype).view(array.shape).copy_(array)


def _small_parts(matrix: KernelMatrix) -> dict[str, torch.Tensor]:
    parts = {name: getattr(matrix, name) for name in matrix.parts}
    return {name: part for name, part in parts.items() if part.nbytes < PAGE}


def _room_for(array: torch.Tensor) -> int:
    return -(-array.nbytes // ALIGNED) * ALIGNED
