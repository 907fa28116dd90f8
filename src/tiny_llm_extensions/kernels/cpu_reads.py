"""What the rows of a packed step read on a CPU, which has no use for fixed shapes: every request reads its own tokens.

A CPU does not wait for a device when it reads a number, so the slots of each request are listed once a step. Requests
of one row and of similar length are one call; the padding that this takes is at most as long as what is read.
"""

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from tiny_llm_engine.arrays.layers import Array
from tiny_llm_engine.packed_model import PackedInputs

from .native.layers import listed, past_runs, rows_of_requests


@dataclass(frozen=True)
class ChunkReads:
    """What L rows of one request read.

    Args:
        rows: its rows of the step.
        slots: (S,) of its past and of these rows; None when it has no past, and the rows are all its keys.
        mask: (L, S) float32, added to the scores; None for a single row, which sees all it reads, and where each row
            sees those before it and itself, if the port has a kernel for that.
    """

    rows: slice
    slots: Array | None
    mask: Array | None


@dataclass(frozen=True)
class DecodeReads:
    """What R requests of one row read.

    Args:
        rows: (R,) rows of the step.
        slots: (R, S) of their texts; a shorter text repeats its last slot.
        mask: (R, S) float32, added to the scores: -inf for the repeated slots.
    """

    rows: Array
    slots: Array
    mask: Array


@dataclass(frozen=True)
class StepReads:
    """What all rows of a step read: each is in a chunk or in a call of decodes. Made once, and shared by all layers."""

    chunks: list[ChunkReads]
    decodes: list[DecodeReads]


def request_reads(
    inputs: PackedInputs,
    page_size: int,
    window: int | None,
    array: Callable[[np.ndarray], Array],
    has_causal: bool,
) -> StepReads:
    """Lists what each request of a step reads.

    Args:
        inputs, page_size, window: as Day 3.3's `packed_mask` takes them.
        array: makes the port's array.
        has_causal: whether the port has a kernel for rows that see those before them and themselves.
    """
    decodes = inputs.decodes if window is None else inputs.window_decodes
    past = past_runs(inputs.chunks, page_size) | past_runs(decodes, page_size)
    own, positions = (np.array(listed(part)) for part in (inputs.slots, inputs.positions))
    chunks, texts = [], {}
    for start, stop in rows_of_requests(inputs.segments):
        before = [np.arange(first, first + count) for first, count in past.get(start, ())]
        slots, rows = np.concatenate([*before, own[start:stop]]), slice(start, stop)
        if stop - start == 1 and before:
            texts[start] = slots
        else:
            mask = own_mask(positions[rows], sum(map(len, before)), window, has_causal)
            read = array(slots) if before else None
            chunks.append(ChunkReads(rows, read, None if mask is None else array(mask)))
    return StepReads(chunks, decode_calls(texts, array))


def own_mask(positions: np.ndarray, past: int, window: int | None, has_causal: bool) -> np.ndarray | None:
    """The mask of L new rows over their `past` tokens and each other; None where none is needed."""
    is_causal = has_causal and past == 0 and (window is None or len(positions) <= window)
    if len(positions) == 1 or is_causal:
        return None
    keys = np.concatenate([np.arange(past), positions])
    seen = keys <= positions[:, None]
    if window is not None:
        seen &= keys > positions[:, None] - window
    return np.where(seen, np.float32(0), np.float32(-np.inf))


def decode_calls(texts: dict[int, np.ndarray], array: Callable[[np.ndarray], Array]) -> list[DecodeReads]:
    """One call per group of decodes whose lengths are between the same two powers of two.

    Args:
        texts: the slots of each, by its row.
    """
    groups: dict[int, list[int]] = defaultdict(list)
    for row, slots in texts.items():
        groups[(len(slots) - 1).bit_length()].append(row)
    return [_one_call(rows, [texts[row] for row in rows], array) for rows in groups.values()]


def _one_call(rows: list[int], texts: list[np.ndarray], array: Callable[[np.ndarray], Array]) -> DecodeReads:
    sizes = np.array([[len(text)] for text in texts])
    keys = np.arange(sizes.max())
    # A text's own slot as padding: another one may hold anything, and 0 · NaN is NaN.
    slots = np.stack([text[np.minimum(keys, len(text) - 1)] for text in texts])
    hidden = np.where(keys < sizes, np.float32(0), np.float32(-np.inf))
    return DecodeReads(array(np.array(rows)), array(slots), array(hidden))
