"""What the requests of a step read of their pages, as the kernels take it."""

from array import array
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, chain
from typing import Any

from tiny_llm_engine.models.layer_weights import ModelShape
from tiny_llm_engine.packed_model import PackedInputs, PastReads

from .attention import DecodeKernel, fits
from .kernel import NativeArray

Runs = list[tuple[int, int]]


@dataclass(frozen=True)
class DecodeRuns:
    """What R requests of one row read: runs of neighbouring slots, in the order of their texts.

    Args:
        rows: (R,) rows of the step, int64.
        arrays: starts, counts and runs, see `DecodeKernel.attend`; all layers read the same.
        kernel: the solution's kernel of Day 4.1 that reads the runs.
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


def past_runs(past: PastReads | None, page_size: int) -> dict[int, Runs]:
    """For each decode the runs of its past, first slot and count, by its row. A run is at most a page."""
    if past is None:
        return {}
    rows, groups, blocks = listed(past.rows), listed(past.groups), past.blocks
    runs: dict[int, Runs] = {group: [] for group in groups}
    parts = blocks.block_groups, blocks.block_list, blocks.block_starts, blocks.block_usage
    for group, block, start, end in zip(*map(listed, parts), strict=True):
        if group in runs and end > start:
            runs[group].append((block * page_size + start, end - start))
    # Rows and groups of padding, see `padding.py`, read nothing.
    return {row: runs[group] for row, group in zip(rows, groups, strict=True) if group >= 0 and runs[group]}


def decodes_alone(
    inputs: PackedInputs, reads: PastReads | None, page_size: int, kernel: DecodeKernel
) -> DecodeRuns | None:
    """The runs of a step whose rows all are requests that read their past and themselves; None for other steps."""
    if reads is None or len(reads.rows) < len(inputs.slots):
        return None
    runs = past_runs(reads, page_size)
    return decode_runs(runs, inputs.slots, kernel) if len(runs) == len(inputs.slots) else None


def listed(numbers: Any) -> list[int]:
    """Integers as a list; an array is read for it."""
    return numbers if isinstance(numbers, list) else numbers.tolist()


def decode_runs(texts: dict[int, Runs], slots: Any, kernel: DecodeKernel) -> DecodeRuns | None:
    """The runs of some decodes, each with its own row last; None when there are none.

    Args:
        texts: from `past_runs`.
        slots: (T,), a list or an array: where the rows of the step are.
        kernel: the solution's kernel of Day 4.1 that reads the runs.
    """
    if not texts:
        return None
    rows, own = sorted(texts), listed(slots)
    runs = [[*texts[row], (own[row], 1)] for row in rows]
    starts, counts = zip(*chain(*runs), strict=True)
    ends = accumulate(map(len, runs), initial=0)
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
