"""The KV cache of one request: keys and values of past tokens, kept where they were first written."""

from typing import Protocol

import torch
import torch.nn.functional as F

# A cache is read, and grows, in multiples of this many positions, so that the shapes of 256 steps are the same.
STEP = 256


def round_up(length: int) -> int:
    """The next multiple of `STEP`."""
    return -(-length // STEP) * STEP


def length_mask(
    positions: torch.Tensor, total_length: int, dtype: torch.dtype = torch.float32
) -> torch.Tensor:
    """Who sees what in a cache of fixed length: a token sees its own position and those before it. Given.

    It hides later tokens, and also what lies behind the last one: places that nothing was written to yet. The
    positions are numbers in an array, so the mask of every position is made by the same operations.

    Args:
        positions: (..., L) integers, where the L query tokens stand.
        total_length: S, the length of the cache.

    Returns:
        (..., L, S): 0 where the key is visible, -inf where it is hidden.
    """
    keys = torch.arange(total_length, device=positions.device)
    return torch.where(keys <= positions.unsqueeze(-1), 0.0, -torch.inf).to(dtype)


class TinyKvCache(Protocol):
    """What attention needs of a cache: to add the new tokens' keys and values, and to get all of them back."""

    offset: int  # tokens held

    def next_positions(self, B: int) -> list[int]:
        """Where the next token of each of B rows stands."""

    def num_keys(self, L: int) -> int:
        """S: how many keys `update_and_fetch` returns for L more tokens."""

    def make_mask(
        self, L: int, dtype: torch.dtype, *, positions: torch.Tensor | None = None
    ) -> torch.Tensor | str | None:
        """The causal mask of the next L tokens over these S keys, made once a step and shared by all layers."""

    def update_and_fetch(
        self,
        key: torch.Tensor,
        value: torch.Tensor,
        mask_length: int | None = None,
        mask: torch.Tensor | str | None = None,
        *,
        positions: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor, int, torch.Tensor | str | None]:
        """Keeps L new tokens and returns all: (key, value, length, mask)."""

    def rewind(self, n: int) -> None:
        """Forgets the last n tokens."""

    def release(self) -> None:
        """Gives the memory back."""

    def materialize(self) -> None:
        """Computes what is still lazy."""


class TinyKvFullCache:
    """Keys and values of one request in one layer, in memory that is there from the first token on.

    A new token is written at its position, given as an array, so a graph compiler sees the same program for every
    position. What is read back is longer than what is filled; a mask hides the rest.

    Args:
        max_seq_len: how many tokens fit. When None there is no limit, and the memory grows by `STEP` positions at a
            time: each time it moves, and a graph compiler makes new programs.
    """

    def __init__(self, max_seq_len: int | None = None):
        self.max_seq_len = max_seq_len
        self.offset = 0
        self.keys: torch.Tensor | None = None
        self.values: torch.Tensor | None = None

    def next_positions(self, B: int) -> list[int]:
        """Where the next token of each of B rows stands: behind the tokens held, in every row."""
        return [self.offset] * B

    def num_keys(self, L: int) -> int:
        """S: how many keys `update_and_fetch` returns for L more tokens: a multiple of `STEP`, or L without a past."""
        return L if self._is_prompt(L) else round_up(self.offset + L)

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
        """(L,): those given, from the first row, or those behind the tokens held."""
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
        """Keeps the keys and values of L new tokens, and returns those of all tokens.

        Args:
            key, value: (B, Hkv, L, D) of the new tokens.
            mask_length: L, or None: the mask is for the new tokens.
            mask: an array that fits the S keys returned, which passes through; "causal" or None makes one.
            positions: (L,) or (B, L), the same in every row; where the new tokens stand. Derived from `offset` when
                None, which is one more program for a graph compiler.

        Returns:
            key, value: (B, Hkv, S, D) of all tokens, S = num_keys(L); zeros behind the last token.
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
        # TASK 2.1.1: make room, write the new tokens at their positions, count them, hand out the first S positions.
        # Room for all that may come, once; without a limit, in steps.
        # index_copy_ takes the positions from an array; a slice would put them into the program as numbers.
        room = round_up(self.max_seq_len or self.offset + L)
        if self.keys is None:
            B, Hkv, _, D = key.shape
            self.keys = key.new_zeros(B, Hkv, room, D)
            self.values = torch.zeros_like(self.keys)
        elif self.keys.shape[2] < room:
            longer = (0, 0, 0, room - self.keys.shape[2])
            self.keys, self.values = F.pad(self.keys, longer), F.pad(self.values, longer)
        self.keys.index_copy_(2, positions, key)
        self.values.index_copy_(2, positions, value)
        self.offset += L
        if is_prompt:
            return key, value, self.offset, mask
        return self.keys[:, :, :S], self.values[:, :, :S], self.offset, mask

    def rewind(self, n: int) -> None:
        """Forgets the last n tokens; the next ones are written over them.

        Raises:
            ValueError: n is negative, or more than the cache holds.
        """
        # TASK 2.1.2: only the count changes. What lies behind it is hidden by the mask and written over later.
        if not 0 <= n <= self.offset:
            raise ValueError(f"cannot rewind {n} of {self.offset} tokens")
        self.offset -= n

    def release(self) -> None:
        """Gives the memory back and forgets all tokens."""
        self.keys = self.values = None
        self.offset = 0

    def materialize(self) -> None:
        """Nothing to do: this library computes at once."""
