"""KV blocks as bytes in the host's memory: copies out of the pools and back, which give the very same bytes."""

import mmap
from collections.abc import Iterator, Sequence
from typing import Any

import torch


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
        shape, is_pinned = (num_rows + 1, self.row_bytes), arrays[0].device.type == "cuda"
        if memory is None:
            self._rows = torch.empty(shape, dtype=torch.uint8, pin_memory=is_pinned)
        else:
            self._rows = torch.frombuffer(memory, dtype=torch.uint8).view(shape)

    def save(self, block: int, row: int) -> None:
        """Copies a block of all pools into a row."""
        for page, data in self._parts(block, row):
            data.copy_(page)

    def restore(self, row: int, block: int) -> None:
        """Copies a row into a block of all pools."""
        for page, data in self._parts(block, row):
            page.copy_(data)

    def bytes_of(self, row: int) -> memoryview:
        """The bytes of a row, to be read or written in place."""
        return self._rows[row].numpy().data

    def _parts(self, block: int, row: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """The pages of a block, and the bytes of each as an array of its kind."""
        stop = 0
        for pool in self.pools:
            slots = slice(block * pool.page_size, (block + 1) * pool.page_size)
            for array in pool.arrays:
                page = array[slots]
                start, stop = stop, stop + page.nbytes
                yield page, self._rows[row, start:stop].view(page.dtype).view(page.shape)
