"""Pools of pages: the memory for the keys and values of all requests, in the model's type or in eight bits."""

from itertools import chain
from typing import Any

import mlx.core as mx

from .quantized_pages import QuantizedPages, QuantizeRows, quantized


class TinyKvPagedPool:
    """Keys and values of all requests in one layer: `num_blocks` blocks of memory, called pages here, and a pad page.

    The memory is allocated once, as zeros, and written in place. A token is in slot block · page_size + offset. The
    page after the last block is for the tokens of padding.

    Args:
        num_blocks: as the `BlockAllocator` has it.
        page_size: tokens per block.
        num_kv_heads: Hkv.
        head_dim: D.
        dtype: type of keys and values.
    """

    def __init__(self, num_blocks: int, page_size: int, num_kv_heads: int, head_dim: int, dtype: mx.Dtype):
        self.num_blocks, self.page_size = num_blocks, page_size
        # Zeros, and not what memory happens to hold: hidden keys get weight 0, and 0 · NaN is NaN.
        shape = ((num_blocks + 1) * page_size, num_kv_heads, head_dim)
        self.keys, self.values = (mx.zeros(shape, dtype) for _ in range(2))
        self.scales: list[mx.array] = []
        self.known_addresses: list[int] = []  # where kernels have found the arrays, until MLX writes to them
        self.materialize()  # memory that is not there is missed now, and not while requests run

    @property
    def key_pages(self) -> mx.array:
        """(num_blocks + 1, page_size, Hkv, D). Do not keep it: `write` copies an array that is held elsewhere."""
        return self._pages(self.keys, 0)

    @property
    def value_pages(self) -> mx.array:
        """(num_blocks + 1, page_size, Hkv, D); see `key_pages`."""
        return self._pages(self.values, 1)

    def resize(self, num_blocks: int) -> None:
        """Has this many blocks from now on, more than before. Keeps what is in them.

        MLX makes arrays anew: for a moment this layer's old ones are in memory beside them.
        """
        more = (num_blocks - self.num_blocks) * self.page_size
        self.num_blocks, self.known_addresses = num_blocks, []
        self.keys, self.values, *self.scales = (
            mx.concatenate([array, mx.zeros((more, *array.shape[1:]), array.dtype)]) for array in self.arrays
        )
        self.materialize()

    def _pages(self, slots: mx.array, which: int) -> Any:
        return slots.reshape(-1, self.page_size, *slots.shape[1:])

    def write(self, slots: mx.array, key: mx.array, value: mx.array) -> tuple[mx.array, mx.array]:
        """Writes T tokens into their slots, in place.

        Args:
            slots: (T,) integers; for padding those of the pad page.
            key, value: (T, Hkv, D).

        Returns:
            key, value: as they will be read from the pages.
        """
        self.put(slots, key, value)
        return key, value

    def put(self, slots: mx.array, *parts: mx.array) -> None:
        """Writes T tokens into their slots as they are kept: one array for each of `arrays`."""
        for array, part in zip(self.arrays, parts, strict=True):
            array[slots] = part
        self.known_addresses = []  # MLX may have another array now

    @property
    def arrays(self) -> tuple[mx.array, ...]:
        """All that `write` changes."""
        return self.keys, self.values, *self.scales

    def launch(self) -> None:
        """Begins to compute what is still lazy, and does not wait."""
        mx.async_eval(*self.arrays)

    def materialize(self) -> None:
        """Computes what is still lazy."""
        mx.eval(*self.arrays)


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
        dtype: mx.Dtype,
        quantize_rows: QuantizeRows | None,
    ):
        self.quantize_rows, self.is_int8, self.dtype = quantize_rows, quantize_rows is not None, dtype
        super().__init__(num_blocks, page_size, num_kv_heads, head_dim, mx.int8 if self.is_int8 else mx.uint8)
        if self.is_int8:
            self.scales = [mx.zeros(part.shape[:2], mx.bfloat16) for part in self.arrays]
            self.materialize()

    def _pages(self, slots: mx.array, which: int) -> QuantizedPages:
        scales = super()._pages(self.scales[which], which) if self.is_int8 else None
        return QuantizedPages(super()._pages(slots, which), scales, self.dtype)

    def write(self, slots: mx.array, key: mx.array, value: mx.array) -> tuple[mx.array, mx.array]:
        """See `TinyKvPagedPool.write`."""
        kept = [quantized(part, self.quantize_rows, self.dtype) for part in (key, value)]
        self.put(slots, *chain(*zip(*(pages.arrays for pages in kept), strict=True)))
        return kept[0].numbers(), kept[1].numbers()


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
        most_blocks: what the pools may grow to. MLX reserves nothing for it.
    """
    config, weight = model.config, model.norm.weight
    sizes = num_blocks, page_size, config.num_key_value_heads, config.head_dim, weight.dtype
    if kv_cache_dtype == "auto":
        return [TinyKvPagedPool(*sizes) for _ in model.layers]
    rows = quantize_rows if kv_cache_dtype == "int8" else None
    return [QuantizedKvPool(*sizes, rows) for _ in model.layers]
