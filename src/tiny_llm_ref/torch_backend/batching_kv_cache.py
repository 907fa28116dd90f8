"""The KV cache of a batch: one slot a running request, one row of the batch a slot."""

import torch

from .kv_cache import TinyKvFullCache, length_mask, round_up


class BatchingKvCache:
    """Keys and values of all running requests in one layer, each in its own row of one array that never moves.

    The rows hold different lengths; a mask hides what lies behind each. An idle slot stands at position 0 and writes
    its garbage there, where the next request's first token will be.

    Args:
        max_active_requests: how many slots there are.
        max_seq_len: how many tokens fit into a slot; as many as the first request's cache when None.
    """

    def __init__(self, max_active_requests: int, max_seq_len: int | None = None):
        self.max_active_requests, self.max_seq_len = max_active_requests, max_seq_len
        self.offsets = [0] * max_active_requests  # tokens held, by slot
        self.active = [False] * max_active_requests
        self.keys: torch.Tensor | None = None
        self.values: torch.Tensor | None = None

    def next_positions(self, B: int) -> list[int]:
        """Where the next token of each of the first B rows stands; 0 in an idle one."""
        return self.offsets[:B]

    def num_keys(self, L: int) -> int:
        """S: how many keys `update_and_fetch` returns for L more tokens a row; the longest row decides."""
        return round_up(max(self.offsets) + L)

    def make_mask(self, L: int, dtype: torch.dtype, *, positions: torch.Tensor | None = None) -> torch.Tensor:
        """The mask of the next L tokens of every row: (B, 1, L, S). An idle row sees its position 0: none is empty."""
        positions = self._positions(L) if positions is None else positions
        return length_mask(positions, self.num_keys(L), dtype).unsqueeze(1)

    def _positions(self, L: int) -> torch.Tensor:
        """(max_active_requests, L)."""
        return torch.tensor(self.offsets)[:, None] + torch.arange(L)

    def add_request(self, prefilled: TinyKvFullCache, slot: int) -> None:
        """Copies the keys and values of a request into a free slot; its own cache can be released then.

        Raises:
            ValueError: there is no such slot, it is taken, the request's cache is empty, the request does not fit, or
                nobody has said how many tokens fit into a slot.
        """
        self._check_free(slot, prefilled)
        # TASK 2.6.2: make the arrays with the first request, copy its tokens, remember how many they are.
        # Zeros, and not what memory happens to hold: hidden keys get weight 0, and 0 times NaN is NaN.
        # Whole steps are copied, and the slot is a number in an array: few shapes, whatever the request.
        if self.keys is None:
            _, Hkv, _, D = prefilled.keys.shape
            self.max_seq_len = self.max_seq_len or prefilled.max_seq_len
            shape = (self.max_active_requests, Hkv, round_up(self.max_seq_len), D)
            self.keys = prefilled.keys.new_zeros(shape)
            self.values = torch.zeros_like(self.keys)
        S, row = round_up(prefilled.offset), torch.tensor([slot], device=self.keys.device)
        self.keys[:, :, :S].index_copy_(0, row, prefilled.keys[:, :, :S])
        self.values[:, :, :S].index_copy_(0, row, prefilled.values[:, :, :S])
        self.offsets[slot], self.active[slot] = prefilled.offset, True

    def _check_free(self, slot: int, prefilled: TinyKvFullCache) -> None:
        if not 0 <= slot < self.max_active_requests:
            raise ValueError(f"slot {slot} is none of 0 to {self.max_active_requests - 1}")
        if self.active[slot]:
            raise ValueError(f"slot {slot} is taken: remove its request first")
        if prefilled.offset == 0:
            raise ValueError("the request's cache is empty: prefill the request before it takes a slot")
        length = self.max_seq_len or prefilled.max_seq_len
        if length is None:
            raise ValueError(
                "neither this cache nor the request's has a max_seq_len: give one of them its length"
            )
        if prefilled.offset > length:
            raise ValueError(f"{prefilled.offset} tokens do not fit a slot of {length}")

    def remove_request(self, slot: int) -> None:
        """Makes a slot free: its row counts as idle from now on.

        Raises:
            ValueError: no request is in this slot.
        """
        if not (0 <= slot < self.max_active_requests and self.active[slot]):
            raise ValueError(f"slot {slot} holds no request")
        # TASK 2.6.3: an idle row is one that stands at position 0. Of the two lists, both have to forget the request.
        self.offsets[slot], self.active[slot] = 0, False
        # END TASK
        # A mask gives old keys the weight 0; but 0 times NaN is NaN, and the next request must not inherit one.
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
        """Keeps L new tokens of every row, and returns those of all tokens.

        Args:
            key, value: (B, Hkv, L, D), row i for slot i. B may leave out the last slots, as long as they are idle.
            mask_length: L, or None: the mask is for the new tokens.
            mask: an array that fits the S keys returned, which passes through; "causal" or None makes one.
            positions: (B, L), where the new tokens stand; 0 in an idle row. Derived from `offsets` when None.

        Returns:
            key, value: (B, Hkv, S, D), S = num_keys(L).
            length: tokens of the longest row.
            mask: (B, 1, L, S).

        Raises:
            ValueError: there is no row for a slot in use, a row is full, or `mask_length` is not L.
        """
        B, Hkv, L, D = key.shape
        if mask_length not in (None, L):
            raise ValueError(f"mask_length {mask_length} for {L} new tokens: the mask is for these")
        self._check_rows(B, L)
        positions = self._positions(L)[:B].to(key.device) if positions is None else positions
        if mask is None or isinstance(mask, str):
            mask = self.make_mask(L, key.dtype, positions=positions)
        S = self.num_keys(L)
        # TASK 2.6.1: write every row's tokens at that row's positions, count those of active slots, hand out S of each.
        # Seen as one long list of D numbers each, slot b's head h begins at entry (b · Hkv + h) · capacity.
        capacity = self.keys.shape[2]
        heads = torch.arange(B * Hkv, device=key.device).reshape(B, Hkv, 1) * capacity
        places = (heads + positions[:, None, :]).flatten()
        self.keys.view(-1, D).index_copy_(0, places, key.reshape(-1, D))
        self.values.view(-1, D).index_copy_(0, places, value.reshape(-1, D))
        self.offsets = [n + L * used for n, used in zip(self.offsets, self.active, strict=True)]
        return self.keys[:B, :, :S], self.values[:B, :, :S], max(self.offsets), mask

    def _check_rows(self, B: int, L: int) -> None:
        rows = [slot for slot, used in enumerate(self.active) if used]
        if not rows or rows[-1] >= B:
            raise ValueError(f"{B} rows for requests in slots {rows}: every slot in use needs its row")
        if max(self.offsets) + L > self.max_seq_len:
            raise ValueError(f"{max(self.offsets)} + {L} tokens do not fit a slot of {self.max_seq_len}")

    def release(self) -> None:
        """Gives the memory of all slots back."""
        self.keys = self.values = None
        self.offsets = [0] * self.max_active_requests
        self.active = [False] * self.max_active_requests

    def materialize(self) -> None:
        """Nothing to do: this library computes at once."""
