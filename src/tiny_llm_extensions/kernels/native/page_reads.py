"""What the requests of a step read of their pages, as the kernels take it."""

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, chain, groupby, pairwise
from typing import Any, NamedTuple

from tiny_llm_engine.packed_model import PackedInputs, PastReads

from .attention import LINE, DecodeKernel
from .kernel import NativeArray

Runs = list[tuple[int, int]]
RunArrays = tuple[NativeArray, NativeArray, NativeArray]


@dataclass(frozen=True)
class DecodeRuns:
    """What R requests of one row read: runs of neighbouring slots, in the order of their texts.

    Args:
        rows: (R,) rows of the step, int64.
        arrays: starts, counts and runs, see `DecodeKernel.attend`; all layers read the same.
        kernel: the solution's kernel of Day 4.1 that reads the runs.
    """

    rows: array
    arrays: RunArrays
    kernel: DecodeKernel

    @cached_property
    def tokens(self) -> int:
        """How many keys all rows read."""
        return sum(self.arrays[1].owner)


def past_runs(past: PastReads | None, page_size: int) -> dict[int, Runs]:
    """For each row with a past the runs of it, first slot and count. A run is at most a page."""
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


class CallReads(NamedTuple):
    """What a step reads, as `layers.cpp` takes it.

    Args:
        texts: of each chunk its first row, its rows, the slots that it reads, and where these begin in `slots`.
        slots: of the pasts and the rows of all chunks, those of each filled up to a multiple of `LINE`.
        runs: what the rows of decodes read, see `DecodeKernel.attend`: in layers without a window, then in those with
            one.
    """

    texts: array
    slots: array
    runs: tuple[NativeArray, ...]


def step_reads(inputs: PackedInputs, page_size: int, has_windows: bool) -> CallReads:
    """What the requests of a step read; the inputs are lists, or arrays, which are read for it."""
    requests = rows_of_requests(inputs.segments)
    runs = windowed = row_runs(inputs, inputs.decodes, requests, page_size)
    if has_windows:
        windowed = row_runs(inputs, inputs.window_decodes, requests, page_size)
    return CallReads(*step_texts(inputs, requests, page_size), (*runs, *windowed))


def rows_of_requests(segments: Any) -> list[tuple[int, int]]:
    """The first row of each request of a step, and the one after its last."""
    sizes = [len(list(rows)) for _, rows in groupby(listed(segments))]
    return list(pairwise(accumulate(sizes, initial=0)))


def row_runs(
    inputs: PackedInputs, reads: PastReads | None, requests: Sequence[tuple[int, int]], page_size: int
) -> RunArrays:
    """What each row of a step reads, see `DecodeKernel.attend`; the rows of chunks read nothing.

    Args:
        reads: the pasts of requests of one row.
        requests: see `rows_of_requests`.
    """
    past, own = past_runs(reads, page_size), listed(inputs.slots)
    runs: list[Runs] = [[] for _ in own]
    for start, stop in requests:
        if stop - start == 1:
            runs[start] = [*past.get(start, ()), (own[start], 1)]
    return _run_arrays(runs)


def step_texts(
    inputs: PackedInputs, requests: Sequence[tuple[int, int]], page_size: int
) -> tuple[array, array]:
    """`CallReads.texts` and their slots; arguments as those of `row_runs`."""
    past, own = past_runs(inputs.chunks, page_size), listed(inputs.slots)
    texts, slots = array("q"), array("q")
    for start, stop in requests:
        if stop - start > 1:
            before = len(slots)
            for first, count in past.get(start, ()):
                slots.extend(range(first, first + count))
            slots.extend(own[start:stop])
            tokens = len(slots) - before
            texts.extend((start, stop - start, tokens, before))
            slots.extend([0] * (-tokens % LINE))
    return texts, slots


def listed(numbers: Any) -> list[int]:
    """Integers as a list; an array is read for it."""
    return numbers if isinstance(numbers, list) else numbers.tolist()


def decode_runs(texts: dict[int, Runs], slots: Any, kernel: DecodeKernel) -> DecodeRuns | None:
    """The runs of some decodes, each with its own row last; None without a decode.

    Args:
        texts: from `past_runs`.
        slots: (T,), a list or an array: where the rows of the step are.
        kernel: the solution's kernel of Day 4.1 that reads the runs.
    """
    if not texts:
        return None
    rows, own = sorted(texts), listed(slots)
    runs = [[*texts[row], (own[row], 1)] for row in rows]
    return DecodeRuns(array("q", rows), _run_arrays(runs), kernel)


def _run_arrays(runs: Sequence[Runs]) -> RunArrays:
    """Starts, counts and the first run of each row, see `DecodeKernel.attend`."""
    starts, counts = zip(*chain(*runs), strict=True) if any(runs) else ((), ())
    return _integers(starts), _integers(counts), _integers(accumulate(map(len, runs), initial=0))


def _integers(numbers: Iterable[int]) -> NativeArray:
    """(N,) int64."""
    listed = array("q", numbers)
    address, count = listed.buffer_info()
    return NativeArray(address, (count,), "int64", listed)
