"""KV blocks as bytes outside the pools: copies out of them and back, which give the very same bytes."""

import mmap
from collections.abc import Iterator, Sequence
from typing import Any

import mlx.core as mx


class HostPages:
    """Rows of memory, each of them for one block of all layers, and a spare row after the last one.

    Args:
        pools: the device's pool of each layer.
        num_rows: blocks that have a place.
        memory: of the rows; made here when None.
    """

    def __init__(self, pools: Sequence[Any], num_rows: int, memory: mmap.mmap | None = None):
        self.pools, self.num_rows = pools, num_rows
        arrays = [array for pool in pools for array in pool.arrays]
        self.row_bytes = sum(array.nbytes // (pools[0].num_blocks + 1) for array in arrays)
        # Memory of the process that is there when it is used.
        self._rows = memoryview(memory or mmap.mmap(-1, (num_rows + 1) * self.row_bytes))

    def save(self, block: int, row: int) -> None:
        """Copies a block of all pools into a row."""
        for array, slots, data in self._parts(block, row):
            page: Any = array[slots].view(mx.uint8)  # a buffer too
            data[:] = memoryview(page).cast("B")

    def restore(self, row: int, block: int) -> None:
        """Copies a row into a block of all pools."""
        for array, slots, data in self._parts(block, row):
            shape = -1, *array.shape[1:]
            numbers: Any = data  # a buffer, of which mlx's types know nothing
            array[slots] = mx.array(numbers).view(array.dtype).reshape(shape)
        for pool in self.pools:
            pool.known_addresses = []

    def bytes_of(self, row: int) -> memoryview:
        """The bytes of a row, to be read or written in place."""
        return self._rows[row * self.row_bytes : (row + 1) * self.row_bytes]

    def _parts(self, block: int, row: int) -> Iterator[tuple[mx.array, slice, memoryview]]:
        """The arrays of the pools, the slots of a block in them, and the bytes of these."""
        data, stop = self.bytes_of(row), 0
        for pool in self.pools:
            slots = slice(block * pool.page_size, (block + 1) * pool.page_size)
            for array in pool.arrays:
                start, stop = stop, stop + array.nbytes // (pool.num_blocks + 1)
                yield array, slots, data[start:stop]
