"""Linear layers with a bf16 matrix on a CPU: other products than torch's usual one, and oneDNN's layout."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from .operators import operator

Multiply = Callable[[torch.Tensor, Any, torch.Tensor | None], torch.Tensor]
ROWS = (1, 4, 16, 128)  # at which the ways are compared


@dataclass(frozen=True, eq=False)
class PlainLinear:
    """A plain matrix whose product depends on the number of rows.

    Args:
        weight: (O, I).
        bias: (O,) or None.
        ways: the product for each of `ROWS`.
    """

    weight: torch.Tensor
    bias: torch.Tensor | None
    ways: tuple[Multiply, ...]

    @property
    def shape(self) -> tuple[int, int]:
        return self.weight.shape[0], self.weight.shape[1]

    @property
    def nbytes(self) -> int:
        return self.weight.nbytes

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return self.ways[_place(x.numel() // x.shape[-1])](x, self.weight, self.bias)


def _place(rows: Any) -> int:
    """The place in `ROWS` of the number that stands for this one; the borders are geometric means.

    Every border is one more graph where something is compiled: there 16 rows count as many.
    """
    if rows == 1:
        return 0
    if torch.compiler.is_compiling():
        return 3 if rows > 8 else 1
    return 1 + (rows > 8) + (rows > 45)


def by_vector(x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """One row, by torch's product for vectors."""
    out = torch.mv(w, x.reshape(-1)).view(*x.shape[:-1], -1)
    return out if bias is None else out + bias


TILE = 256  # rows of w that are converted to float32 at a time: they stay in the processor's cache until they are used


def by_tiles(x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """The product of bf16 numbers in float32, tile by tile: the whole weight never exists in float32.

    On a processor without bf16 units the time of a bf16 product grows in proportion to its rows. Here the weight must
    be converted, but further rows cost little.
    """
    wide = x.float()
    out = torch.cat([(wide @ tile.float().T).to(x.dtype) for tile in w.split(TILE)], dim=-1)
    return out if bias is None else out + bias


# Rows that the layout of packed weights is made for. Measured on a CPU with AMX: of 1, 4, 16 and 64 this was fastest
# over all numbers of rows.
PACKED_ROWS = 16


@dataclass(frozen=True, eq=False)
class PackedLinear:
    """A matrix (O, I) in oneDNN's layout, which only oneDNN can read.

    Args:
        packed: an array of torch with that memory.
        bias: (O,) or None.
    """

    packed: torch.Tensor
    bias: torch.Tensor | None = None

    @classmethod
    def of(cls, w: torch.Tensor, bias: torch.Tensor | None = None) -> "PackedLinear":
        """Packs a matrix."""
        return cls(torch.ops.mkldnn._reorder_linear_weight(w.contiguous(), PACKED_ROWS), bias)

    @property
    def shape(self) -> tuple[int, int]:
        return self.packed.shape[0], self.packed.shape[1]

    @property
    def nbytes(self) -> int:
        return self.packed.numel() * self.packed.element_size()

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return _LINEAR(x, self.packed, self.bias)


# Inductor takes oneDNN's operator only with weights that are constants of a graph, and then each layer would need a
# separate graph.
_LINEAR = operator(
    "packed_linear(Tensor x, Tensor w, Tensor? bias) -> Tensor",
    lambda x, w, bias: torch.ops.mkldnn._linear_pointwise(x, w, bias, "none", [], ""),
    lambda x, w, bias: x.new_empty(*x.shape[:-1], w.shape[0]),
)
