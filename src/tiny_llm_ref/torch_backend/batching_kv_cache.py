"""The KV cache of a batch: one slot per running request, one row of the batch per slot."""

from typing import Any

import torch

from tiny_llm_engine.arrays.checks import check_rows, check_slot
from tiny_llm_engine.arrays.torch import hpu
from tiny_llm_engine.arrays.torch.masks import length_mask

from .kv_cache import TinyKvFullCache, round_up


class BatchingKvCache:
    """Keys and values of all running requests in one layer: one row per request, in one fixed array.

    The rows have different lengths; a mask hides what comes after the end of each. An idle slot is at position 0: each
    step writes a meaningless token there, and the next request overwrites it.

    Args:
        max_active_requests: number of slots.
        max_seq_len: capacity of a slot in tokens; that of the first request's cache when None.
    """

    def __init__(self, max_active_requests: int, max_seq_len: int | None = None):
        self.max_active_requests, self.max_seq_len = max_active_requests, max_seq_len
        self.offsets = [0] * max_active_requests  # tokens held, per slot
        self.active = [False] * max_active_requests
        self.keys: torch.Tensor | None = None
        self.values: torch.Tensor | None = None
        self._heads: torch.Tensor | None = None

    def next_positions(self, B: int) -> list[int]:
        """The position of the next token in each of the first B rows; 0 in an idle row."""
        return self.offsets[:B]

    def num_keys(self, L: int) -> int:
        """S, the number of keys that `update_and_fetch` returns for L more tokens per row, for the longest row."""
        return round_up(max(self.offsets) + L)

    def make_mask(self, L: int, dtype: torch.dtype, *, positions: torch.Tensor | None = None) -> torch.Tensor:
        """The mask of the next L tokens of every row: (B, 1, L, S). An idle row sees position 0, so no row is empty."""
        positions = self._positions(L) if positions is None else positions
        return length_mask(positions, self.num_keys(L), dtype).unsqueeze(1)

    def _positions(self, L: int) -> torch.Tensor:
        """The positions of the next L tokens of every row: (max_active_requests, L)."""
        return torch.tensor(self.offsets)[:, None] + torch.arange(L)

    def add_request(self, prefilled: TinyKvFullCache, slot: int) -> None:
        """Copies a request's keys and values into a free slot; its own cache can then be released.

        Raises:
            ValueError: there is no such slot, it is taken, the request's cache is empty, the request does not fit, or
                neither cache has a `max_seq_len`.
        """
        check_slot(self, slot, prefilled)
        # TASK 2.6.2: make the arrays with the first request, copy the request's tokens, store how many they are.
        # Use zeros, not uninitialised memory: hidden keys get weight 0, and 0 times NaN is NaN.
        # Whole steps are copied, and the slot is a number in an array, so that there are few shapes.
        # `index_put_` writes into the arrays themselves: a Gaudi's graphs do not support writing through a view.
        assert (
            prefilled.keys is not None and prefilled.values is not None
        )  # `check_slot` refuses an empty one
        if self.keys is None or self.values is None:
            _, Hkv, _, D = prefilled.keys.shape
            self.max_seq_len = self.max_seq_len or prefilled.max_seq_len
            assert self.max_seq_len is not None  # see `check_slot`
            shape = (self.max_active_requests, Hkv, round_up(self.max_seq_len), D)
            self.keys = prefilled.keys.new_zeros(shape)
            self.values = torch.zeros_like(self.keys)
        S, row = round_up(prefilled.offset), torch.tensor([slot], device=self.keys.device)
        places = self._places(row, torch.arange(S, device=self.keys.device)[None])
        self.keys.index_put_(places, prefilled.keys[:, :, :S])
        self.values.index_put_(places, prefilled.values[:, :, :S])
        self.offsets[slot], self.active[slot] = prefilled.offset, True

    # GIVEN: both functions that write need it.
    def _places(self, rows: torch.Tensor, positions: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Row (B, 1, 1), head (Hkv, 1) and position (B, 1, L) of L tokens per row, which broadcast to (B, Hkv, L).

        Args:
            rows: (B,), slots.
            positions: (B, L).
        """
        if self._heads is None:  # once for all steps
            assert self.keys is not None  # both have made it
            self._heads = torch.arange(self.keys.shape[1], device=self.keys.device)[:, None]
        return rows[:, None, None], self._heads, positions[:, None]

    def remove_request(self, slot: int) -> None:
        """Frees a slot: its row is idle from now on.

        Raises:
            ValueError: the slot holds no request.
        """
        if not (0 <= slot < self.max_active_requests and self.active[slot]):
            raise ValueError(f"slot {slot} holds no request")
        # TASK 2.6.3: an idle row is at position 0. Both lists have to drop the request.
        self.offsets[slot], self.active[slot] = 0, False
        # END TASK
        # A mask gives old keys the weight 0, but 0 times NaN is NaN: the next request must not find one here.
        if self.keys is not None and self.values is not None:
            row = torch.tensor([slot], device=self.keys.device)
            self.keys.index_fill_(0, row, 0)
            self.values.index_fill_(0, row, 0)

    def update_and_fetch(
        self,
        key: torch.Tensor,
        value: torch.Tensor,
        mask_length: int | None = None,
        mask: torch.Tensor | str | None = None,
        *,
        positions: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor, int, torch.Tensor]:
        """Stores the keys and values of L new tokens per row, and returns those of all tokens.

        Args:
            key, value: (B, Hkv, L, D), row i for slot i. The last slots may be left out while they are idle.
            mask_length: L or None; the mask is always for the new tokens.
            mask: an array over the S keys returned, which is passed on; "causal" or None makes one.
            positions: (B, L), the positions of the new tokens; 0 in an idle row. Derived from `offsets` when None.

        Returns:
            key, value: (B, Hkv, S, D), S = num_keys(L).
            length: number of tokens in the longest row.
            mask: (B, 1, L, S).

        Raises:
            ValueError: a slot in use has no row, a row is full, or `mask_length` is not L.
        """
        B, _, L, _ = key.shape
        if mask_length not in (None, L):
            raise ValueError(f"mask_length {mask_length} for {L} new tokens: the mask is for these")
        check_rows(self, B, L)
        positions = self._positions(L)[:B].to(key.device) if positions is None else positions
        if mask is None or isinstance(mask, str):
            mask = self.make_mask(L, key.dtype, positions=positions)
        S = self.num_keys(L)
        # TASK 2.6.1: write every row's tokens at that row's positions, count those of active slots, return S per row.
        # Three index arrays, of rows, heads and positions, name one place for every vector of D numbers.
        assert self.keys is not None and self.values is not None  # a slot is in use
        places = self._places(torch.arange(B, device=key.device), positions)
        self.keys.index_put_(places, key)
        self.values.index_put_(places, value)
        self.offsets = [n + L * used for n, used in zip(self.offsets, self.active, strict=True)]
        return self.keys[:B, :, :S], self.values[:B, :, :S], max(self.offsets), mask

    def release(self) -> None:
        """Frees the memory of all slots."""
        self.keys = self.values = self._heads = None
        self.offsets = [0] * self.max_active_requests
        self.active = [False] * self.max_active_requests

    def materialize(self) -> None:
        """Launches what a Gaudi's lazy mode has collected; elsewhere torch has computed already."""
        hpu.mark_step()


def create_batch_cache(model: Any, max_active_requests: int, max_seq_len: int) -> list[BatchingKvCache]:
    """A cache per layer of a model with `max_active_requests` empty slots of at most `max_seq_len` tokens. Given."""
    return [BatchingKvCache(max_active_requests, max_seq_len) for _ in model.layers]
