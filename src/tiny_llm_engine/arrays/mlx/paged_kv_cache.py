"""What one request sees of the pools of pages: a cache like Day 2.1's."""

import mlx.core as mx

from ..paged_cache import PagedCache
from .quantized_pages import QuantizedPages


class TinyKvPagedCache(PagedCache):
    """The keys and values of one request in one layer: a `TinyKvCache` of Day 2.1 in pages, see `PagedCache`.

    The blocks are gathered into one array at every call, which copies the past once per layer and token; attention that
    reads pages where they are comes on Day 3.2.
    """

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
        L = self._reserve(key.shape, mask_length)
        if mask is None or isinstance(mask, str):
            mask = self.make_mask(L, key.dtype)
        slots, blocks = self._places.of(self.offset, self.offset + L, mx.array)
        self.pool.write(slots, key[0].swapaxes(0, 1), value[0].swapaxes(0, 1))
        self.offset += L
        pages = self.pool.key_pages, self.pool.value_pages
        key, value = (self._gather(part, blocks) for part in pages)
        return key, value, self.offset, mask

    def _gather(self, pages: mx.array | QuantizedPages, blocks: mx.array) -> mx.array:
        """(1, Hkv, S, D): all tokens of the request, from pages that may be anywhere."""
        rows = pages[blocks].flatten(0, 1)[: self.offset]
        return rows.swapaxes(0, 1)[None]
