"""The keys and values of one request in pages: what both ports share."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from .layers import Array

Cache = TypeVar("Cache", bound="PagedCache")


class PagedPlaces:
    """Where the tokens of one request are in the pools, as arrays: made once per step, shared by all layers.

    Args:
        table: the request's.
    """

    def __init__(self, table: Any):
        self.table = table
        self._key: tuple[int, int, tuple[int, ...]] | None = None
        self._arrays: tuple[Array, Array] | None = None

    def of(self, start: int, stop: int, array: Callable[[list[int]], Array]) -> tuple[Array, Array]:
        """(stop - start,) slots of the tokens at these positions, and the blocks that hold all tokens before `stop`.

        Args:
            array: makes an array on the pool's device.
        """
        key = start, stop, tuple(self.table.blocks)
        if key != self._key or self._arrays is None:
            blocks = self.table.blocks[: -(-stop // self.table.allocator.block_size)]
            self._arrays = array(self.table.slots(start, stop)), array(blocks)
            self._key = key
        return self._arrays


class PagedCache(ABC):
    """The keys and values of one request in one layer, in the blocks of its table; all layers share the table.

    Args:
        pool: the layer's, a `TinyKvPagedPool`.
        table: the request's.
        offset: tokens that are computed already, as `BlockTable.share` returns them.
        places: of `table`, shared with the caches of the other layers, see `of_layers`; its own when None.

    Raises:
        ValueError: pool and table have blocks of different sizes or numbers.
    """

    def __init__(self, pool: Any, table: Any, offset: int = 0, places: PagedPlaces | None = None):
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
    def of_layers(cls: type[Cache], pools: Sequence[Any], table: Any, offset: int = 0) -> list[Cache]:
        """A cache per layer for one request; they list the request's slots once per step, not once per layer."""
        places = PagedPlaces(table)
        return [cls(pool, table, offset, places) for pool in pools]

    def next_positions(self, B: int) -> list[int]:
        """Position of the next token; a paged cache has one row."""
        return [self.offset] * B

    @abstractmethod
    def num_keys(self, L: int) -> int:
        """S: how many keys `update_and_fetch` returns for L more tokens."""

    def _reserve(self, shape: Sequence[int], mask_length: int | None) -> int:
        """Reserves room for the L tokens of keys of this shape, and returns L.

        The first layer of a step adds the blocks, the others find them there.
        """
        B, _, L, _ = shape
        if B != 1:
            raise ValueError(f"{B} rows: the cache of a request has one; give each row its own table")
        if mask_length not in (None, L):
            raise ValueError(f"mask_length {mask_length} for {L} new tokens: the mask is for these")
        if self.offset < self.table.num_registered:
            raise ValueError(
                f"position {self.offset} is in a block that other requests may read: go on at "
                f"{self.table.num_registered}"
            )
        self.table.reserve(self.offset + L)
        return L

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
