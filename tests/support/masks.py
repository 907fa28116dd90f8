"""Checks for masks: exact at large positions, made without a loop, and made without reading an array."""

import sys
from collections.abc import Callable
from types import FrameType

import numpy as np

from tiny_llm_course.address import task_of_label
from tiny_llm_engine.solutions.port import Port

# Starts of a chunk in a text. bf16 has no 257 and float16 no 2,049: 13 tokens from each of these cross both borders.
FAR_STARTS = (250, 2045, 30_000)
SHORT_TYPES = ("bfloat16", "float16")
MANY = 13


def visible_keys(positions, S: int, window: int | None = None) -> np.ndarray:
    """(..., L, S): True for the keys that queries at `positions` (..., L) see, the last `window` of them if given."""
    distance = np.asarray(positions)[..., None] - np.arange(S)
    return (distance >= 0) & (distance < (np.inf if window is None else window))


def assert_shows(mask: np.ndarray, positions, idea: str, window: int | None = None) -> None:
    """Assert that a mask (..., L, S) in NumPy is 0 where `visible_keys` is true, and -inf elsewhere.

    Raises:
        AssertionError: naming the idea, and the first query and key that are wrong.
    """
    expected = np.where(visible_keys(positions, mask.shape[-1], window), 0.0, -np.inf)
    assert mask.shape == expected.shape, f"the mask has shape {mask.shape}, not {expected.shape}"
    for *row, key in np.argwhere(mask != expected)[:1].tolist():
        place = np.asarray(positions)[tuple(row)]
        raise AssertionError(
            f"{idea}\n  the query at position {place} has {mask[(*row, key)]:g} for key {key}: positions are integers; "
            "compare them as integers, and give only the finished mask its type"
        )


def assert_no_loop(make: Callable[[int], object], idea: str) -> None:
    """Assert that make(size) executes as many lines of Python for 400 tokens as for 4."""
    make(4)  # warm-up: code that runs only once
    # The smallest of three: sometimes a library, or the garbage collector, adds lines.
    few, many = (min(_executed_lines(lambda size=size: make(size)) for _ in range(3)) for size in (4, 400))
    assert many == few, f"{idea}: {few} lines of Python ran for 4 tokens, {many} for 400; use whole arrays"


def _executed_lines(call: Callable[[], object]) -> int:
    count, before = 0, sys.gettrace()

    def trace(frame: FrameType, event: str, argument: object):
        nonlocal count
        count += 1
        return trace

    sys.settrace(trace)
    try:
        call()
    finally:
        sys.settrace(before)
    return count


def assert_traces(b: Port, function: Callable, *arrays, idea: str):
    """Assert that function(*arrays) works on the arrays' shapes, types and device alone; return its result.

    Raises:
        AssertionError: it read a number of an array, or mixed arrays of two devices.
    """
    try:
        return b.backend_module.trace(function, *arrays)
    except Exception as error:
        if task_of_label(str(error)):
            raise  # a blank task
        raise AssertionError(f"{idea}: {str(error).splitlines()[0]}") from error
