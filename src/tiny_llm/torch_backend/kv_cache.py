"""The KV cache of one request: keys and values of its past tokens."""

from typing import Protocol

import torch
import torch.nn.functional as F

from tiny_llm_engine.arrays.torch import hpu
from tiny_llm_engine.arrays.torch.masks import length_mask

# A cache grows, and is read, in multiples of this many positions, so that 256 steps have the same shapes.
STEP = 256


def round_up(length: int) -> int:
    """The next multiple of `STEP`."""
    return -(-length // STEP) * STEP


class TinyKvCache(Protocol):
    """A cache as attention uses it: it takes the keys and values of new tokens, and returns all of them."""

    offset: int  # tokens held

    def next_positions(self, B: int) -> list[int]:
        """The position of the next token in each of B rows."""
        ...

    def num_keys(self, L: int) -> int:
        """S, the number of keys that `update_and_fetch` returns for L more tokens."""
        ...

    def make_mask(
        self, L: int, dtype: torch.dtype, *, positions: torch.Tensor | None = None
    ) -> torch.Tensor | str | None:
        """The causal mask of the next L tokens over these S keys, made once per step and shared by all layers."""

    def update_and_fetch(
        self,
        key: torch.Tensor,
        value: torch.Tensor,
        mask_length: int | None = None,
        mask: torch.Tensor | str | None = None,
        *,
        positions: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor, int, torch.Tensor | str | None]:
        """Stores L new tokens and returns all tokens: (key, value, length, mask)."""
        ...

    def rewind(self, n: int) -> None:
        """Drops the last n tokens."""

    def release(self) -> None:
        """Frees the memory."""

    def materialize(self) -> None:
        """Evaluates the arrays that are still lazy."""


class TinyKvFullCache:
    """Keys and values of one request in one layer, in memory allocated once, with the first token.

    New tokens are written at positions given as an array, so a graph compiler sees the same program for every
    position. More than the filled part is returned; a mask hides the rest.

    Args:
        max_seq_len: capacity in tokens. When None there is no limit, and the memory grows by `STEP` positions at a
            time: each time it is copied, and a graph compiler makes new programs.
    """

    def __init__(self, max_seq_len: int | None = None):
        self.max_seq_len = max_seq_len
        self.offset = 0
        self.keys: torch.Tensor | None = None
        self.values: torch.Tensor | None = None

    def next_positions(self, B: int) -> list[int]:
        """The position of the next token in each of B rows: after the tokens held, the same in every row."""
        return [self.offset] * B

    def num_keys(self, L: int) -> int:
        """S, the number of keys returned for L more tokens: a multiple of `STEP`, or L if the cache is empty."""
        return L if self._is_prompt(L) else round_up(self.offset + L)

    def _is_prompt(self, L: int) -> bool:
        # While the cache is empty, the new keys are all there is: no need to read them back from memory.
        return self.offset == 0 and L > 1

    def make_mask(
        self, L: int, dtype: torch.dtype, *, positions: torch.Tensor | None = None
    ) -> torch.Tensor | str | None:
        """The causal mask of the next L tokens over S = num_keys(L) keys: (L, S), or "causal" for an empty cache."""
        if self._is_prompt(L):
            return "causal"
        return length_mask(self._positions(L, positions), self.num_keys(L), dtype)

    def _positions(self, L: int, positions: torch.Tensor | None) -> torch.Tensor:
        """(L,): the given positions of the first row, or those after the tokens held."""
        if positions is None:
            return torch.arange(self.offset, self.offset + L)
        return positions.reshape(-1, L)[0]

    def update_and_fetch(
        self,
        key: torch.Tensor,
        value: torch.Tensor,
        mask_length: int | None = None,
        mask: torch.Tensor | str | None = None,
        *,
        positions: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor, int, torch.Tensor | str | None]:
        """Stores the keys and values of L new tokens, and returns those of all tokens.

        Args:
            key, value: (B, Hkv, L, D) of the new tokens.
            mask_length: L or None; the mask is always for the new tokens.
            mask: an array over the S keys returned, which is passed on; "causal" or None makes one.
            positions: (L,) or (B, L), the positions of the new tokens, the same in every row. Derived from `offset`
                when None, which is one more program for a graph compiler.

        Returns:
            key, value: (B, Hkv, S, D) of all tokens, S = num_keys(L); zeros after the last token.
            length: tokens held now.
            mask: for these S keys.

        Raises:
            ValueError: more tokens than fit, or a `mask_length` that is not L.
        """
        L = key.shape[2]
        if mask_length not in (None, L):
            raise ValueError(f"mask_length {mask_length} for {L} new tokens: the mask is for these")
        if self.max_seq_len is not None and self.offset + L > self.max_seq_len:
            raise ValueError(f"{self.offset} + {L} tokens do not fit: this cache holds {self.max_seq_len}")
        positions = self._positions(L, positions).to(key.device)
        S, is_prompt = self.num_keys(L), self._is_prompt(L)
        if mask is None or isinstance(mask, str):
            mask = self.make_mask(L, key.dtype, positions=positions)
        # TASK 2.1.2: make room, write the new tokens at their positions, count them, return the first S positions.
        # Make room for `max_seq_len` tokens once; without a limit, in steps.
        # index_copy_ takes the positions from an array; a slice would make them constants of the program.
        raise NotImplementedError("week 2 day 1 task 2: TinyKvFullCache.update_and_fetch")

    def rewind(self, n: int) -> None:
        """Drops the last n tokens; the next ones overwrite them.

        Raises:
            ValueError: n is negative, or more than the cache holds.
        """
        # TASK 2.1.3: only the count changes. Positions after it are hidden by the mask and overwritten later.
        raise NotImplementedError("week 2 day 1 task 3: TinyKvFullCache.rewind")

    def release(self) -> None:
        """Frees the memory and drops all tokens."""
        self.keys = self.values = None
        self.offset = 0

    def materialize(self) -> None:
        """Launches what a Gaudi's lazy mode has collected; elsewhere torch has computed already."""
        hpu.mark_step()
