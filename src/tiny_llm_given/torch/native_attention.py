"""Attention of decodes by the kernel of Day 4.1, which reads keys and values where they are in their pages."""

from dataclasses import dataclass
from functools import cached_property

import torch

from tiny_llm_common.layer_weights import ModelShape
from tiny_llm_common.packed_inputs import PastReads

from ..native.arrays import NativeArray
from ..native.decode_attention import DecodeKernel, fits
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

    rows: torch.Tensor
    starts: torch.Tensor
    counts: torch.Tensor
    runs: torch.Tensor
    kernel: DecodeKernel

    @cached_property
    def _arrays(self) -> tuple[NativeArray, NativeArray, NativeArray]:
        """Starts, counts and runs as the kernel sees them; all layers read the same."""
        return native_array(self.starts), native_array(self.counts), native_array(self.runs)


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


def decode_runs(texts: dict[int, Runs], slots: torch.Tensor, kernel: DecodeKernel) -> DecodeRuns | None:
    """The runs of some decodes, each with its own row last; None when there are none.

    Args:
        texts: from `past_runs`.
        slots: (T,) where the rows of the step are.
        kernel: of the solution in use.
    """
    if not texts:
        return None
    rows = sorted(texts)
    own = slots.tolist()
    listed = [[*texts[row], (own[row], 1)] for row in rows]
    starts, counts = torch.tensor([run for runs in listed for run in runs]).T.contiguous()
    ends = torch.tensor([0, *map(len, listed)]).cumsum(0)
    return DecodeRuns(torch.tensor(rows), starts, counts, ends, kernel)


def attend_runs(
    query: torch.Tensor,
    key_pages: torch.Tensor,
    value_pages: torch.Tensor,
    reads: DecodeRuns,
    scale: float,
) -> torch.Tensor:
    """Attention of one row of each of R requests; no key or value is copied.

    Args:
        query: (R, H, D).
        key_pages, value_pages: (num_blocks + 1, page_size, Hkv, D), in query's type.
        reads: see `DecodeRuns`.
        scale: a number.

    Returns:
        (R, H, D) in query's type.
    """
    query = query.contiguous()
    out = torch.empty_like(query)
    reads.kernel.attend(
        native_array(query),
        native_array(key_pages.flatten(0, 1)),
        native_array(value_pages.flatten(0, 1)),
        native_array(out),
        *reads._arrays,
        scale,
        torch.get_num_threads(),
    )
    return out


def computes(kernel: DecodeKernel, config: ModelShape) -> bool:
    """Whether a kernel runs on this machine, and computes the heads of a model."""
    sizes = config.num_attention_heads, config.num_key_value_heads, config.head_dim
    return fits(*sizes) and kernel.works
