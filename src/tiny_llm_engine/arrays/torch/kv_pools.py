"""Pools of pages: the memory for the keys and values of all requests, in the model's type or in eight bits."""

import math
from itertools import chain
from typing import Any

import numpy as np
import torch

from . import hpu
from .quantized_pages import QuantizedPages, QuantizeRows, quantized

LINE = 64  # bytes of a cache line, at which each array begins


class TinyKvPagedPool:
    """Keys and values of all requests in one layer: `num_blocks` blocks of memory, called pages here, and a pad page.

    The memory is allocated once, as zeros, and written in place. A token is in slot block · page_size + offset. The
    page after the last block is for the tokens of padding. On a CPU only what has been written takes RAM.

    Args:
        num_blocks: as the `BlockAllocator` has it.
        page_size: tokens per block.
        num_kv_heads: Hkv.
        head_dim: D.
        dtype: type of keys and values.
        device: where the memory is; torch's default when None.
    """

    def __init__(
        self,
        num_blocks: int,
        page_size: int,
        num_kv_heads: int,
        head_dim: int,
        dtype: torch.dtype,
        *,
        device: torch.device | str | None = None,
    ):
        self.page_size = page_size
        # Zeros, and not what memory happens to hold: hidden keys get weight 0, and 0 · NaN is NaN.
        shape = ((num_blocks + 1) * page_size, num_kv_heads, head_dim)
        self._reserved = [_reserved_zeros(shape, dtype, device) for _ in range(2)]
        self.resize(num_blocks)

    def resize(self, num_blocks: int) -> None:
        """Has this many of the blocks that were reserved from now on. Copies nothing, and keeps what is in them."""
        self.num_blocks = num_blocks
        arrays = (array[: (num_blocks + 1) * self.page_size] for array in self._reserved)
        self.keys, self.values, *self.scales = arrays
        self.known_addresses: list[
            int
        ] = []  # of these arrays, as a kernel takes them; it fills in what it asked

    @property
    def key_pages(self) -> torch.Tensor:
        """(num_blocks + 1, page_size, Hkv, D), a view."""
        return self._pages(self.keys, 0)

    @property
    def value_pages(self) -> torch.Tensor:
        """(num_blocks + 1, page_size, Hkv, D), a view."""
        return self._pages(self.values, 1)

    def _pages(self, slots: torch.Tensor, which: int) -> Any:
        return slots.unflatten(0, (-1, self.page_size))

    def write(
        self, slots: torch.Tensor, key: torch.Tensor, value: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Writes T tokens into their slots, in place.

        Args:
            slots: (T,) integers; for padding those of the pad page.
            key, value: (T, Hkv, D).

        Returns:
            key, value: as they will be read from the pages.
        """
        self.put(slots, key, value)
        return key, value

    def put(self, slots: torch.Tensor, *parts: torch.Tensor) -> None:
        """Writes T tokens into their slots as they are kept: one array for each of `arrays`."""
        for array, part in zip(self.arrays, parts, strict=True):
            array.index_copy_(0, slots, part)

    @property
    def arrays(self) -> tuple[torch.Tensor, ...]:
        """All that `write` changes."""
        return self.keys, self.values, *self.scales

    def launch(self) -> None:
        """Begins what is still lazy, and does not wait."""
        hpu.mark_step()

    def materialize(self) -> None:
        """Launches what a Gaudi's lazy mode has collected; elsewhere torch has computed already."""
        hpu.mark_step()


class QuantizedKvPool(TinyKvPagedPool):
    """A pool of pages in eight bits.

    Args:
        quantize_rows: of a solution, for int8 with a scale of 16 bits for each token and head; None for e4m3 without
            scales.
        dtype: of what is written and read; for the others see `TinyKvPagedPool`.
    """

    def __init__(
        self,
        num_blocks: int,
        page_size: int,
        num_kv_heads: int,
        head_dim: int,
        dtype: torch.dtype,
        quantize_rows: QuantizeRows | None,
        *,
        device: torch.device | str | None = None,
    ):
        self.quantize_rows, self.is_int8, self.dtype = quantize_rows, quantize_rows is not None, dtype
        kind = torch.int8 if self.is_int8 else torch.uint8
        super().__init__(num_blocks, page_size, num_kv_heads, head_dim, kind, device=device)
        if self.is_int8:
            self._reserved += [
                _reserved_zeros(part.shape[:2], torch.bfloat16, device) for part in self._reserved
            ]
            self.resize(num_blocks)

    def _pages(self, slots: torch.Tensor, which: int) -> QuantizedPages:
        scales = super()._pages(self.scales[which], which) if self.is_int8 else None
        return QuantizedPages(super()._pages(slots, which), scales, self.dtype)

    def write(
        self, slots: torch.Tensor, key: torch.Tensor, value: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """See `TinyKvPagedPool.write`."""
        kept = [quantized(part, self.quantize_rows, self.dtype) for part in (key, value)]
        self.put(slots, *chain(*zip(*(pages.arrays for pages in kept), strict=True)))
        return kept[0].numbers(), kept[1].numbers()


def _reserved_zeros(
    shape: tuple[int, ...], dtype: torch.dtype, device: torch.device | str | None
) -> torch.Tensor:
    """Zeros. On a CPU they are pages that the system gives when they are first written."""
    if torch.empty(0, device=device).device.type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    size = math.prod(shape) * dtype.itemsize
    found = np.zeros(size + LINE, np.uint8)  # `torch.zeros` writes to every page
    start = -found.ctypes.data % LINE
    return torch.from_numpy(found[start : start + size]).view(dtype).reshape(shape)


def create_kv_pools(
    model: Any,
    num_blocks: int,
    page_size: int,
    kv_cache_dtype: str = "auto",
    *,
    quantize_rows: QuantizeRows,
    most_blocks: int | None = None,
) -> list[TinyKvPagedPool]:
    """A pool per layer of a model, of `num_blocks` blocks of keys and values, shared by all requests.

    Args:
        kv_cache_dtype: "auto" keeps them in the model's type; for "int8" and "fp8_e4m3" see `QuantizedKvPool`.
        quantize_rows: of the solution, which has given it to this function.
        most_blocks: what the pools may grow to; `num_blocks` when None.
    """
    config, weight = model.config, model.norm.weight
    reserved = most_blocks or num_blocks
    sizes = reserved, page_size, config.num_key_value_heads, config.head_dim, weight.dtype
    if kv_cache_dtype == "auto":
        pools: list[TinyKvPagedPool] = [TinyKvPagedPool(*sizes, device=weight.device) for _ in model.layers]
    else:
        rows = quantize_rows if kv_cache_dtype == "int8" else None
        pools = [QuantizedKvPool(*sizes, rows, device=weight.device) for _ in model.layers]
    for pool in pools:
        pool.resize(num_blocks)
    return pools
