"""Paged KV cache: one pool of memory for all requests in a layer, and what one request sees of it."""

from collections.abc import Sequence
from typing import Any

import torch

from . import hpu
from .masks import length_mask
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
        self.num_blocks, self.page_size = num_blocks, page_size
        # Zeros, and not what memory happens to hold: hidden keys get weight 0, and 0 · NaN is NaN.
        shape = ((num_blocks + 1) * page_size, num_kv_heads, head_dim)
        self.keys, self.values = (torch.zeros(shape, dtype=dtype, device=device) for _ in range(2))

    @property
    def key_pages(self) -> torch.Tensor:
        """(num_blocks + 1, page_size, Hkv, D), a view."""
        return self.keys.unflatten(0, (-1, self.page_size))

    @property
    def value_pages(self) -> torch.Tensor:
        """(num_blocks + 1, page_size, Hkv, D), a view."""
        return self.values.unflatten(0, (-1, self.page_size))

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
        self.keys.index_copy_(0, slots, key)
        self.values.index_copy_(0, slots, value)
        return key, value

    @property
    def arrays(self) -> tuple[torch.Tensor, ...]:
        """All that `write` changes."""
        return self.keys, self.values

    def launch(self) -> None:
        """Begins what is still lazy, and does not wait."""
        hpu.mark_step()

    def materialize(self) -> None:
        """Launches what a Gaudi's lazy mode has collected; elsewhere torch has computed already."""
        hpu.mark_step()


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
        dtype: torch.dtype,
        kv_cache_dtype: str,
        *,
        device: torch.device | str | None = None,
    ):
        self.is_int8, self.dtype = kv_cache_dtype == "int8", dtype
        kind = torch.int8 if self.is_int8 else torch.uint8
        super().__init__(num_blocks, page_size, num_kv_heads, head_dim, kind, device=device)
        shape, of_scales = self.keys.shape[:2], torch.bfloat16
        self.scales = [torch.zeros(shape, dtype=of_scales, device=device) for _ in range(2 * self.is_int8)]

    @property
    def key_pages(self) -> QuantizedPages:
        """(num_blocks + 1, page_size, Hkv, D), a view."""
        return self._pages(super().key_pages, 0)

    @property
    def value_pages(self) -> QuantizedPages:
        """(num_blocks + 1, page_size, Hkv, D), a view."""
        return self._pages(super().value_pages, 1)

    def _pages(self, codes: torch.Tensor, which: int) -> QuantizedPages:
        scales = self.scales[which].view(codes.shape[:3]) if self.is_int8 else None
        return QuantizedPages(codes, scales, self.dtype)

    def write(
        self, slots: torch.Tensor, key: torch.Tensor, value: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """See `TinyKvPagedPool.write`."""
        kept = [self._kept(part) for part in (key, value)]
        super().write(slots, *(part.codes for part in kept))
        for scales, part in zip(self.scales, kept, strict=False):
            scales.index_copy_(0, slots, part.arrays[1])
        return kept[0].numbers(), kept[1].numbers()

    def _kept(self, x: torch.Tensor) -> QuantizedPages:
        codes, scales = quantize_rows(x) if self.is_int8 else (to_fp8(x), None)
        return QuantizedPages(codes, scales, self.dtype)

    @property
    def arrays(self) -> tuple[torch.Tensor, ...]:
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
        self._arrays: tuple[torch.Tensor, torch.Tensor] | None = None

    def of(self, start: int, stop: int, *, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
        """(stop - start,) slots of the tokens at these positions, and the blocks that hold all tokens before `stop`."""
        key = start, stop, tuple(self.table.blocks)
        if key != self._key or self._arrays is None:
            blocks = self.table.blocks[: -(-stop // self.table.allocator.block_size)]
            self._arrays = (
                torch.tensor(self.table.slots(start, stop), device=device),
                torch.tensor(blocks, device=device),
            )
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
        """S: how many keys `update_and_fetch` returns for L more tokens: whole pages, or L without a past."""
        if self._is_prompt(L):
            return L
        return -(-(self.offset + L) // self.pool.page_size) * self.pool.page_size

    def _is_prompt(self, L: int) -> bool:
        # Without a past, the tokens' own keys are all there is: no need to read them back from memory.
        return self.offset == 0 and L > 1

    def make_mask(
        self, L: int, dtype: torch.dtype, *, positions: torch.Tensor | None = None
    ) -> torch.Tensor | str | None:
        """The causal mask of the next L tokens over the S = num_keys(L) keys: (L, S), or "causal" without a past."""
        if self._is_prompt(L):
            return "causal"
        return length_mask(self._positions(L, positions), self.num_keys(L), dtype)

    def _positions(self, L: int, positions: torch.Tensor | None) -> torch.Tensor:
        """(L,): those given, or those after the tokens held."""
        if positions is None:
            return torch.arange(self.offset, self.offset + L)
        return positions.reshape(L)

    def update_and_fetch(
        self,
        key: torch.Tensor,
        value: torch.Tensor,
        mask_length: int | None = None,
        mask: torch.Tensor | str | None = None,
        *,
        positions: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor, int, torch.Tensor | str | None]:
        """Writes the keys and values of L new tokens into the request's slots, and returns those of all its tokens.

        Args:
            key, value: (1, Hkv, L, D) of the new tokens.
            mask_length: L, or None: the mask is for the new tokens.
            mask: an array that fits the S keys returned, which passes through; "causal" or None makes one.
            positions: (L,) or (1, L), where the new tokens stand; derived from `offset` when None.

        Returns:
            key, value: (1, Hkv, S, D) of all tokens, S = num_keys(L); zeros after the last token.
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
        positions = self._positions(L, positions).to(key.device)
        if mask is None or isinstance(mask, str):
            mask = self.make_mask(L, key.dtype, positions=positions)
        slots, blocks = self._places.of(self.offset, self.offset + L, device=key.device)
        kept = self.pool.write(slots, key[0].transpose(0, 1), value[0].transpose(0, 1))
        S, is_prompt = self.num_keys(L), self._is_prompt(L)
        self.offset += L
        if is_prompt:
            key, value = (part.transpose(0, 1)[None] for part in kept)
            return key, value, self.offset, mask
        # The end of the last page holds what an earlier request left there. A mask does not hide NaN.
        unused = torch.arange(S, device=key.device) > positions[-1]
        pages = self.pool.key_pages, self.pool.value_pages
        key, value = (self._gather(part, blocks, unused) for part in pages)
        return key, value, self.offset, mask

    def _reserve(self, L: int) -> None:
        """Reserves room for L more tokens: the first layer of a step adds the blocks, the others find them there."""
        if self.offset < self.table.num_registered:
            raise ValueError(
                f"position {self.offset} is in a block that other requests may read: go on at "
                f"{self.table.num_registered}"
            )
        self.table.reserve(self.offset + L)

    def _gather(self, pages: torch.Tensor, blocks: torch.Tensor, unused: torch.Tensor) -> torch.Tensor:
        """(1, Hkv, S, D): the first S positions of the request, from pages that may be anywhere; 0 where unused."""
        rows = pages.index_select(0, blocks).flatten(0, 1)
        return rows.masked_fill_(unused[:, None, None], 0).transpose(0, 1).unsqueeze(0)

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
        """Launches what a Gaudi's lazy mode has collected; elsewhere torch has computed already."""
        hpu.mark_step()


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
        return [TinyKvPagedPool(*sizes, weight.dtype, device=weight.device) for _ in model.layers]
    kinds = weight.dtype, kv_cache_dtype
    return [QuantizedKvPool(*sizes, *kinds, device=weight.device) for _ in model.layers]
