"""What one request sees of the pools of pages: a cache like Day 2.1's."""

from functools import partial

import torch

from ..paged_cache import PagedCache
from .masks import length_mask


class TinyKvPagedCache(PagedCache):
    """The keys and values of one request in one layer: a `TinyKvCache` of Day 2.1 in pages, see `PagedCache`.

    The blocks are gathered into one array at every call, which copies the past once per layer and token; attention that
    reads pages where they are comes on Day 3.2.
    """

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
        L = self._reserve(key.shape, mask_length)
        positions = self._positions(L, positions).to(key.device)
        if mask is None or isinstance(mask, str):
            mask = self.make_mask(L, key.dtype, positions=positions)
        array = partial(torch.tensor, device=key.device)
        slots, blocks = self._places.of(self.offset, self.offset + L, array)
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

    def _gather(self, pages: torch.Tensor, blocks: torch.Tensor, unused: torch.Tensor) -> torch.Tensor:
        """(1, Hkv, S, D): the first S positions of the request, from pages that may be anywhere; 0 where unused."""
        rows = pages.index_select(0, blocks).flatten(0, 1)
        return rows.masked_fill_(unused[:, None, None], 0).transpose(0, 1).unsqueeze(0)
