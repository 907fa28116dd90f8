"""Attention of decodes by the kernel of Day 4.1, which reads keys and values where they are in their pages."""

from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, chain
from typing import cast

import mlx.core as mx

from tiny_llm_common.layer_weights import ModelShape
from tiny_llm_common.packed_inputs import PastReads

from ..native.arrays import NativeArray, bytes_of, empty, shared
from ..native.decode_attention import DecodeKernel, fits
from ..native.threads import threads_for
from .native import native_array


@dataclass(frozen=True)
class DecodeRuns:
    """What R requests of one row read: runs of neighbouring slots, in the order of their texts.

    Args:
        rows: (R,) rows of the step.
        starts, counts: (N,), of each run its first slot and how many.
        runs: (R + 1,): row r reads the runs from `runs[r]` to `runs[r + 1] - 1`.
        kernel: of the solution in use.
    """

    rows: mx.array
    starts: mx.array
    counts: mx.array
    runs: mx.array
    kernel: DecodeKernel

    @cached_property
    def _arrays(self) -> tuple[NativeArray, NativeArray, NativeArray]:
        """Starts, counts and runs as the kernel sees them; all layers read the same."""
        return native_array(self.starts), native_array(self.counts), native_array(self.runs)

    @cached_property
    def _tokens(self) -> int:
        """How many keys all rows read."""
        return int(shared(self.counts).sum())


Runs = list[tuple[int, int]]


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


def decode_runs(texts: dict[int, Runs], slots: mx.array, kernel: DecodeKernel) -> DecodeRuns | None:
    """The runs of some decodes, each with its own row last; None when there are none.

    Args:
        texts: from `past_runs`.
        slots: (T,) where the rows of the step are.
        kernel: of the solution in use.
    """
    if not texts:
        return None
    rows = sorted(texts)
    own = cast(list[int], slots.tolist())
    listed = [[*texts[row], (own[row], 1)] for row in rows]
    starts, counts = zip(*chain(*listed), strict=True)
    ends = list(accumulate(map(len, listed), initial=0))
    first, size, last = (mx.array(list(part), mx.int64) for part in (starts, counts, ends))
    return DecodeRuns(mx.array(rows), first, size, last, kernel)


def attend_runs(
    query: mx.array,
    key_pages: mx.array,
    value_pages: mx.array,
    reads: DecodeRuns,
    scale: float,
) -> mx.array:
    """Attention of one row of each of R requests; no key or value is copied.

    Args:
        query: (R, H, D).
        key_pages, value_pages: (num_blocks + 1, page_size, Hkv, D), in query's type.
        reads: see `DecodeRuns`.
        scale: a number.

    Returns:
        (R, H, D) in query's type.
    """
    mx.eval(query, key_pages, value_pages)  # in one go
    out = attend_slots(native_array(query), slots_of(key_pages), slots_of(value_pages), reads, scale)
    return mx.array(out.owner).view(query.dtype)


def slots_of(pages: mx.array) -> NativeArray:
    """Pages, which are computed, as their slots one after the other: (num_blocks + 1, page_size, ...) to (S, ...)."""
    array = native_array(pages)
    blocks, page_size, *rest = array.shape
    return array._replace(shape=(blocks * page_size, *rest))


def attend_slots(
    query: NativeArray, keys: NativeArray, values: NativeArray, reads: DecodeRuns, scale: float
) -> NativeArray:
    """`attend_runs` of arrays as a kernel sees them; keys and values are those of all slots, (S, Hkv, D)."""
    out = empty(query.shape, query.dtype)
    size = 2 * reads._tokens * bytes_of(keys) // keys.shape[0]
    reads.kernel.attend(query, keys, values, out, *reads._arrays, scale, threads_for(size))
    return out


def computes(kernel: DecodeKernel, config: ModelShape) -> bool:
    """Whether a kernel runs on this machine, and computes the heads of a model."""
    sizes = config.num_attention_heads, config.num_key_value_heads, config.head_dim
    return fits(*sizes) and kernel.works
