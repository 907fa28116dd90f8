"""Paged KV cache: one pool of memory for all requests in a layer, and what one request sees of it."""

from collections.abc import Sequence
from typing import Any

import mlx.core as mx

from .quantized_pages import QuantizedPages, quantize_rows, to_fp8


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
        mx.eval(self.keys, self.values)  # memory that is not there is missed now, and not while requests run

    @property
    def key_pages(self) -> mx.array:
        """(num_blocks + 1, page_size, Hkv, D). Do not keep it: `write` copies an array that is held elsewhere."""
        return self.keys.reshape(-1, self.page_size, *self.keys.shape[1:])

    @property
    def value_pages(self) -> mx.array:
        """(num_blocks + 1, page_size, Hkv, D); see `key_pages`."""
        return self.values.reshape(-1, self.page_size, *self.values.shape[1:])

    def write(self, slots: mx.array, key: mx.array, value: mx.array) -> tuple[mx.array, mx.array]:
        """Writes T tokens into their slots, in place.

        Args:
            slots: (T,) integers; for padding those of the pad page.
            key, value: (T, Hkv, D).

        Returns:
            key, value: as they will be read from the pages.
        """
        self.keys[slots] = key
        self.values[slots] = value
        return key, value

    @property
    def arrays(self) -> tuple[mx.array, ...]:
        """All that `write` changes."""
        return self.keys, self.values

    def launch(self) -> None:
        """Begins to compute what is still lazy, and does not wait."""
        mx.async_eval(*self.arrays)

    def materialize(self) -> None:
        """Computes what is still lazy."""
        mx.eval(*self.arrays)


class QuantizedKvPool(TinyKvPagedPool):
    """A pool of pages in eight bits.

    Args:
        kv_cache_dtype: "int8", with a scale of 16 bits for each token and head, or "fp8_e4m3" without scales.
        dtype: of what is written and read; for the others see `TinyKvPagedPool`.
    """

    def __init__(
        self,
        num_blocks: int,
        page_size: int,
        num_kv_heads: int,
        head_dim: int,
        dtype: mx.Dtype,
        kv_cache_dtype: str,
    ):
        self.is_int8, self.dtype = kv_cache_dtype == "int8", dtype
        super().__init__(num_blocks, page_size, num_kv_heads, head_dim, mx.int8 if self.is_int8 else mx.uint8)
        self.scales = [mx.zeros(self.keys.shape[:2], mx.bfloat16) for _ in range(2)] if self.is_int8 else []
        mx.eval(self.scales)

    @property
    def key_pages(self) -> QuantizedPages:
        """(num_blocks + 1, page_size, Hkv, D). Do not keep it: `write` copies an array that is held elsewhere."""
        return self._pages(super().key_pages, 0)

    @property
    def value_pages(self) -> QuantizedPages:
        """(num_blocks + 1, page_size, Hkv, D); see `key_pages`."""
        return self._pages(super().value_pages, 1)

    def _pages(self, codes: mx.array, which: int) -> QuantizedPages:
        scales = self.scales[which].reshape(codes.shape[:3]) if self.is_int8 else None
        return QuantizedPages(codes, scales, self.dtype)

    def write(self, slots: mx.array, key: mx.array, value: mx.array) -> tuple[mx.array, mx.array]:
        """See `TinyKvPagedPool.write`."""
        kept = [self._kept(part) for part in (key, value)]
        super().write(slots, *(part.codes for part in kept))
        for scales, part in zip(self.scales, kept, strict=False):
            scales[slots] = part.arrays[1]
        return kept[0].numbers(), kept[1].numbers()

    def _kept(self, x: mx.array) -> QuantizedPages:
        codes, scales = quantize_rows(x) if self.is_int8 else (to_fp8(x), None)
        return QuantizedPages(codes, scales, self.dtype)

    @property
    def arrays(self) -> tuple[mx.array, ...]:
        """See `TinyKvPagedPool.arrays`."""
        return self.keys, self.values, *self.scales


