"""What the requests of a step read of their pages, as the kernels take it."""

from array import array
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, chain
from typing import Any

from tiny_llm_common.layer_weights import ModelShape
from tiny_llm_common.packed_model import PastReads

from ..layers import Array
from .attention import DecodeKernel, fits
from .kernel import NativeArray

Runs = list[tuple[int, int]]


@dataclass(frozen=True)
class DecodeRuns:
    """What R requests of one row read: runs of neighbouring slots, in the order of their texts.

    Args:
        rows: (R,) rows of the step, int64.
        arrays: starts, counts and runs, see `DecodeKernel.attend`; all layers read the same.
        kernel: of the solution in use.
    """

    rows: array
    arrays: tuple[NativeArray, NativeArray, NativeArray]
    kernel: DecodeKernel

    @cached_property
    def tokens(self) -> int:
        """How many keys all rows read."""
        return sum(self.arrays[1].owner)


@dataclass(frozen=True)
class PageReads:
    """What all rows of a step read; made once, and shared by all layers.

    Args:
        chunks: of requests of several rows, and of those without a past.
        decodes: of all other requests; None when there are none.
    """

    chunks: list[Any]
    decodes: DecodeRuns | None

    def has_decodes_alone(self, rows: int) -> bool:
        """Whether each row is a request that reads its past and itself by the kernel of decodes."""
        return not self.chunks and self.decodes is not None and len(self.decodes.rows) == rows


def past_runs(past: PastReads | None, page_size: int) -> dict[int, Runs]:
    """For each decode the runs of its past, first slot and count, by its row. A run is at most a page."""
    if past is None:
        return {}
    runs: dict[int, Runs] = {group: [] for group in past.groups.tolist()}
    blocks = past.blocks
    listed = blocks.block_groups, blocks.block_list, blocks.block_starts, blocks.block_usage
    for group, block, start, end in zip(*(part.tolist() for part in listed), strict=True):
        if group in runs and end > start:
            runs[group].append((block * page_size + start, end - start))
    # Rows and groups of padding, see `padding.py`, read nothing.
    rows = zip(past.rows.tolist(), past.groups.tolist(), strict=True)
    return {row: runs[group] for row, group in rows if group >= 0 and runs[group]}


def decode_runs(texts: dict[int, Runs], slots: Array, kernel: DecodeKernel) -> DecodeRuns | None:
    """The runs of some decodes, each with its own row last; None when there are none.

    Args:
        texts: from `past_runs`.
        slots: (T,) where the rows of the step are.
        kernel: of the solution in use.
    """
    if not texts:
        return None
    rows, own = sorted(texts), slots.tolist()
    listed = [[*texts[row], (own[row], 1)] for row in rows]
    starts, counts = zip(*chain(*listed), strict=True)
    ends = accumulate(map(len, listed), initial=0)
    return DecodeRuns(array("q", rows), (_integers(starts), _integers(counts), _integers(ends)), kernel)


def _integers(numbers: Iterable[int]) -> NativeArray:
    """(N,) int64."""
    listed = array("q", numbers)
    address, count = listed.buffer_info()
    return NativeArray(address, (count,), "int64", listed)


def computes(kernel: DecodeKernel, config: ModelShape) -> bool:
    """Whether a kernel runs on this machine, and computes the heads of a model."""
    sizes = config.num_attention_heads, config.num_key_value_heads, config.head_dim
    return fits(*sizes) and kernel.works
