"""The KV cache of one request: keys and values of past tokens, kept where they were first written."""

from typing import Protocol

import mlx.core as mx

# A cache grows by so many positions at a time: growing copies it, which once a token would be too often.
STEP = 256


def round_up(length: int) -> int:
    """The next multiple of `STEP`."""
    return -(-length // STEP) * STEP


def length_mask(positions: mx.array, total_length: int, dtype: mx.Dtype = mx.float32) -> mx.array:
    """Who sees what in a cache of fixed length: a token sees its own position and those before it. Given.

    It hides later tokens, and also what lies behind the last one: places that nothing was written to yet. The
    positions are numbers in an array, so the mask of every position is made by the same operations.

    Args:
        positions: (..., L) integers, where the L query tokens stand.
        total_length: S, the length of the cache.

    Returns:
        (..., L, S): 0 where the key is visible, -inf where it is hidden.
    """
    keys = mx.arange(total_length)
    return mx.where(keys <= mx.expand_dims(positions, -1), 0.0, -mx.inf).astype(dtype)


class TinyKvCache(Protocol):
    """What attention needs of a cache: to add the new tokens' keys and values, and to get all of them back."""

    offset: int  # tokens held

    def next_positions(self, B: int) -> list[int]:
        """Where the next token of each of B rows stands."""

    def num_keys(self, L: int) -> int:
        """S: how many keys `update_and_fetch` returns for L more tokens."""

    def make_mask(
        self, L: int, dtype: mx.Dtype, *, positions: mx.array | None = None
    ) -> mx.array | str | None:
        """The causal mask of the next L tokens over these S keys, made once a step and shared by all layers."""

    def update_and_fetch(
        self,
        key: mx.array,
        value: mx.array,
        mask_length: int | None = None,
        mask: mx.array | str | None = None,
        *,
        positions: mx.array | None = None,
    ) -> tuple[mx.array, mx.array, int, mx.array | str | None]:
        """Keeps L new tokens and returns all: (key, value, length, mask)."""

    def rewind(self, n: int) -> None:
        """Forgets the last n tokens."""

    def release(self) -> None:
        """Gives the memory back."""

    def materialize(self) -> None:
        """Computes what is still lazy."""


class TinyKvFullCache:
    """Keys and values of one request in one layer, in memory that grows by `STEP` positions at a time.

    A new token is written in place; what is read back is the filled part.

    Args:
        max_seq_len: how many tokens fit; no limit when None.
    """

    def __init__(self, max_seq_len: int | None = None):
        self.max_seq_len = max_seq_len
        self.offset = 0
        self.keys: mx.array | None = None
        self.values: mx.array | None = None

    def next_positions(self, B: int) -> list[int]:
        """Where the next token of each of B rows stands: behind the tokens held, in every row."""
        return [self.offset] * B

    def num_keys(self, L: int) -> int:
        """S: how many keys `update_and_fetch` returns for L more tokens: all that are filled then."""
        return self.offset + L

    def make_mask(
        self, L: int, dtype: mx.Dtype, *, positions: mx.array | None = None
    ) -> mx.array | str | None:
        """The causal mask of the next L tokens over the S = num_keys(L) keys.

        The word is enough: the last token is last. One token sees everything and needs none.
        """
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
        """Keeps the keys and values of L new tokens, and returns those of all tokens.

        Args:
            key, value: (B, Hkv, L, D) of the new tokens.
            mask_length: L, or None: the mask is for the new tokens.
            mask: an array that fits the S keys returned, which passes through; "causal" or None makes one.
            positions: where the new tokens stand; this port's slices need only `offset`.

        Returns:
            key, value: (B, Hkv, S, D) of all tokens, S = num_keys(L).
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
        if mask is None or isinstance(mask, str):
            mask = self.make_mask(L, key.dtype)
        # TASK 2.1.1: make room in steps, write the new tokens behind the others, count them, hand out what is filled.
        # Assigning to a slice writes into the memory that is there; concatenating would copy the cache for every token.
        raise NotImplementedError("week 2 day 1 task 1: TinyKvFullCache.update_and_fetch")

    def rewind(self, n: int) -> None:
        """Forgets the last n tokens; the next ones are written over them.

        Raises:
            ValueError: n is negative, or more than the cache holds.
        """
        # TASK 2.1.2: only the count changes. What lies behind it is not handed out, and written over later.
        raise NotImplementedError("week 2 day 1 task 2: TinyKvFullCache.rewind")

    def release(self) -> None:
        """Gives the memory back and forgets all tokens."""
        self.keys = self.values = None
        self.offset = 0

    def materialize(self) -> None:
        """Computes what is still lazy, so that a graph of many steps does not pile up behind the cache."""
        if self.keys is not None:
            mx.eval(self.keys, self.values)