class PagedPlaces:
    """Where the tokens of one request are in the pools, as arrays: made once per step, shared by all layers.

    Args:
        table: the request's.
    """

    def __init__(self, table: Any):
        self.table = table
        self._key: tuple[int, int, tuple[int, ...]] | None = None
        self._arrays: tuple[mx.array, mx.array] | None = None

    def of(self, start: int, stop: int) -> tuple[mx.array, mx.array]:
        """(stop - start,) slots of the tokens at these positions, and the blocks that hold all tokens before `stop`."""
        key = start, stop, tuple(self.table.blocks)
        if key != self._key or self._arrays is None:
            blocks = self.table.blocks[: -(-stop // self.table.allocator.block_size)]
            self._arrays = mx.array(self.table.slots(start, stop)), mx.array(blocks)
            self._key = key
        return self._arrays


class TinyKvPagedCache:
    """The keys and values of one request in one layer, in the blocks of its table. A `TinyKvCache` of Day 2.1.

    All layers of a request share one table. The blocks are gathered into one array at every call, which copies the
    past once per layer and token; attention that reads pages where they are comes on Day 3.2.

    Args:
        pool: the layer's.
        table: the request's.
        offset: tokens that are computed already, as `BlockTable.share` returns them.
        places: of `table`, shared with the caches of the other layers, see `of_layers`; its own when None.

    Raises:
        ValueError: pool and table have blocks of different sizes or numbers.
    """

    def __init__(self, pool: TinyKvPagedPool, table: Any, offset: int = 0, places: PagedPlaces | None = None):
        blocks = table.allocator.num_blocks, table.allocator.block_size
        if blocks != (pool.num_blocks, pool.page_size):
            raise ValueError(
                f"the allocator has {blocks[0]} blocks of {blocks[1]} tokens, "
                f"and the pool {pool.num_blocks} of {pool.page_size}: give both the same numbers"
            )
        self.pool, self.table, self.offset = pool, table, offset
        self.max_seq_len = pool.num_blocks * pool.page_size
        self._places = PagedPlaces(table) if places is None else places

    @classmethod
    def of_layers(
        cls, pools: Sequence[TinyKvPagedPool], table: Any, offset: int = 0
    ) -> list["TinyKvPagedCache"]:
        """A cache per layer for one request; they list the request's slots once per step, not once per layer."""
        places = PagedPlaces(table)
        return [cls(pool, table, offset, places) for pool in pools]

    def next_positions(self, B: int) -> list[int]:
        """Position of the next token; a paged cache has one row."""
        return [self.offset] * B

    def num_keys(self, L: int) -> int:
        """S: how many keys `update_and_fetch` returns for L more tokens: all that are filled then."""
        return self.offset + L

    def make_mask(
        self, L: int, dtype: mx.Dtype, *, positions: mx.array | None = None
    ) -> mx.array | str | None:
        """The causal mask of the next L tokens over the S = num_keys(L) keys, as a word; none for one token."""
        return None if L == 1 else "causal"

    def update_and_fetch(
        self,
        key: mx.array,
        value: mx.array,
        mask_length: int | None = None,
        mask: mx.array | str | None = None,
        *,
        positions: mx.array | None = None,
    ) -> tuple[mx.array, mx.array, int, mx.array | str | None]:
        """Writes the keys and values of L new tokens into the request's slots, and returns those of all its tokens.

        Args:
            key, value: (1, Hkv, L, D) of the new tokens.
            mask_length: L, or None: the mask is for the new tokens.
            mask: an array that fits the S keys returned, which passes through; "causal" or None makes one.
            positions: where the new tokens stand; this port needs only `offset`.

        Returns:
            key, value: (1, Hkv, S, D) of all tokens, S = num_keys(L).
            length: tokens held now.
            mask: for these S keys.

        Raises:
            OutOfBlocks: the new tokens need more blocks than are free; nothing has changed then.
            ValueError: several rows, a `mask_length` that is not L, or tokens whose blocks other requests may read.
        """
        B, _, L, _ = key.shape
        if B != 1:
            raise ValueError(f"{B} rows: the cache of a request has one; give each row its own table")
        if mask_length not in (None, L):
            raise ValueError(f"mask_length {mask_length} for {L} new tokens: the mask is for these")
        self._reserve(L)
        if mask is None or isinstance(mask, str):
            mask = self.make_mask(L, key.dtype)
        slots, blocks = self._places.of(self.offset, self.offset + L)
        self.pool.write(slots, key[0].swapaxes(0, 1), value[0].swapaxes(0, 1))
        S = self.num_keys(L)
        self.offset += L
        pages = self.pool.key_pages, self.pool.value_pages
        key, value = (self._gather(part, blocks, S) for part in pages)
        return key, value, self.offset, mask

    def _reserve(self, L: int) -> None:
        """Reserves room for L more tokens: the first layer of a step adds the blocks, the others find them there."""
        if self.offset < self.table.num_registered:
            raise ValueError(
                f"position {self.offset} is in a block that other requests may read: go on at "
                f"{self.table.num_registered}"
            )
        self.table.reserve(self.offset + L)

    def _gather(self, pages: mx.array | QuantizedPages, blocks: mx.array, S: int) -> mx.array:
        """(1, Hkv, S, D): the first S tokens of the request, from pages that may be anywhere."""
        rows = pages[blocks].flatten(0, 1)[:S]
        return rows.swapaxes(0, 1)[None]

    def rewind(self, n: int) -> None:
        """Forgets the last n tokens; the next ones are written over them. The blocks stay reserved.

        Raises:
            ValueError: n is negative, or more than the cache holds.
        """
        if not 0 <= n <= self.offset:
            raise ValueError(f"cannot rewind {n} of {self.offset} tokens")
        self.offset -= n

    def release(self) -> None:
        """Gives the blocks of the table back, for all layers, and forgets all tokens."""
        self.table.release()
        self.offset = 0

    def materialize(self) -> None:
        """Computes what is still lazy, so that a graph of many steps does not pile up."""
        self.pool.materialize()


def create_kv_pools(
    model: Any, num_blocks: int, page_size: int, kv_cache_dtype: str = "auto"
) -> list[TinyKvPagedPool]:
    """A pool per layer of a model, of `num_blocks` blocks of keys and values, shared by all requests.

    Args:
        kv_cache_dtype: "auto" keeps them in the model's type; for "int8" and "fp8_e4m3" see `QuantizedKvPool`.
    """
    config, weight = model.config, model.norm.weight
    sizes = num_blocks, page_size, config.num_key_value_heads, config.head_dim
    if kv_cache_dtype == "auto":
        return [TinyKvPagedPool(*sizes, weight.dtype) for _ in model.layers]
    return [QuantizedKvPool(*sizes, weight.dtype, kv_cache_dtype) for _ in model.layers]
