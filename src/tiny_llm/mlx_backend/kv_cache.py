"""The KV cache of one request: keys and values of its past tokens."""

from typing import Protocol

import mlx.core as mx

# A cache grows in steps of this many positions: growing copies it, so it must not happen once per token.
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
        self, L: int, dtype: mx.Dtype, *, positions: mx.array | None = None
    ) -> mx.array | str | None:
        """The causal mask of the next L tokens over these S keys, made once per step and shared by all layers."""

    def update_and_fetch(
        self,
        key: mx.array,
        value: mx.array,
        mask_length: int | None = None,
        mask: mx.array | str | None = None,
        *,
        positions: mx.array | None = None,
    ) -> tuple[mx.array, mx.array, int, mx.array | str | None]:
        """Stores L new tokens and returns all tokens: (key, value, length, mask)."""
        ...

    def rewind(self, n: int) -> None:
        """Drops the last n tokens."""

    def release(self) -> None:
        """Frees the memory."""

    def materialize(self) -> None:
        """Evaluates the arrays that are still lazy."""


class TinyKvFullCache:
    """Keys and values of one request in one layer, in memory that grows by `STEP` positions at a time.

    New tokens are written in place, and only the filled part is returned.

    Args:
        max_seq_len: capacity in tokens; no limit when None.
    """

    def __init__(self, max_seq_len: int | None = None):
        self.max_seq_len = max_seq_len
        self.offset = 0
        self.keys: mx.array | None = None
        self.values: mx.array | None = None

    def next_positions(self, B: int) -> list[int]:
        """The position of the next token in each of B rows: after the tokens held, the same in every row."""
        return [self.offset] * B

    def num_keys(self, L: int) -> int:
        """S, the number of keys that `update_and_fetch` returns for L more tokens: all that are filled then."""
        return self.offset + L

    def make_mask(
        self, L: int, dtype: mx.Dtype, *, positions: mx.array | None = None
    ) -> mx.array | str | None:
        """The causal mask of the next L tokens over the S = num_keys(L) keys.

        "causal" is enough, since the new tokens are the last ones. A single token sees every key and needs no mask.
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
        """Stores the keys and values of L new tokens, and returns those of all tokens.

        Args:
            key, value: (B, Hkv, L, D) of the new tokens.
            mask_length: L or None; the mask is always for the new tokens.
            mask: an array over the S keys returned, which is passed on; "causal" or None makes one.
            positions: not used: this port's slices need only `offset`.

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
        # TASK 2.1.2: make room in steps, write the new tokens after the others, count them, return the filled part.
        # Assigning to a slice writes in place; concatenating would copy the cache for every token.
        raise NotImplementedError("week 2 day 1 task 2: TinyKvFullCache.update_and_fetch")

    def rewind(self, n: int) -> None:
        """Drops the last n tokens; the next ones overwrite them.

        Raises:
            ValueError: n is negative, or more than the cache holds.
        """
        # TASK 2.1.3: only the count changes. Positions after it are not returned, and are overwritten later.
        raise NotImplementedError("week 2 day 1 task 3: TinyKvFullCache.rewind")

    def release(self) -> None:
        """Frees the memory and drops all tokens."""
        self.keys = self.values = None
        self.offset = 0

    def materialize(self) -> None:
        """Evaluates the arrays that are still lazy, so that they do not hold the graph of many steps."""
        if self.keys is not None:
            mx.eval(self.keys, self.values)
