"""How keys and values stand in a row of bytes, and the way from a row into the pools of any port."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tiny_llm_engine.solutions.port import Port

PLAIN = {"float32": "<f4", "bfloat16": "<u2", "float16": "<f2"}  # NumPy has no bf16
CODES = {**PLAIN, "int8": "i1", "fp8_e4m3": "u1"}
MOST = 2**20  # of any number in a layout that another engine sends


@dataclass(frozen=True)
class Layout:
    """A block of all layers as one row of bytes, as `HostPages` writes it.

    Args:
        kind: of the numbers: a float type, "int8" with scales in bf16, or "fp8_e4m3".
        block_size: tokens per block.
        layers, heads, head_dim: of the keys and values.
    """

    kind: str
    block_size: int
    layers: int
    heads: int
    head_dim: int

    @classmethod
    def of(cls, kind: str, pools: Sequence[Any]) -> "Layout":
        """The layout of pools with numbers of a kind."""
        return cls(kind, pools[0].page_size, len(pools), *pools[0].keys.shape[1:])

    @classmethod
    def of_message(cls, message: Mapping[str, Any]) -> "Layout":
        """The layout that another engine has sent.

        Raises:
            ValueError: the message describes no valid layout.
        """
        made = cls(**message)
        numbers = [made.block_size, made.layers, made.heads, made.head_dim]
        if made.kind not in CODES or not all(type(each) is int and 0 < each <= MOST for each in numbers):
            raise ValueError(f"there is no layout {made}")
        return made

    @property
    def record(self) -> np.dtype:
        """The arrays of one layer, in the order of the pool's."""
        shape = self.block_size, self.heads, self.head_dim
        parts: list[Any] = [(name, CODES[self.kind], shape) for name in ("keys", "values")]
        if self.kind == "int8":
            parts += [(name, "<u2", shape[:2]) for name in ("key_scales", "value_scales")]
        return np.dtype(parts)

    @property
    def row_bytes(self) -> int:
        """Bytes of a row."""
        return self.layers * self.record.itemsize

    def why_not(self, other: "Layout") -> str | None:
        """Why rows of another engine cannot be copied into pools of this layout; None if they can."""
        mine, theirs = ((each.layers, each.heads, each.head_dim) for each in (self, other))
        if mine != theirs:
            return f"it has {theirs[0]} layers of {theirs[1]} heads of {theirs[2]}, and this model {mine}"
        if other.kind not in PLAIN and other.kind != self.kind:
            return f"its keys and values are kept in {other.kind}, and here in {self.kind}"
        return None


def write_row(
    port: Port, pools: Sequence[Any], layout: Layout, row: memoryview, part: slice, slots: Sequence[int]
) -> None:
    """Copies tokens of a row into the pools, whatever their own type is: floats by the solution's `adopt_row`.

    Args:
        layout: of the row; its numbers can be copied into these pools, see `Layout.why_not`.
        part: which tokens of the row.
        slots: where each of them goes.
    """
    places, record = port.array(list(slots)), layout.record
    if layout.kind in PLAIN:
        port.adopt_row(pools, row, layout.kind, part, places, port.dtype(port.float_dtype))
    else:  # as they are kept
        for pool, layer in zip(pools, np.frombuffer(row, record, layout.layers), strict=True):
            keys, values, *scales = (layer[name][part] for name in record.names or ())
            # bf16 is the first half of a float32.
            kept = ((each.astype("<u4") << 16).view("<f4") for each in scales)
            scales = [port.array(each, "bfloat16") for each in kept]
            pool.put(places, port.array(keys), port.array(values), *scales)
    port.backend_module.materialize(pools)
